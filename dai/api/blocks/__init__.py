"""Sends blocks of streams and feeds to readers.

``framing`` decides which readers get frames, ``following`` sends the blocks of a feed as they come, ``changes`` waits
for blocks on the event loop. The routes of streams and feeds use them; nothing here imports ``routes``.
"""
