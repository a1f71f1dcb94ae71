"""The commands of ``dai``: one module for each group, each with ``add(subparsers)``.

A command is a function of its parsed arguments that returns an exit code. It raises a ``DaiError`` for a failure, which
``dai.__main__`` prints. A command imports only what it needs.
"""

OK = 0
FAILED = 1
"""The service or the database refused, or could not be reached."""
USAGE = 2
"""The command line, a file it names, or the configuration is wrong."""
INTERRUPTED = 130

SERVER = "http://127.0.0.1:8080"
