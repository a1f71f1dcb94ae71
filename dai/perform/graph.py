"""The graph of a perform document: which output feeds which input, in which steps.

``link`` checks what no schema can say (names, links, circles, sequences that contradict the links, raw end points) and
gives the frozen ``Perform``. Pure functions on values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any, Literal

from dai.errors import DocumentError, TooLargeError
from dai.perform.activity import Activity, Element, Input, fields_of
from dai.plugins import nearest
from dai.streams.stream import Stream


@dataclass(frozen=True, slots=True)
class Dialect:
    """One generation of the language: its namespace and the names of its two roots."""

    name: str
    namespace: str
    request: str
    response: str


GDS = Dialect(
    "2003/07", "http://ogsadai.org.uk/namespaces/2003/07/gds/types", "gridDataServicePerform", "gridDataServiceResponse"
)
WSI = Dialect("2005/10", "http://ogsadai.org.uk/namespaces/2005/10/types", "perform", "response")
PREVIEW = Dialect(
    "preview", "http://ogsadai.org.uk/P2R2/schemas/gds", "gridDataServicePerform", "gridDataServiceResponse"
)
DIALECTS = (GDS, WSI, PREVIEW)


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """``<session/>`` below the root: join ``id`` (none: create one of ``timeout`` seconds), ``end`` it afterwards."""

    id: str | None = None
    timeout: float | None = None
    end: bool = False


@dataclass(frozen=True, slots=True)
class EndPoint:
    """An output that no activity consumes. ``tabular``: it can be had in any result format."""

    name: str
    activity: str
    tabular: bool


@dataclass(frozen=True, slots=True)
class Perform:
    """A document that may run.

    ``steps`` are the activities open at once, each step in an order in which producers come first; ``consumers`` the
    names of the activities that take each output; ``component`` numbers the independent pipelines by activity name.
    """

    dialect: Dialect
    activities: tuple[Activity, ...]
    steps: tuple[tuple[Activity, ...], ...]
    end_points: tuple[EndPoint, ...]
    consumers: Mapping[str, tuple[str, ...]]
    component: Mapping[str, int]
    documentation: str | None = None
    session: SessionRequest | None = None
    resources: Mapping[str, int] = field(default_factory=dict)
    """The resources that the document names, each with a line."""


@dataclass(frozen=True, slots=True)
class Group:
    """``sequence`` (one after the other) or ``flow`` (at once) around activities and groups."""

    kind: Literal["sequence", "flow"]
    members: tuple[Activity | Group, ...]


def link(
    dialect: Dialect, root: Group, documentation: str | None, session: SessionRequest | None, chain: int
) -> Perform:
    """``chain``: how many activities may follow one another. DocumentError with the line, TooLargeError."""
    activities = tuple(_flattened(root))
    if not activities and session is None:
        raise DocumentError("The document has no activity.", line=1, expected="at least one activity")
    named: dict[str, Activity] = {}
    for activity in activities:
        if activity.name in named:
            raise DocumentError(
                f"Two activities have the name {activity.name!r}; the first is at line {named[activity.name].line}.",
                line=activity.line,
                element=activity.element,
                expected="a different name",
            )
        named[activity.name] = activity
    producers: dict[str, Activity] = {}
    for activity in activities:
        for port in activity.outputs:
            if port.link in producers:
                raise DocumentError(
                    f"Two outputs have the name {port.link!r}; the first is at line {producers[port.link].line}.",
                    line=port.line,
                    element=port.element,
                    expected="a different name",
                )
            producers[port.link] = activity
    consumers: dict[str, list[str]] = {link: [] for link in producers}
    for activity in activities:
        for source in activity.inputs:
            if source.link not in producers:
                raise DocumentError(
                    f"{activity.name!r} takes its input from {source.link!r}, but no activity has an output of "
                    "that name.",
                    line=source.line or activity.line,
                    element=activity.element,
                    expected="the name of an output",
                    hint=nearest(source.link, list(producers)) if producers else None,
                )
            consumers[source.link].append(activity.name)
    order = _ordered(activities, producers)
    _check_chain(sorted(activities, key=lambda each: order[each.name]), producers, chain)
    steps = _schedule(root, sorted(activities, key=lambda each: order[each.name]), producers)
    _check_steps(steps, producers)
    ends = _end_points(activities, producers, consumers)
    return Perform(
        dialect,
        activities,
        steps,
        ends,
        {link: tuple(names) for link, names in consumers.items()},
        _components(activities, root, producers),
        documentation,
        session,
    )


def _flattened(group: Group) -> Iterator[Activity]:
    for member in group.members:
        if isinstance(member, Group):
            yield from _flattened(member)
        else:
            yield member


def _ordered(activities: tuple[Activity, ...], producers: Mapping[str, Activity]) -> dict[str, int]:
    """Each activity's place in an order that follows the links; ties stay in document order."""
    sorter = TopologicalSorter(
        {each.name: [producers[source.link].name for source in each.inputs] for each in activities}
    )
    try:
        return {name: place for place, name in enumerate(sorter.static_order())}
    except CycleError as error:
        names = error.args[1]
        first = next(each for each in activities if each.name == names[0])
        raise DocumentError(
            f"The links run in a circle: {' → '.join(names)}.",
            line=first.line,
            element=first.element,
            expected="links without a circle",
        ) from error


def _steps(member: Activity | Group) -> list[list[Activity]]:
    if isinstance(member, Activity):
        return [[member]]
    below = [_steps(each) for each in member.members]
    if member.kind == "sequence":
        return [step for steps in below for step in steps]
    longest = max((len(steps) for steps in below), default=0)
    return [[each for steps in below if place < len(steps) for each in steps[place]] for place in range(longest)]


def _schedule(
    root: Group, ordered: list[Activity], producers: Mapping[str, Activity]
) -> tuple[tuple[Activity, ...], ...]:
    """The steps; what stands in no sequence runs as late as what it takes its input from."""
    place = {activity.name: number for number, step in enumerate(_steps(root)) for activity in step}
    free = set(_free(root))
    for each in ordered:
        if each.name in free:
            place[each.name] = max([place[producers[source.link].name] for source in each.inputs], default=0)
    count = max(place.values(), default=-1) + 1
    return tuple(tuple(each for each in ordered if place[each.name] == number) for number in range(count))


def _free(group: Group) -> Iterator[str]:
    """The activities that stand in no sequence."""
    for member in group.members if group.kind != "sequence" else ():
        if isinstance(member, Group):
            yield from _free(member)
        else:
            yield member.name


def _check_steps(steps: tuple[tuple[Activity, ...], ...], producers: Mapping[str, Activity]) -> None:
    place = {activity.name: number for number, step in enumerate(steps) for activity in step}
    for step in steps:
        for activity in step:
            for source in activity.inputs:
                if place[producers[source.link].name] > place[activity.name]:
                    raise DocumentError(
                        f"The sequence runs {activity.name!r} before {producers[source.link].name!r}, whose output "
                        "it takes.",
                        line=activity.line,
                        element=activity.element,
                        expected="the producer first",
                    )


def _end_points(
    activities: tuple[Activity, ...], producers: Mapping[str, Activity], consumers: Mapping[str, list[str]]
) -> tuple[EndPoint, ...]:
    ends = []
    for activity in activities:
        for port in activity.outputs:
            if consumers[port.link]:
                continue
            if port.element in activity.raw:
                raise DocumentError(
                    f"No activity takes the raw result set {port.link!r}, and a response cannot carry it.",
                    line=port.line,
                    element=port.element,
                    expected="an activity that takes it",
                    hint=f'Add <sqlResultsToXML name="…"><resultSet from="{port.link}"/><webRowSet name="…"/>'
                    "</sqlResultsToXML>.",
                )
            ends.append(EndPoint(port.link, activity.name, _tabular(port.link, producers)))
    return tuple(ends)


def _tabular(link: str, producers: Mapping[str, Activity]) -> bool:
    activity = producers[link]
    if activity.tabular == "like its input":
        sources = [source.link for source in activity.inputs]
        if sources:
            return all(_tabular(each, producers) for each in sources)
    elif activity.tabular is not None:
        return activity.tabular == "yes"
    kinds = {
        name: spec.kind for spec in fields_of(type(activity)) if spec.place.how == "output" for name in spec.place.names
    }
    port = next(each for each in activity.outputs if each.link == link)
    return kinds.get(port.element) is Stream


def _components(activities: tuple[Activity, ...], root: Group, producers: Mapping[str, Activity]) -> dict[str, int]:
    """Numbers the independent pipelines: what fails in one does not stop another. The members of a sequence belong
    together: what follows a failed one must not run."""
    number = {activity.name: place for place, activity in enumerate(activities)}
    together = [(activity.name, producers[source.link].name) for activity in activities for source in activity.inputs]
    for group in _groups(root):
        if group.kind == "sequence":
            names = [activity.name for activity in _flattened(group)]
            together.extend(pairwise(names))
    for one, another in together:
        joined, other = number[one], number[another]
        if joined != other:
            number = {name: other if at == joined else at for name, at in number.items()}
    return number


def _groups(group: Group) -> Iterator[Group]:
    yield group
    for member in group.members:
        if isinstance(member, Group):
            yield from _groups(member)


def _check_chain(ordered: list[Activity], producers: Mapping[str, Activity], chain: int) -> None:
    length: dict[str, int] = {}
    for activity in ordered:
        before = [length[producers[source.link].name] for source in activity.inputs]
        length[activity.name] = 1 + max(before, default=0)
        if length[activity.name] > chain:
            raise TooLargeError(f"The chain of activities up to {activity.name!r} is longer than the {chain} allowed.")


def takes_tuples(link: str, activities: Iterable[Activity]) -> bool:
    """Whether all that take the output of that name take tuples, in whatever form they come."""
    kinds = {kind for activity in activities for each, kind in _inputs(activity) if each == link}
    return kinds == {Stream}


def _inputs(thing: Any) -> Iterator[tuple[str, Any]]:
    for spec in fields_of(type(thing)):
        values = getattr(thing, spec.field)
        for value in values if isinstance(values, tuple) else (values,):
            if isinstance(value, Input):
                yield value.link, spec.kind
            elif isinstance(value, Element):
                yield from _inputs(value)
