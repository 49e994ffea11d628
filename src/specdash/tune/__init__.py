"""The tuner: which way to speculate is fastest here, found out by measuring, with as few restarts as it takes."""
