"""The operators of a query's tree and the values in it: tables, types, keys, constants, functions.

Pure values: no source is asked and no SQL is written here. It imports ``dai`` alone. A new operator goes into
``operators``.
"""
