"""Commands that give what is known of a server: printed, on a status line, to Prometheus, to agents."""
