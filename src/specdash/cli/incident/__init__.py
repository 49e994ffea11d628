"""`specdash incident`: a bundle of what happened."""
