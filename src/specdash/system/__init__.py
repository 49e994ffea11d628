"""The ground floor: files, processes, HTTP, text and statistics. It knows nothing of specdash, and raises `OSError`."""
