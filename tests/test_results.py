import errno
from pathlib import Path

import pytest

from dai.errors import ConfigurationError, InternalError, LimitError
from dai.results import Results


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
    with results.writer("job", 0, "csv") as writer:
        writer.write(b"abc")
    assert results.used == 0
    assert list(tmp_path.glob("*/*")) == []


def test_the_room_is_bounded_over_all_jobs_and_restarts(tmp_path: Path) -> None:
    results = Results(tmp_path, limit=10)
    with results.writer("a", 0) as writer:
        writer.write(b"123456")
        writer.finish()
    results = Results(tmp_path, limit=10)
    with pytest.raises(LimitError, match="room for job results"), results.writer("b", 0) as writer:
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
