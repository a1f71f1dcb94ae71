"""Numbered blocks between this program and a service: ``session`` and its streams, ``pull`` of one of them, ``feed``,
which many follow. A new kind of stream is a module here."""
