"""Applies in a row, good and bad, while clients never stop asking."""
