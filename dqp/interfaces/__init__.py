"""How people and programs reach a federation: a driver of ``dai``, an evaluator's activity, the lab of a notebook,
commands.

It imports everything else of ``dqp``, and nothing imports it. A new interface is a module here.
"""
