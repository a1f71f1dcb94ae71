"""The process around the application: uvicorn, what it does not do of HTTP/1.1, signals."""
