"""Benchmarks: each compares with a peer or the bare driver in the same run and prints ratios.

``make bench`` (``python -m perf``) runs all of them and writes tables and plots to ``perf/results``, which name the
machine; ``python -m perf bulk blocks --rounds 7`` runs some. Every benchmark is a module with ``run(world, rounds)``
that returns its ``Report``; ``perf.__main__.BENCHMARKS`` lists them. Cases of one comparison take turns within each
round, so that a machine that slows down slows all of them; medians are compared.
"""
