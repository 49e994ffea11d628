"""The same truth without the screen: JSON snapshots."""
