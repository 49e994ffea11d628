"""The llama.cpp server behind the proxy: connections, attempts, what it tells of itself."""
