"""From the upstream's answer to the client's: one turn, its filters, and its repair."""
