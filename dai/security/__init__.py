"""Identifies callers and checks what they may do. ``identity`` identifies them: one module for each method. It knows of
HTTP only the headers of a request, and of the service only its arguments; ``dai.api`` calls it once for each
request."""
