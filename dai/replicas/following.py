"""Follows a replica index: asks it which catalogs have some names, and then those catalogs.

Only catalogs that the caller allows are asked, so that an index cannot send it, or its token, anywhere else. A catalog
that does not answer is passed over: what it said last counts, until another request is answered. An index may be wrong
of a name (a filter, a catalog that has changed): the catalog says so by having no target.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dai.errors import DaiError, DataError, UnreachableError
from dai.replicas.client import Attributes, Locations, ReplicaClient

AT_ONCE = 8
MOST_CATALOGS = 100
"""That are asked for one query; those of the names that are asked for first."""


@dataclass(frozen=True)
class _Said:
    """``why``: it did not answer now."""

    locations: Locations | None
    why: str = ""
    error: DaiError | None = None


class IndexClient:
    """Thread-safe. ``client_at`` gives the client of the catalog at a URL; None for one that may not be asked. Each
    call raises the error of the index, and that of a catalog if none of them answers."""

    def __init__(self, index: ReplicaClient, client_at: Callable[[str], ReplicaClient | None]) -> None:
        self._index, self._client_at = index, client_at
        self._clients: dict[str, ReplicaClient] = {}
        self._last: dict[str, Locations] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="replica catalogs")

    def find(self, names: Iterable[str]) -> Locations:
        """What the catalogs say of the names together. Of a target that several know counts the entry that ends last,
        else that of the first catalog by name."""
        asked: dict[str, list[str]] = {}
        for name, urls in sorted(self._located(list(names)).items()):
            for url in urls:
                asked.setdefault(url, []).append(name)
        said = {each: self._ask(each, asked[each]) for each in sorted(asked)[:MOST_CATALOGS]}
        answers = {url: each() for url, each in said.items()}
        errors = [each.error for each in answers.values() if each.error is not None]
        if errors and all(each.locations is None for each in answers.values()):
            raise errors[0]
        return _together(answers, asked)

    def names(self, most: int) -> list[str]:
        """Logical names of tables, of all catalogs that answer."""
        try:
            urls = [str(each["catalog"]) for each in self._index.ask("GET", "/index/catalogs")["catalogs"]]
        except (KeyError, TypeError) as error:
            raise DataError("The address answers, but it is not a replica index.") from error
        clients = [self._client(each) for each in urls[:MOST_CATALOGS]]
        names: set[str] = set()
        for each in self._pool.map(lambda client: _names(client, most), filter(None, clients)):
            names.update(each)
        return sorted(names)[:most]

    def _located(self, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
        answer = self._index.ask("POST", "/index/query", {"names": names})
        try:
            return {name: [str(each) for each in answer["found"].get(name, ())] for name in names}
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError("The address answers, but it is not a replica index.") from error

    def _ask(self, url: str, names: Sequence[str]) -> Callable[[], _Said]:
        client = self._client(url)
        if client is None:
            return lambda: _Said(None, "it may not be asked")

        def ask() -> _Said:
            try:
                locations = client.find(names)
            except DaiError as error:
                last = self._last.get(url)
                away = isinstance(error, UnreachableError)
                why = "it does not answer" if away else f"it refuses: {error.title}"
                return _Said(None if last is None else _only(last, names), why, error)
            with self._lock:
                known = self._last.get(url, Locations())
                self._last[url] = Locations(
                    {**known.targets, **{each: locations.targets.get(each, ()) for each in names}},
                    {**known.logical, **locations.logical},
                    {**known.attributes, **locations.attributes},
                )
            return _Said(locations)

        return self._pool.submit(ask).result

    def _client(self, url: str) -> ReplicaClient | None:
        with self._lock:
            if url not in self._clients and (client := self._client_at(url)) is not None:
                self._clients[url] = client
            return self._clients.get(url)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._index.close()
        for each in self._clients.values():
            each.close()


def _names(client: ReplicaClient, most: int) -> list[str]:
    try:
        return client.names(most)
    except DaiError:
        return []


def _only(locations: Locations, names: Sequence[str]) -> Locations:
    targets = {name: locations.targets[name] for name in names if locations.targets.get(name)}
    return Locations(targets, locations.logical, locations.attributes)


def _together(answers: Mapping[str, _Said], asked: Mapping[str, Sequence[str]]) -> Locations:
    targets: dict[str, list[str]] = {}
    logical: dict[str, Attributes] = {}
    attributes: dict[str, Attributes] = {}
    told_by: dict[str, str] = {}
    faults: dict[str, dict[str, str]] = {}
    for url, said in answers.items():
        for name in asked[url] if said.why else ():
            faults.setdefault(name, {})[url] = said.why
        locations = said.locations or Locations()
        for name, there in locations.targets.items():
            known = targets.setdefault(name, [])
            known += [each for each in there if each not in known]
            logical.setdefault(name, locations.logical.get(name, {}))
            for target in there:
                new, old = locations.attributes.get(target, {}), attributes.get(target)
                if old is None or _ends(new) > _ends(old):
                    attributes[target], told_by[target] = new, url
    return Locations(targets, logical, attributes, told_by, faults)


def _ends(attributes: Attributes) -> float:
    return float(attributes.get("expires", 0.0))
