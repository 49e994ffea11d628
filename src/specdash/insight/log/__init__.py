"""What the log and the counters say, kept as it comes."""
