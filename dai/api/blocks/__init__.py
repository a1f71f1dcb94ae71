"""Blocks of streams and feeds on their way to readers.

``framing`` decides who gets frames, ``following`` sends the blocks of a feed as they come, ``changes`` waits for blocks
on the event loop. The routes of streams and feeds use them; nothing here imports ``routes``.
"""
