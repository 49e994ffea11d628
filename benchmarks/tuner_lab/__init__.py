"""The tuner's laboratory: made-up machines whose best setting is known, recorded sweeps, and the harness that judges on
them."""
