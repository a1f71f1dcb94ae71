"""Perform documents: declares activities, and reads, runs and answers documents.

A document goes from ``parser`` (checked by ``validation``) to ``graph`` (links, steps), ``pipeline`` (runs it) and
``response`` (the answer; ``statuses`` are its parts that say how things stand). ``activity`` says how an activity is
declared, and lists them; ``xsd`` and ``reference`` describe them. A new activity goes into ``activities``.

It imports drivers, formats and streams; it knows neither HTTP nor jobs.
"""
