"""The llama.cpp server behind the proxy: connections, attempts, its own facts."""
