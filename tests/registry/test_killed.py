"""A process that publishes, annotates and renews is killed at twelve points: what it had acknowledged is there, and of
what it was doing all or nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dai.config import RegistryConfig
from dai.service.registry.registry import Registry

pytestmark = pytest.mark.server
POINTS, AT_ONCE = 12, 4
CHANGING = """
import json, sys
from dai.config import RegistryConfig
from dai.security.identity import Caller
from dai.service.registry import operations
from dai.service.registry.entries import Entry, Metadata
from dai.service.registry.registry import Registry

settings = RegistryConfig(store=sys.argv[1])
registry, caller = Registry(settings), Caller("alice")

def say(*what):
    print(json.dumps(what), flush=True)

def publish(*entries):
    listed = [operations.Publication(each, 1e6) for each in entries]
    registry.change(lambda draft: operations.publish(draft, caller, listed, settings))

for step in range(100_000):
    key = f"urn:s:{step}"
    say("publish", [key, *(f"{key}:{at}" for at in range(200))])
    publish(
        Entry(key=key, kind="service", names=((key, ""),)),
        *(Entry(key=f"{key}:{at}", kind="resource", parent=key, names=(("r", ""),)) for at in range(200)),
    )
    say("done")
    say("publish", [f"{key}:m"])
    publish(Entry(key=f"{key}:m", kind="metadata", parent=key, metadata=Metadata(type="urn:t:t", value="v")))
    say("done")
    say("renew", [key])
    registry.change(lambda draft: operations.renew(draft, caller, [key], 2e6, settings))
    say("done")
    say("delete", [f"{key}:{at}" for at in range(0, 200, 2)])
    registry.change(lambda draft: operations.delete(draft, caller, [f"{key}:{at}" for at in range(0, 200, 2)]))
    say("done")
"""


def applied(known: dict[str, float], operation: str, keys: list[str]) -> dict[str, float]:
    """Keys with how long their leases are."""
    if operation == "delete":
        return {key: seconds for key, seconds in known.items() if key not in keys}
    return known | dict.fromkeys(keys, 2e6 if operation == "renew" else 1e6)


def killed(location: str, after: int) -> list[str]:
    process = subprocess.Popen([sys.executable, "-c", CHANGING, location], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(after)]
    process.kill()
    said += process.stdout.readlines()
    process.wait()
    return said


@pytest.mark.parametrize("batch", range(POINTS // AT_ONCE))
def test_what_was_acknowledged_is_there(tmp_path: Path, batch: int) -> None:
    for at in range(AT_ONCE):
        location = f"sqlite:///{tmp_path / f'{at}.db'}"
        said = [json.loads(line) for line in killed(location, 1 + batch * AT_ONCE + at) if line.endswith("\n")]
        known: dict[str, float] = {}
        begun: tuple[str, list[str]] | None = None
        for what, *keys in said:
            if what == "done":
                assert begun is not None
                known, begun = applied(known, *begun), None
            else:
                begun = what, keys[0]
        possible = [known] if begun is None else [known, applied(known, *begun)]
        registry = Registry(RegistryConfig(store=location))
        with registry.reading() as mirror:
            there = {
                key: 1e6 if (each.expires or 0.0) - each.published < 1.5e6 else 2e6
                for key, each in mirror.entries.items()
            }
        registry.close()
        assert there in possible, f"after {len(said)} lines"
