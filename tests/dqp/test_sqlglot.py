"""Versions of sqlglot that dqp cannot extend."""

import subprocess
import sys

COMPILED = """
from sqlglot.generators import duckdb
duckdb.__file__ = duckdb.__file__.replace(".py", ".so")
import dqp
dqp.connect({})
"""


def test_the_compiled_one_is_refused_with_what_to_do() -> None:
    """Before, each query ended with a TypeError of interpreted classes that cannot inherit from compiled."""
    ran = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "pip uninstall sqlglotc" in ran.stderr
