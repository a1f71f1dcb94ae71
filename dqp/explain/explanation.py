"""The explanation of a query, in the formats text, JSON, SVG and a notebook's HTML."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass, field
from typing import Any

from dqp.explain.json import read, values
from dqp.explain.nodes import Node
from dqp.explain.svg import drawn
from dqp.explain.text import duration, lines


@dataclass(frozen=True, repr=False)
class Explanation:
    """``root``: the plan. ``fragments``: what each evaluator did, with the operators of its engine below it;
    ``remarks``: why something was not left to a source, what was adapted; ``seconds``: of planning and running."""

    root: Node
    sql: str
    remarks: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    fragments: tuple[Node, ...] = ()

    @classmethod
    def of(cls, text: str) -> Explanation:
        """What ``json`` says."""
        plan = json.loads(text)
        fragments = tuple(map(read, plan.get("fragments", ())))
        return cls(read(plan["plan"]), plan["sql"], tuple(plan["remarks"]), plan["seconds"], fragments)

    @property
    def text(self) -> str:
        """For a terminal. Long lists of values are shortened."""
        text = list(lines(self.root))
        for each in self.fragments:
            text += ["", *lines(each)]
        if self.remarks:
            text += ["", *(f"Remark: {each}" for each in self.remarks)]
        if self.seconds:
            text += ["", ", ".join(f"{name} {duration(each)}" for name, each in self.seconds.items())]
        return "\n".join(text)

    @property
    def json(self) -> str:
        """All there is to know, every statement in full."""
        plan: dict[str, Any] = {
            "sql": self.sql,
            "plan": values(self.root),
            "remarks": list(self.remarks),
            "seconds": self.seconds,
        }
        if self.fragments:
            plan["fragments"] = list(map(values, self.fragments))
        return json.dumps(plan, ensure_ascii=False, indent=2)

    @property
    def svg(self) -> str:
        """The drawing of the plan."""
        return drawn(self.root)

    @property
    def engines_svg(self) -> str:
        """The drawing of what the operators of the engines did, for each fragment; empty where nobody knows."""
        return drawn(*self.fragments) if self.fragments else ""

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """What a notebook shows: the plan drawn, the fragments and the text below it to unfold."""
        parts = [f'<div style="overflow-x:auto">{drawn(self.root)}</div>']
        if below := self.engines_svg:
            parts.append(
                f'<details><summary>in the engines</summary><div style="overflow-x:auto">{below}</div></details>'
            )
        parts.append(f"<details><summary>as text</summary><pre>{html.escape(self.text)}</pre></details>")
        return "".join(parts)
