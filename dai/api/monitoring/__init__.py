"""What a service says of itself: metrics, logs, and why answers broke off."""
