"""The actions of the screens that change the services: tune and tuner. See `tui.actions`."""

from __future__ import annotations

from functools import partial

from specdash.tui.action import Action, Place, in_place, on_overview

TUNE, TUNER = "Tune", "Tuner"
_TUNE_ONLY, _TUNER_ONLY = (Place.TUNE,), (Place.TUNER,)
_in_tune, _in_tuner, _in_speculation = (
    partial(in_place, place) for place in (Place.TUNE, Place.TUNER, Place.SPECULATION)
)

SERVICE_ACTIONS: tuple[Action, ...] = (
    Action(
        "tune",
        ("e",),
        "Open the tune screen, and leave it",
        TUNE,
        "toggle_tune",
        (*on_overview("tune", 1), *_in_tune("overview", 4)),
    ),
    Action(
        "arm",
        ("A",),
        "Arm: allow changes; disarms itself when idle",
        TUNE,
        "arm",
        (*on_overview("arm", 4), *_in_tune("arm"), *_in_speculation("arm"), *_in_tuner("arm")),
    ),
    Action(
        "tune.apply",
        ("a",),
        "Apply what is pending, step by step",
        TUNE,
        "apply",
        _in_tune("apply"),
        _TUNE_ONLY,
        armed_only=True,
    ),
    Action(
        "tune.rollback",
        ("R",),
        "Roll back the last apply",
        TUNE,
        "roll_back",
        _in_tune("roll back", 1),
        _TUNE_ONLY,
        armed_only=True,
    ),
    Action(
        "tune.presets",
        ("o",),
        "Take a preset: a profile's values become pending",
        TUNE,
        "presets",
        _in_tune("presets", 1),
        _TUNE_ONLY,
    ),
    Action(
        "tune.drop",
        ("u",),
        "Drop the pending change of the setting",
        TUNE,
        "drop_change",
        _in_tune("undo", 2),
        _TUNE_ONLY,
    ),
    Action("tune.clear", ("U",), "Drop all pending changes", TUNE, "clear_changes", (), _TUNE_ONLY),
    Action(
        "tune.unset",
        ("x",),
        "Remove the setting from the env file (pending)",
        TUNE,
        "unset_key",
        _in_tune("unset", 3),
        _TUNE_ONLY,
    ),
    Action(
        "tune.service",
        ("b",),
        "The other service: backend or proxy",
        TUNE,
        "next_service",
        _in_tune("service", 3),
        _TUNE_ONLY,
    ),
    Action(
        "tune.every",
        ("v",),
        "Every setting there is, or those set and most tuned",
        TUNE,
        "every_key",
        _in_tune("all", 4),
        _TUNE_ONLY,
    ),
    Action(
        "tune.side",
        ("d",),
        "Preflight's findings, then the before/after card",
        TUNE,
        "next_side",
        _in_tune("details", 3),
        _TUNE_ONLY,
    ),
    Action(
        "tune.finish", ("y",), "Finish an apply that was cut short (R rolls it back)", TUNE, "finish", (), _TUNE_ONLY
    ),
    Action(
        "tuner",
        ("T",),
        "Open the tuner's screen, and leave it",
        TUNER,
        "toggle_tuner",
        (*on_overview("tuner", 5), *_in_tune("tuner", 3), *_in_tuner("overview", 4)),
    ),
    Action(
        "tuner.start",
        ("r",),
        "Start the tuner on the service",
        TUNER,
        "tuner_start",
        _in_tuner("run"),
        _TUNER_ONLY,
        armed_only=True,
    ),
    Action(
        "tuner.stop",
        ("x",),
        "Stop the tuner, put the original back",
        TUNER,
        "tuner_stop",
        _in_tuner("stop"),
        _TUNER_ONLY,
        armed_only=True,
    ),
    Action(
        "tuner.take",
        ("a",),
        "Take the chosen settings to the tune screen, pending only",
        TUNER,
        "tuner_take",
        _in_tuner("take", 1),
        _TUNER_ONLY,
    ),
    Action(
        "tuner.budget",
        ("b",),
        "Change the budget: restarts, and minutes",
        TUNER,
        "tuner_budget",
        _in_tuner("budget", 2),
        _TUNER_ONLY,
    ),
    Action(
        "tuner.plan",
        ("n",),
        "What a new run would do, and back to the last outcome",
        TUNER,
        "tuner_plan",
        _in_tuner("new run", 2),
        _TUNER_ONLY,
    ),
    Action(
        "tuner.resume",
        ("y",),
        "Take up the run that was cut short",
        TUNER,
        "tuner_resume",
        (),
        _TUNER_ONLY,
        armed_only=True,
    ),
)
