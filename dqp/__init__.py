"""dqp: distributed queries, a guest of ``dai``.

One SQL query over tables in many data services becomes a plan of operators cut at exchanges into fragments. The
largest subtrees whose tables share a source run in that source's database; what remains runs on evaluator nodes, in a
pipeline, partitioned where that pays. A federation is one more ``dai`` driver and an evaluator one more activity, so
``dqp`` imports ``dai`` and never the other way round.
"""
