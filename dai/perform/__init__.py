"""Perform documents: what an activity is, how a document is read, run and answered.

A document goes from ``parser`` (checked against ``xsd``) to ``graph`` (links, steps), ``pipeline`` (runs it),
``progress`` (how it stands) and ``response`` (the answer). ``activity`` says how an activity is declared, and lists
them. It imports drivers, formats and streams; it knows neither HTTP nor jobs. A new activity is a module in
``activities``.
"""
