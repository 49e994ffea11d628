"""The proxy as an HTTP server: listening, limits, authentication, errors, event streams."""
