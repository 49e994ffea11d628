"""Full pages: the overview, the help page, and the page that tells how to connect."""
