"""Generated queries: does a federation answer as one DuckDB database that holds all the data?

``schema`` has eight small tables over four sources, full of odd values. ``grammar`` writes a query for an
integer seed, out of ``relations`` (FROM), ``aggregates``, ``predicates`` and ``expressions``, or fills one of the
``forms``. ``oracle`` is the one database; ``differential`` asks both and compares; ``shrink`` makes a failing query
small; ``report`` prints it. ``parameters`` puts values in the place of constants, ``worlds`` has views and uploaded
tables, and ``blocks`` asks for all of these the same texts again and again.

The grammar is a seeded ``random.Random`` rather than hypothesis strategies: a query is one integer, made in half a
millisecond and the same on every machine, and the shrinker cuts the parsed query instead of the choices behind it,
which gives smaller queries (a query gives way to its subquery) and works for queries
written by hand too.

    python -m tests.dqp.generated 42                 # prints the query of seed 42 and DuckDB's answer
    python -m tests.dqp.generated fuzz --seconds 600 # real databases, a federation, new seeds until the time is over
    python -m tests.dqp.generated fuzz --block 42    # the 42nd block of questions with parameters, once

``--runtime service`` runs the plans on two evaluators behind a data service, ``--runtime ray`` on two of a local Ray
cluster and over files alone; everything is spread there that can be. ``make fuzz SECONDS=600 RUNTIME=service`` is the
same. With ``--eager`` whatever may pay (semi-joins, early aggregates …) is done, however small the tables. With
``--overtaking`` (``make fuzz OVERTAKING=1``) statements are overtaken by their alternatives, and sources answer at
random moments; at the end no statement may run.
"""
