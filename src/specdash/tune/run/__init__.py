"""A run of the tuner on a real service: planning, booting, measuring, reporting."""
