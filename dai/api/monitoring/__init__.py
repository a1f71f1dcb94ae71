"""What a service says of itself: metrics, logs, why answers broke off; ``access`` writes them for each request."""
