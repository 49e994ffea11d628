"""What is believed of every point of the search space, and which one to boot next."""
