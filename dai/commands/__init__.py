"""The commands of ``dai``: one module for each group, each with ``add(subparsers)``.

A command is a function of its parsed arguments that gives an exit code. It raises ``DaiError`` for what went wrong,
which ``dai.__main__`` prints for people. What a command does not need is not imported.
"""

OK = 0
FAILED = 1
"""The service or the database said no, or could not be reached."""
USAGE = 2
"""The command line, a file it names, or the configuration is wrong."""
INTERRUPTED = 130

SERVER = "http://127.0.0.1:8080"
