"""Runs the Java programs of this folder. They are compiled once a process: `java X.java` compiles at every start."""

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a virtual machine that lives for a second."""


def java(program: str, *arguments: str | Path, zone: str = "UTC") -> str:
    """What the program of that name prints."""
    classes = _classes().name
    return _ran("java", *QUICK, f"-Duser.timezone={zone}", "-cp", classes, program, *map(str, arguments))


@cache
def _classes() -> "tempfile.TemporaryDirectory[str]":
    directory = tempfile.TemporaryDirectory(prefix="dai-java-")
    _ran("javac", *(f"-J{each}" for each in QUICK), "-d", directory.name, *map(str, HERE.glob("*.java")))
    return directory


def _ran(command: str, *arguments: str) -> str:
    program = shutil.which(command)
    assert program, "a JDK (17 or later) is needed to read and write WebRowSet as others do"
    done = subprocess.run([program, *arguments], capture_output=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()
