"""What a data service keeps between requests: resources, sessions, jobs, the state store, results.

It imports ``dai.perform`` and below, and knows no HTTP. A new kind of thing that outlives a request goes here.
"""
