"""A lab whose callers are users of a database, by a map of roles."""

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

import dqp  # noqa: F401 - federations
from dai.api.server.serve import Background, background
from dai.config import parse
from dai.security.identity.tokens import new

CALLERS: dict[str, tuple[str, ...]] = {"alice": (), "bob": ("staff",), "carol": (), "root": (), "": ()}
"""Groups by name; carol is in no role map, root an administrator."""
SECRETS = {user: f"planted-{user}-Zx9" for user in ("alice_db", "staff_db", "guest_db", "all_db")}
ENVIRONMENT = {f"OF_{user.upper()}": secret for user, secret in SECRETS.items()}
XML_MAP = """<?xml version="1.0" encoding="UTF-8"?>
<DatabaseRoles xmlns="http://ogsadai.org.uk/namespaces/2003/07/roles"><!-- who is whom -->
  <Database name="notes">
    <User dn="alice" userid="alice_db" password="env:OF_ALICE_DB"/>
    <User dn="group:staff" userid="staff_db" password="file:staff.secret"/>
    <User dn="No Certificate Provided" userid="guest_db" password="env:OF_GUEST_DB"/>
  </Database>
  <Database name="another"><User dn="*" userid="all_db" password="env:OF_ALL_DB"/></Database>
</DatabaseRoles>
"""
TOML_MAP = """
[[notes]]
caller = "alice"
user = "alice_db"
password = "env:OF_ALICE_DB"
[[notes]]
caller = "group:staff"
user = "staff_db"
password = "file:staff.secret"
[[notes]]
caller = "anonymous"
user = "guest_db"
password = "env:OF_GUEST_DB"
[[another]]
caller = "*"
user = "all_db"
password = "env:OF_ALL_DB"
"""


@dataclass
class Lab:
    """A service over a database whose users see rows of their own: the resource ``notes``, with a role map, and the
    federation ``all`` over it."""

    kind: str
    directory: Path
    url: str
    running: Background
    tokens: dict[str, str]

    def client(self, who: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"} if who else {}
        return httpx.Client(base_url=self.running.url, headers=headers, timeout=60)

    def csv(self, who: str, sql: str, **headers: str) -> list[str]:
        with self.client(who) as client:
            answer = client.post("/resources/notes/query", json={"sql": sql}, headers={"Accept": "text/csv", **headers})
        assert answer.status_code == 200, answer.text
        return answer.text.splitlines()[1:]

    @property
    def map(self) -> Path:
        return self.directory / ("roles.xml" if self.kind == "postgresql" else "roles.toml")

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / "audit.jsonl").read_text().splitlines()]


def config(kind: str, directory: Path, url: str, **more: Any) -> Any:
    (directory / "staff.secret").write_text(f"{SECRETS['staff_db']}\n")
    name, text = ("roles.xml", XML_MAP) if kind == "postgresql" else ("roles.toml", TOML_MAP)
    (directory / name).write_text(text)
    policy = {"read": ["*", "anonymous"], "write": ["alice", "bob", "carol"]}
    sections = {
        "service": {
            "port": 0, "state": "sqlite:///state.db", "results_directory": str(directory / "results"), "grace": 0.2,
        },
        "identity": {"methods": ["token"], "anonymous": True, "kept_seconds": 0.0},
        "audit": {"file": "audit.jsonl"},
        "resources": {"notes": {"url": url, "roles": name, "policy": policy, **more}},
        "federations": {"all": {"sources": [{"alias": "here", "resource": "notes"}]}},
    }  # fmt: skip
    return parse(sections, directory, ENVIRONMENT)


def served(stack: ExitStack, kind: str, directory: Path, url: str, **more: Any) -> Lab:
    running = stack.enter_context(background(config(kind, directory, url, **more)))
    tokens = {}
    for name, groups in CALLERS.items():
        tokens[name], stored = new(name or "nobody", 3600, groups=groups, administrator=name == "root")
        running.service.store.add_token(stored)
    return Lab(kind, directory, url, running, tokens)
