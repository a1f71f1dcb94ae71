"""A resource that is one directory of files. Nothing outside it can be named: ``beneath``."""
