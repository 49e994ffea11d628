"""All knowledge of llama.cpp: HTTP shapes, metric names, log grammar."""
