"""Follows a registry: which resources fit a query, as long as the leases of their services hold.

One thread reads the feed of changes, renewals of leases among them; another one asks the query again when something
else has changed. While the registry does not answer, its last answer counts until the leases end. Before a lease counts
as ended, ``check`` asks the registry once more.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dai.client import Options
from dai.client.http.transport import Reply
from dai.client.registry import RegistryClient
from dai.errors import CancelledError, DaiError, DataError, NotFoundError, UnreachableError
from dai.streams.cancellation import Cancellation
from dqp.catalog.discovery.conditions import VARIABLES
from dqp.catalog.discovery.leases import Leases
from dqp.settings import RegistrySettings, within

log = logging.getLogger("dqp.registry")
FIRST_SECONDS = 10.0
"""Seconds that the first query waits for the registry."""
AGAIN_SECONDS, RETRY_SECONDS = 0.2, 5.0
"""Seconds until a registry that did not answer is asked again: the first pause, and the longest; each is twice the one
before."""
EVALUATED_SECONDS = 1.0
"""Least seconds between two runs of the query while changes follow each other."""
SILENT_SECONDS = 45.0
"""Seconds without a sign of life after which the feed is opened again: three times the registry's longest silence."""
PROMPT_SECONDS = 2.0
"""Seconds that a query waits for the answer whether a lease holds."""


@dataclass(frozen=True, order=True)
class Discovered:
    """A resource, or an evaluator, at an address; ``service``: the key of its service; ``publisher``: its owner."""

    address: str
    service: str
    publisher: str


class Follower:
    """Thread-safe. ``changed`` gets all entries that fit, in the order of addresses, when they have changed."""

    def __init__(
        self, settings: RegistrySettings, options: Options, query: str, changed: Callable[[Sequence[Discovered]], None]
    ) -> None:
        self.problems: Mapping[str, str] = {}
        """Why an entry is not used, or there is none, by the address."""
        self._settings, self._query, self._changed = settings, query, changed
        self._calls = Cancellation()
        options = replace(options, token=settings.token, ca=settings.ca or options.ca)
        options = replace(options, connect=PROMPT_SECONDS, retries=0, compression="identity")
        self._client = RegistryClient(settings.url, replace(options, read=SILENT_SECONDS), self._calls)
        self._prompt = RegistryClient(settings.url, replace(options, read=PROMPT_SECONDS), self._calls)
        self._lock = threading.RLock()
        self._leases = Leases()
        self._all: tuple[Discovered, ...] = ()
        """What fits, whether or not its lease holds."""
        self._announced: tuple[Discovered, ...] = ()
        self._next_end = time.monotonic()
        self._believes, self._asking = True, threading.Lock()
        self._begun, self._stopped, self._dirty = threading.Event(), threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=target, name="registry", daemon=True) for target in (self._follow, self._evaluate)
        ]
        for each in self._threads:
            each.start()

    def check(self) -> None:
        """Call this before you use the entries: it removes those whose lease has ended."""
        if not self._begun.is_set():
            self._begun.wait(FIRST_SECONDS)
        if time.monotonic() >= self._next_end:
            self._settle()

    def _settle(self) -> None:
        with self._lock:
            away = False
            for key in self._leases.ended(time.monotonic()):
                try:
                    holds = not away and self._lease_holds(self._prompt, key)
                except UnreachableError:
                    holds, away = False, True
                except DaiError:
                    holds = False
                if not holds:
                    self._leases.drop(key)
            self._tell()

    def _lease_holds(self, client: RegistryClient, key: str) -> bool:
        """Asks the registry whether the lease of the service holds, and until when."""
        sent = time.monotonic()
        try:
            entry = client.entry(key)
        except NotFoundError:
            return False
        try:
            with self._lock:
                self._leases.clock(sent, float(entry["time"]))
                self._leases.hold(key, entry.get("expires"))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError("The registry answered with something that is not an entry.") from error
        return not entry.get("deprecated") and key not in self._leases.ended(time.monotonic())

    def _tell(self) -> None:
        """With the lock."""
        self._next_end = self._leases.next_end()
        current = tuple(each for each in self._all if self._leases.known(each.service))
        if current != self._announced:
            self._announced = current
            self._changed(current)

    # --- the feed ---

    def _follow(self) -> None:
        pause = AGAIN_SECONDS
        while not self._stopped.is_set():
            try:
                number = self._begin()
                pause = AGAIN_SECONDS
                with self._calls_feed(number) as reply:
                    for event in _events(reply):
                        self._hear(event)
            except CancelledError:
                return
            except DaiError as error:
                self._note({self._settings.url: f"The registry does not answer: {error.title}."})
            except Exception as error:
                log.error("following a registry failed", exc_info=error)
            self._begun.set()
            self._stopped.wait(pause)
            pause = min(2 * pause, RETRY_SECONDS)

    def _begin(self) -> int:
        """Starts from the beginning, because it may be another process of the registry; returns the number of its last
        change."""
        sent = time.monotonic()
        about = self._client.ask("GET", "")
        try:
            number, answered, identified = int(about["number"]), float(about["time"]), bool(about["identified"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError("The address answers, but it is not a registry.") from error
        with self._lock:
            self._leases.clock(sent, answered, anew=True)
        self._believes = bool(self._settings.publishers) or not identified
        if not self._believes:
            self._note({self._settings.url: "The registry knows who publishes; the setting publishers must say whom."})
            with self._lock:
                self._all = ()
                self._tell()
        else:
            self._ask(anew=True)
        self._begun.set()
        return number

    def _calls_feed(self, number: int) -> _Feed:
        return _Feed(self._client.changes(number))

    def _hear(self, event: Mapping[str, Any]) -> None:
        action, key = event.get("action"), event.get("key")
        with self._lock:
            if isinstance(key, str) and self._leases.known(key):
                if action in ("deprecated", "deleted"):
                    self._leases.drop(key)
                elif isinstance(event.get("expires"), int | float):
                    self._leases.hold(key, event["expires"])
                self._tell()
        if action != "renewed":
            self._dirty.set()

    # --- the query ---

    def _evaluate(self) -> None:
        while True:
            self._dirty.wait()
            self._dirty.clear()
            if self._stopped.is_set():
                return
            try:
                if self._believes:
                    self._ask()
            except CancelledError:
                return
            except DaiError:
                self._dirty.set()
            except Exception as error:
                log.error("a query of a registry failed", exc_info=error)
            self._stopped.wait(EVALUATED_SECONDS)

    def _ask(self, *, anew: bool = False) -> None:
        """Asks which resources fit and whether the leases of their services hold; ``anew``: also for known services."""
        with self._asking:
            self._ask_once(anew)

    def _ask_once(self, anew: bool) -> None:
        solutions = self._client.sparql(self._query)
        wanted = next((each for each in VARIABLES if solutions and each in solutions[0]), VARIABLES[0])
        keys = sorted({each[wanted] for each in solutions if wanted in each})
        fitting, problems = set(), {}
        for each in self._client.sparql(_described(keys, wanted)) if keys else ():
            why = self._refused(each)
            if why is None:
                fitting.add(Discovered(each["address"], each["service"], each["owner"]))
            else:
                problems[each["address"]] = why
        if solutions and not any(wanted in each for each in solutions):
            problems[self._settings.url] = f"The query has none of the variables {', '.join(VARIABLES)}."
        services = {each.service for each in fitting}
        with self._lock:
            known = set() if anew else {each for each in services if self._leases.known(each)}
        holding = known | {each for each in services - known if self._lease_holds(self._client, each)}
        with self._lock:
            self._all = tuple(sorted(fitting))
            self._leases.keep(holding)
            self._note(problems)
            self._tell()

    def _refused(self, entry: Mapping[str, str]) -> str | None:
        """Why the entry is not trusted, or its address not used; None if it is."""
        owners = {entry["owner"], entry["holder"]}
        if not owners <= set(self._settings.publishers or ("",)):
            return "Its publisher is not listed in publishers."
        try:
            allowed = any(within(entry["address"], each) for each in self._settings.allow)
        except ValueError:
            allowed = False
        return None if allowed else "Its address is not listed in allow."

    def _note(self, problems: Mapping[str, str]) -> None:
        for address, why in problems.items():
            if self.problems.get(address) != why:
                log.warning("%s: %s", address, why)
        self.problems = problems

    def close(self) -> None:
        self._stopped.set()
        self._dirty.set()
        self._calls.cancel(CancelledError("The federation is closed."))
        for each in self._threads:
            each.join(PROMPT_SECONDS)
        self._client.close()
        self._prompt.close()


def _described(keys: Sequence[str], wanted: str) -> str:
    """The SPARQL query for the resources that are the keys, or are below or above them, with their services and
    owners."""
    path = {
        "resource": "FILTER(?resource = ?key)",
        "table": "?key dct:isPartOf ?resource .",
        "service": "?resource dct:isPartOf ?key .",
    }[wanted]
    values = " ".join(f"<{each}>" for each in keys if not set('<> "{}|\\^`') & set(each))
    return f"""PREFIX : <urn:dai:registry:>
PREFIX dct: <http://purl.org/dc/terms/>
SELECT DISTINCT ?service ?owner ?holder ?address WHERE {{
VALUES ?key {{ {values} }}
?resource dct:isPartOf ?service ; :owner ?owner ; :address ?address ; :kind ?kind .
?service a :Service ; :owner ?holder .
FILTER(?kind IN ("database", "evaluator"))
{path}
}}"""


class _Feed:
    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def __enter__(self) -> Reply:
        return self._reply

    def __exit__(self, *_: object) -> None:
        self._reply.body.close()


def _events(reply: Reply) -> Iterator[Mapping[str, Any]]:
    """The data of server-sent events. UnreachableError at the end, or where the registry says that it fails."""
    rest, kind = b"", ""
    while piece := reply.body.read1():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            name, _, value = line.partition(b": ")
            if name == b"event":
                kind = value.decode()
            elif name == b"data":
                if kind == "error":
                    raise UnreachableError("The registry ended its feed of changes.")
                try:
                    event = json.loads(value)
                except ValueError as error:
                    raise DataError("The registry sent something that is not a change.") from error
                if isinstance(event, dict):
                    yield event
    raise UnreachableError("The registry ended its feed of changes.")
