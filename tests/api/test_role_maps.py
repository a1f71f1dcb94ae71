"""The file of a role map: which entry is whose, and what cannot be used."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dai.errors import ConfigurationError, DeniedError
from dai.security.identity import ANONYMOUS, Caller
from dai.security.roles import RoleMap
from dai.service.resources import Resources
from tests.api.conftest import configured


def mapped(directory: Path, text: str, name: str = "roles.xml", environment: dict[str, str] | None = None) -> RoleMap:
    (directory / name).write_text(text)
    return RoleMap("a", directory / name, environment or {})


def entries(*users: str) -> str:
    return (
        f'<DatabaseRoles><Database name="a">{"".join(f"<User {each}/>" for each in users)}</Database></DatabaseRoles>'
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_which_entry_is_whose(tmp_path: Path, reverse: bool) -> None:
    order = -1 if reverse else 1
    dns = ("*", "No Certificate Provided", "group:g", "group:h", "C=GB, CN=x", "Group:g")
    written = [f'dn="{dn}" userid="u{number}" password="p"' for number, dn in enumerate(dns)][::order]
    map = mapped(tmp_path, entries(*written))
    toml = mapped(
        tmp_path,
        "\n".join(f'[[a]]\ncaller = "{dn}"\nuser = "u{number}"\n' for number, dn in list(enumerate(dns))[::order]),
        "roles.toml",
    )
    g, both = frozenset({"g"}), frozenset({"g", "h"})
    for caller, user in (
        (Caller("C=GB, CN=x"), "u4"), (Caller("C=GB, CN=x", groups=both), "u4"), (Caller("c=GB, CN=x"), "u0"),
        (Caller("a", groups=g), "u2"), (Caller("a", groups=both), "u3" if reverse else "u2"),
        (Caller("Group:g"), "u5"), (Caller("group:g"), "u0"), (Caller("*"), "u0"), (Caller("a"), "u0"),
        (Caller(" C=GB, CN=x"), "u0"), (Caller("a", groups=frozenset({""})), "u0"),
    ):  # fmt: skip
        assert map.user_of(caller).name == toml.user_of(caller).name == user, caller
    assert map.user_of(ANONYMOUS).name == "u1"
    # the name that XML has for nobody is a name like others there, and to a caller with it no special one
    assert map.user_of(Caller("No Certificate Provided")).name == "u0"
    assert map.user_of(Caller("anonymous")).name == "u0"


def test_nobody_without_a_name_is_in_an_entry_by_chance(tmp_path: Path) -> None:
    some = entries('dn="alice" userid="u"', 'dn="group:g" userid="v"')
    for map in (mapped(tmp_path, some), mapped(tmp_path, '[[a]]\ncaller = "*"\nuser = "u"\n', "roles.toml")):
        for caller in (ANONYMOUS, Caller("", groups=frozenset({"g", "", "*"}))):
            with pytest.raises(DeniedError, match="anonymous"):
                map.user_of(caller)
    # in XML * is whoever asks, as in former releases of this form
    assert mapped(tmp_path, entries('dn="*" userid="u"')).user_of(ANONYMOUS).name == "u"
    with pytest.raises(DeniedError):
        mapped(tmp_path, "<DatabaseRoles/>").user_of(Caller("alice"))


WRONG = {
    "not well-formed XML, line 1": "<DatabaseRoles>",
    "has a DTD": '<!DOCTYPE DatabaseRoles [<!ENTITY e "x">]><DatabaseRoles/>',
    "has a DTD;": '<!DOCTYPE DatabaseRoles SYSTEM "file:///etc/passwd"><DatabaseRoles/>',
    "'Roles' is where DatabaseRoles": "<Roles/>",
    "'User' is where Database must": "<DatabaseRoles><User/></DatabaseRoles>",
    "Database must": "<DatabaseRoles>\n<Base name='a'/></DatabaseRoles>",
    "line 1 has no name": "<DatabaseRoles><Database/></DatabaseRoles>",
    "has no dn": entries('userid="u" password="p"'),
    "has no dn, or an empty one": entries('dn="" userid="u"'),
    "no dn, or an": entries('dn=" " userid="u"'),
    "has no userid": entries('dn="x" password="p"'),
    "there is no 'passwd'": entries('dn="x" userid="u" passwd="p"'),
    "already an entry for the same caller": entries('dn="x" userid="u"', 'dn="x" userid="v"'),
    "the same caller": entries('dn="anonymous" userid="u"', 'dn="No Certificate Provided" userid="v"'),
    "another password": entries('dn="x" userid="u" password="p"', 'dn="y" userid="u" password="q"'),
    "'NOWHERE' is not set": entries('dn="x" userid="u" password="env:NOWHERE"'),
    "'nowhere' cannot be read": entries('dn="x" userid="u" password="file:nowhere"'),
}
WRONG_TOML = {
    "is not TOML": "[[a]",
    "must be a list of entries": '[a]\ncaller = "x"\nuser = "u"\n',
    "number 2 has no caller": '[[a]]\ncaller = "x"\nuser = "u"\n[[a]]\nuser = "v"\n',
    "no caller, or an empty": '[[a]]\ncaller = ""\nuser = "u"\n',
    "has no user": '[[a]]\ncaller = "x"\n',
    "user must be a text": '[[a]]\ncaller = "x"\nuser = 1\n',
    "there is no 'users'": '[[a]]\ncaller = "x"\nusers = "u"\n',
}


@pytest.mark.parametrize(("message", "text"), [*WRONG.items(), *WRONG_TOML.items()])
def test_files_that_cannot_be_used(tmp_path: Path, message: str, text: str) -> None:
    name = "roles.toml" if message in WRONG_TOML else "roles.xml"
    with pytest.raises(ConfigurationError) as raised:
        mapped(tmp_path, text, name)
    assert message in str(raised.value)
    assert "resources.a.roles" in str(raised.value)
    assert str(tmp_path) not in str(raised.value)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        RoleMap("a", tmp_path / "nothing.xml", {})


@pytest.mark.parametrize(
    ("resource", "message"),
    [
        ({"url": "sqlite:///a.db"}, "'sqlite' has no users"),
        ({"url": "duckdb:///a.db"}, "'duckdb' has no users"),
        ({"collections": "a.db"}, "is for a database"),
        ({"directory": "."}, "is for a database"),
        ({"url": "postgresql://h/d?user=root"}, "the option 'user'"),
        ({"url": "postgresql://h/d?password=x"}, "the option 'password'"),
        ({"url": "postgresql://h/d", "replicas": ["postgresql://h/d?user=root"]}, "the option 'user'"),
        ({"url": "postgresql://h/d", "replicas": ["sqlite:///a.db"]}, "'sqlite' has no users"),
        ({"url": "postgresql://h/d", "environment": {}}, "no key 'environment'"),
    ],
)
def test_resources_without_database_users(tmp_path: Path, resource: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        configured(tmp_path, {"a": {**resource, "roles": "roles.xml"}})


def test_replicas_are_asked_as_the_same_user(tmp_path: Path) -> None:
    (tmp_path / "roles.xml").write_text(entries('dn="alice" userid="alice_db" password="p@:/"', 'dn="bob" userid="b"'))
    urls = ["mariadb://own:secret@127.0.0.1:1/d", "mariadb://own:secret@127.0.0.1:2/d"]
    config = configured(tmp_path, {"a": {"url": urls[0], "replicas": urls[1:], "roles": "roles.xml", "pool_size": 5}})
    with closing(Resources(config)) as resources:
        for who, user, password in (("alice", "alice_db", "p@:/"), ("bob", "b", "")):
            seen = resources["a"].of(Caller(who))
            for port, driver in enumerate((seen.driver, *seen.driver.replicas), 1):
                url = driver._url  # type: ignore[attr-defined]
                assert (url.username, url.password, url.port) == (user, password, port)
                assert driver._limit.size == 3  # type: ignore[attr-defined]
            assert resources["a"].of(Caller(who)) is seen
        own = resources["a"].driver._url  # type: ignore[attr-defined]
        assert (own.username, own.password) == ("own", "secret")
