"""Arrow Flight between evaluators: the port of one, and reading from others."""
