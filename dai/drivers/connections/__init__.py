"""The life of connections, the same for every driver: pool, hand-over, interruption, reading, bulk loads.

It imports ``dai.drivers``, ``dai.streams`` and ``dai.errors``, no database library. What two drivers do alike with a
connection goes here; what one does alone stays in its package.
"""
