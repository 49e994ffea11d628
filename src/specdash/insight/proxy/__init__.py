"""The proxy's clients: sessions, the prefix cache, fairness."""
