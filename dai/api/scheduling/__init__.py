"""Scheduling: places for requests (``admission``), and turns of threads that encode (``turns``)."""
