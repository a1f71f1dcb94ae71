import errno
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dai.config import LimitsConfig
from dai.errors import ConfigurationError, DaiError, GoneError, InternalError, LimitError
from dai.service.results import Results


class FailingFile:
    """Takes one write, then fails with ``number``."""

    def __init__(self, number: int) -> None:
        self.number, self.writes = number, 0

    def write(self, data: bytes) -> int:
        self.writes += 1
        if self.writes > 1:
            raise OSError(self.number, "cannot")
        return len(data)

    def close(self) -> None:
        """Nothing to free."""


def test_a_result_gets_its_name_when_it_is_whole(tmp_path: Path) -> None:
    results = Results(tmp_path)
    with results.writer("job", 0) as writer:
        writer.write(b"abc")
        assert not results.path("job", 0).exists()
        writer.finish()
    assert results.path("job", 0).read_bytes() == b"abc"
    assert results.used == 3
    results.remove("job")
    assert results.used == 0
    assert list(tmp_path.iterdir()) == []
    results.remove("job")


def test_what_was_not_finished_is_removed(tmp_path: Path) -> None:
    results = Results(tmp_path)
    with results.writer("job", 0) as writer:
        writer.write(b"abc")
    assert results.used == 0
    assert list(tmp_path.glob("*/*")) == []


def test_the_room_is_bounded_over_all_jobs_and_restarts(tmp_path: Path) -> None:
    results = Results(tmp_path, limit=10)
    with results.writer("a", 0) as writer:
        writer.write(b"123456")
        writer.finish()
    results = Results(tmp_path, limit=10)
    with pytest.raises(LimitError, match="space for job results"), results.writer("b", 0) as writer:
        writer.write(b"123456")
    assert results.used == 6


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.ENOSPC, LimitError), (errno.EDQUOT, LimitError), (errno.EFBIG, LimitError), (errno.EIO, InternalError)],
)
def test_a_full_disk_is_said(tmp_path: Path, number: int, error: type[Exception]) -> None:
    results = Results(tmp_path)
    with results.writer("job", 0) as writer:
        writer._file.close()
        writer._file = FailingFile(number)  # type: ignore[assignment]
        writer.write(b"abc")
        with pytest.raises(error):
            writer.write(b"def")
    assert results.used == 0
    assert list(tmp_path.glob("*/*")) == []


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="results_directory"):
        Results(tmp_path / "file" / "results")


class Beside:
    """Has ``work`` begin in a thread when files are about to be removed for the first time; ``raised`` by it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
        self._work, self._remove = work, shutil.rmtree
        self._started: list[threading.Thread] = []
        self.raised: list[BaseException] = []
        monkeypatch.setattr(shutil, "rmtree", self._removing)

    def _run(self) -> None:
        try:
            self._work()
        except DaiError as error:
            self.raised.append(error)

    def _removing(self, *given: Any, **more: Any) -> None:
        if not self._started:
            self._started.append(threading.Thread(target=self._run))
            self._started[0].start()
            self._started[0].join(0.1)  # as far as it comes
        self._remove(*given, **more)

    def ended(self) -> None:
        (thread,) = self._started
        thread.join(30)
        assert not thread.is_alive()


def test_what_two_remove_at_once_is_given_back_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results(tmp_path)
    with results.writer("job", 0) as writer:
        writer.write(b"abc")
        writer.finish()
    other = Beside(monkeypatch, lambda: results.remove("job"))
    results.remove("job")
    other.ended()
    assert results.used == 0
    assert list(tmp_path.iterdir()) == []


def test_what_is_finished_while_its_job_is_removed_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results(tmp_path)
    with results.writer("job", 0) as writer:
        writer.write(b"abc")
        other = Beside(monkeypatch, writer.finish)
        results.remove("job")
        other.ended()
    assert [type(each) for each in other.raised] == [GoneError]
    assert results.used == 0
    assert list(tmp_path.glob("*/*")) == []


def test_no_other_form_of_a_removed_result_is_kept(tmp_path: Path) -> None:
    results = Results(tmp_path)
    with results.writer("job", 0) as writer:
        writer.write(b"abc")
        writer.finish()
    results.remove("job")
    with pytest.raises(GoneError), results.writer("job", 0, "csv") as writer:
        writer.write(b"a")
    assert results.used == 0
    assert list(tmp_path.iterdir()) == []


def test_forms_that_are_removed_give_their_room_back_and_are_read_to_their_end(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for form in (None, "csv", "arrow", "arrow-10", "arrow-20"):
        with results.writer("job", 0, form) as writer:
            writer.write(b"abc")
            writer.finish()
    with results.path("job", 0, "arrow-10").open("rb") as file:
        results.remove_forms("job", 0, "arrow-*")
        assert file.read() == b"abc"
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["0", "0.arrow", "0.csv"]
    assert results.used == 9


def test_one_thread_at_a_time_makes_the_files_of_a_kind(tmp_path: Path) -> None:
    results, path = Results(tmp_path), tmp_path / "job" / "0.csv"
    inside: list[int] = []
    most: list[int] = []

    def make() -> None:
        for _ in range(200):
            with results.rendering(path):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0)
                inside.pop()

    makers = [threading.Thread(target=make, daemon=True) for _ in range(4)]
    for each in makers:
        each.start()
    for each in makers:
        each.join(60)
    assert max(most) == 1
    with pytest.raises(ValueError, match="broken"), results.rendering(path):
        raise ValueError("broken")
    assert results._rendering == {}


def test_the_room_has_a_bound_where_nothing_is_configured() -> None:
    assert LimitsConfig().result_bytes > 0
