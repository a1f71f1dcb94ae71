"""SQL text as every driver needs it: lexing, quoting, DDL, query-scoped tables, hints.

Pure functions on texts, without a connection. What holds for one product alone goes into that driver's package.
"""
