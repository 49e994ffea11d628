"""Acceptance, draft length and the drafter: why speculation gains or does not."""
