"""What the overview is made of. Every widget turns a `View` into lines of spans and repaints only rows that changed."""
