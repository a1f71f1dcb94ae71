"""The disk for job results is full."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dai
from dai.errors import LimitError
from tests.faults.conftest import Database, Start
from tests.processes import until

SIZE = 512 << 10


@contextmanager
def small_disk(directory: Path, size: int = SIZE) -> Iterator[dict[str, Any]]:
    """Settings of a service whose disk for results is full after ``size`` bytes: a file system of its own where we may
    mount one, else no file may be larger."""
    if os.geteuid() != 0:
        yield {"largest_file": size}
        return
    directory.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", directory], check=False)
    if mounted.returncode != 0:
        yield {"largest_file": size}
        return
    try:
        yield {"results": directory}
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


def noise(database: Database, rows: int) -> str:
    """Rows that do not compress well."""
    digest = "md5(i::text)" if database.server.scheme == "postgresql" else "md5(i)"
    return f"select i, {digest} as d, s from ({database.endless} limit {rows}) as numbers"


def test_a_job_that_fills_the_disk_fails_and_frees_it(start: Start, database: Database, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as settings:
        service = start(resources={"lab": database.server.url}, **settings)
        lab = dai.connect(f"{service.url}/lab")
        kept = lab.submit(noise(database, 500))
        assert kept.wait().phase == "COMPLETED"
        large = lab.submit(noise(database, 1_000_000))
        assert large.wait().phase == "ERROR"
        error = large.error
        assert isinstance(error, LimitError)
        assert error.detail == "The disk for job results is full."
        assert not list(service.results_directory.glob(f"{large.id}/*"))
        assert not service.leftovers()
        until(service.at_rest)
        # healthy: what was there is there, a synchronous request never needed the disk, and a smaller job fits again
        assert kept.result().arrow().num_rows == 500
        assert lab.query(noise(database, 50_000)).arrow().num_rows == 50_000
        small = lab.submit(noise(database, 600))
        assert small.wait().phase == "COMPLETED"
        assert service.metrics()["dai_result_bytes"] == sum(
            path.stat().st_size for path in service.results_directory.glob("*/*")
        )
        lab.close()
        service.stop()


def test_a_form_that_does_not_fit_is_refused_and_the_result_stays(
    start: Start, database: Database, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk") as settings:
        service = start(resources={"lab": database.server.url}, **settings)
        lab = dai.connect(f"{service.url}/lab")
        job = lab.submit(database.endless + " limit 50000")
        assert job.wait().phase == "COMPLETED"
        lab.close()
        with service.client() as client:
            # compressed it fits, as CSV it does not
            answer = client.get(f"/jobs/{job.id}/outputs/result?format=csv")
            assert (answer.status_code, answer.json()["type"]) == (422, "limit-exceeded")
            assert not service.leftovers()
            assert client.get(f"/jobs/{job.id}/outputs/result").status_code == 200
        service.stop()


def test_what_does_not_fit_between_two_readers_is_an_error(start: Start, database: Database, tmp_path: Path) -> None:
    """Results that wait for a slower reader of the same document go to the disk, too."""
    statement = f"<expression>{noise(database, 300_000)}</expression>"
    document = (
        '<gridDataServicePerform xmlns="http://ogsadai.org.uk/namespaces/2003/07/gds/types">'
        f'<sqlQueryStatement name="q">{statement}<resultStream name="rows"/></sqlQueryStatement>'
        '<sqlResultsToCSV name="a"><resultSet from="rows"/><csv name="first"/></sqlResultsToCSV>'
        '<sqlResultsToCSV name="b"><resultSet from="rows"/><csv name="second"/></sqlResultsToCSV>'
        "</gridDataServicePerform>"
    )
    with small_disk(tmp_path / "disk") as settings:
        service = start(resources={"lab": database.server.url}, **settings)
        with service.client() as client:
            answer = client.post(
                "/resources/lab/perform?output=second", content=document, headers={"Content-Type": "application/xml"}
            )
            assert answer.status_code == 422
            assert answer.json()["type"] == "limit-exceeded"
            assert client.post("/resources/lab/query?format=csv", json={"sql": "select 1 as a"}).text == "a\r\n1\r\n"
        until(service.at_rest)
        assert not service.leftovers()
        service.stop()
