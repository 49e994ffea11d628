"""Made-up machines whose best setting is known, and the harness that judges the tuner on them."""
