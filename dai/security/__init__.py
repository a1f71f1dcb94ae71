"""Who asks, and what they may do. ``identity`` says who: one module a method. It knows nothing of HTTP but the headers
of a request, and nothing of the service but what it is given; ``dai.api`` asks it once a request."""
