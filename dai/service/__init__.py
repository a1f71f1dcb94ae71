"""Keeps what outlives a request: resources, sessions, jobs, their results, and the state database.

The package imports ``dai.perform`` and below, and knows no HTTP. A new kind of thing that outlives a request is a
module here; rows of the state database are in ``state``.
"""
