"""The process around the application: uvicorn, parts of HTTP/1.1 that uvicorn lacks, signals."""
