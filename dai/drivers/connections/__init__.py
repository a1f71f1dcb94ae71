"""The life of connections, the same for every driver: pool, hand-over, interruption, reading, bulk loads.

It imports ``dai.drivers``, ``dai.streams`` and ``dai.errors``, no database library. Code about connections that two
drivers share goes here; code of one driver stays in its package.
"""
