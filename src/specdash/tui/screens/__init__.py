"""Full pages: the overview, the help page, and the page that says how to connect."""
