"""Puts the points of `support.points` into a backend's runner: its command stays that of a user."""

import sys

if {"specdash", "backend", "run"} <= set(sys.orig_argv):
    from support.points import arm

    arm()
