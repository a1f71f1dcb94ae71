"""The OpenAPI document against the running service: no undocumented status, no 500, whatever is sent."""

from collections.abc import Iterator

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.errors import SerializationNotPossible
from schemathesis.pytest.lazy import get_all_tests
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from dai.api.app import create_app
from dai.api.server.serve import Background
from tests.api.test_identity import OPERATIONS
from tests.thoroughness import examples

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    unsupported_method,
    negative_data_rejection,
]
SOAP = ("/wsctx",)
"""A fault has the status 500 (SOAP 1.1, section 6.2)."""
EXAMPLES = settings(
    max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)


@pytest.fixture(scope="module")
def described() -> BaseSchema:
    return schemathesis.openapi.from_dict(create_app().openapi())


@pytest.fixture(scope="module")
def existing(shared: Background) -> Iterator[dict[str, str]]:
    """Path parameters that name something."""
    with httpx.Client(base_url=shared.url, timeout=60) as client:
        body = {"sql": "select 1 as one"}
        job = client.post("/resources/book/query", json=body, headers={"Prefer": "respond-async"}).headers["location"]
        assert client.get(f"{job}?wait=30").status_code == 200
        session = client.post("/sessions", json={"timeout": 3600}).json()["id"]
        feed = client.post("/feeds", json={}).json()["id"]  # that has ended: nobody follows for ever
        assert client.put(f"/feeds/{feed}/blocks/0?last=true", content=b"x").status_code == 200
        yield {
            "feed": feed,
            "resource": "book",
            "job": job.rpartition("/")[2],
            "output": "result",
            "session": session,
            "stream": "in",
            "name": "perform.xsd",
        }


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_operation_answers_as_documented(
    method: str, path: str, described: BaseSchema, shared: Background, existing: dict[str, str]
) -> None:
    """Cases are generated here: with ``parametrize`` of schemathesis every process of a run would generate them all,
    a quarter of what it takes to collect all tests."""
    only = described.include(path=path, method=method)
    (described_one,) = get_all_tests(schema=only, test_func=check, settings=EXAMPLES, given_kwargs=None)
    _, test = described_one.ok()
    try:
        test(shared=shared, existing=existing)
    except SerializationNotPossible as error:  # Arrow and NDJSON bodies
        pytest.skip(str(error))


def check(case: schemathesis.Case, shared: Background, existing: dict[str, str]) -> None:
    # Random names find nothing, so most of them are replaced by real ones; nobody waits for blocks that never come.
    generated = dict(case.path_parameters or {})
    for name, value in generated.items():
        if name in existing and len(repr(value)) % 4:
            case.path_parameters[name] = existing[name]
    if case.path.startswith("/sessions") and "/blocks/" in case.path and str(case.query.get("wait", 0)).isdigit():
        case.query["wait"] = 0
    if case.method == "DELETE":
        case.path_parameters.update(generated)
    checks = [each for each in CHECKS if each is not not_a_server_error or case.path not in SOAP]
    case.call_and_validate(base_url=shared.url, checks=checks, timeout=60)
