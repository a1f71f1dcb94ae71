"""What is said of a database, a configuration or a service that is not what was expected."""

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy.engine import URL, make_url

import dai
import dqp
from dai.__main__ import main
from dai.drivers import driver_for
from dai.errors import (
    DatabaseUnavailableError,
    RequestError,
)
from tests.first_hour import files

__all__ = ["files"]


@pytest.mark.parametrize("command", [["check-config", "field.db"], ["serve", "--config", "field.db"]])
def test_a_database_where_a_configuration_is_expected(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 2
    assert (
        "field.db is a SQLite database, not a configuration.\n     Serve it: dai serve field.db"
        in capsys.readouterr().err
    )


def test_a_configuration_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", "none.toml"]) == 2
    assert "dai serve sqlite:///file.db" in capsys.readouterr().err


def test_a_file_where_a_service_is_expected() -> None:
    with pytest.raises(RequestError, match=r"(?s)is a file.*dai serve field\.db.*dqp\.connect\('field\.db'\)"):
        dai.connect("field.db")
    with pytest.raises(
        RequestError, match=r"(?s)postgresql://… is not the address of a data service.*dai serve"
    ) as caught:
        dai.connect("postgresql://me:secret@localhost/lab")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:///dai.toml", "(?s)not a database.*Name a SQLite file"),
        ("duckdb:///dai.toml", "(?s)cannot be opened.*Name a DuckDB file"),
        ("duckdb:///field.db", "(?s)not a DuckDB database.*a SQLite database: write sqlite:///"),
        ("sqlite:///lake.duckdb", "(?s)not a database.*a DuckDB database: write duckdb:///"),
        ("sqlite:///none.db", "(?s)does not exist.*sqlite:////srv/file.db"),
    ],
)
def test_another_file_where_a_database_is_expected(url: str, says: str) -> None:
    driver = driver_for(url)
    with pytest.raises(DatabaseUnavailableError, match=says) as caught:
        driver.check()
    assert "/tmp" not in str(caught.value)
    driver.close()


@pytest.mark.parametrize(
    ("backend", "meant"), [("postgres", "postgresql"), ("mysq", "mysql"), ("sqlite3", "sqlite"), ("nothing", "dialect")]
)
def test_another_name_of_a_database(backend: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("wrong.toml").write_text(f'[resources.a]\nurl = "{backend}://me@localhost/lab"\n')
    assert main(["check-config", "wrong.toml"]) == 2
    assert meant in capsys.readouterr().err.splitlines()[1]


WRONG: dict[str, tuple[Callable[[URL], URL], str]] = {
    "password": (lambda url: url.set(password="sesame7"), "refused the user name or the password"),
    "user": (lambda url: url.set(username="nobody"), "refused the user name or the password"),
    "database": (lambda url: url.set(database="none"), "database of the URL does not exist"),
    "port": (lambda url: url.set(port=1), "cannot be reached"),
    "host": (lambda url: url.set(host="nowhere.invalid"), "cannot be reached"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("product", ["postgres", "mariadb"])
def test_a_database_that_does_not_let_us_in(
    product: str, wrong: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    change, says = WRONG[wrong]
    url = change(make_url(request.getfixturevalue(f"{product}_url")))
    text = url.render_as_string(hide_password=False)
    Path("wrong.toml").write_text(f'[resources.a]\nurl = "{text}"\n')
    assert main(["check-config", "wrong.toml"]) == 1
    told = capsys.readouterr().out
    place = f"host {url.host}, port {url.port}, database {url.database}, user {url.username}."
    assert says in told
    assert f"Check its url in wrong.toml: {place}" in told
    with dqp.connect({"sources": {"a": text}}) as lab, pytest.raises(DatabaseUnavailableError) as caught:
        lab.sql("select * from a.t").arrow()
    assert says in str(caught.value)
    assert place in str(caught.value)
    assert str(url.password) not in told + str(caught.value)
    driver = driver_for(text)
    with pytest.raises(DatabaseUnavailableError, match=says) as caught:  # what a caller of the service is told
        driver.check()
    assert str(url.host) not in str(caught.value)
    driver.close()
