"""Being here puts this folder on the import path, so that tests can import `support`."""
