"""The text forms of values, both ways, column by column with Arrow's compute kernels.

``text`` chooses by Arrow type; ``binary``, ``lists`` and ``temporal`` hold the types that take more than a cast. The
text formats (CSV, JSON, WebRowSet) use them. The text form of a new Arrow type goes here.
"""
