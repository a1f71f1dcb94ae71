"""Monitoring of a service: metrics, logs, why answers broke off; ``access`` writes them for each request."""
