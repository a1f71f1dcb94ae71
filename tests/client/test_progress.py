import io

import pytest

from dai.client import progress
from dai.client.progress import Line, Meter, Progress


def test_a_line_is_written_over_and_says_how_it_ended() -> None:
    stream = io.StringIO()
    line = Line(stream)
    line(Progress(1_000_000, 50_000_000, 2.0, False))
    line(Progress(2_000, 3_000_000, 2.0, False, share=0.257))
    line(Progress(2_000, 3_000_000, 2.0, True, "done", share=1.0))
    shown = stream.getvalue().split("\r")
    assert shown[1] == "1,000,000 rows, 50.0 MB, 25.0 MB/s, 2.0 s"
    assert shown[2].rstrip() == "about 25 %, 2,000 rows, 3.0 MB, 1.5 MB/s, 2.0 s"
    assert shown[3].rstrip() == "2,000 rows, 3.0 MB, 1.5 MB/s, 2.0 s; done"
    assert shown[3].endswith("\n")


def test_rows_are_left_out_where_nobody_counts_them() -> None:
    assert str(Progress(0, 1_000_000, 0.0, False)) == "1.0 MB, 0.0 MB/s, 0.0 s"


def test_nothing_is_shown_where_nobody_watches(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr(progress, "FIRST", 0)
    for asked in (None, False):
        meter = Meter(asked)
        meter.update(1, 1)
        meter.finish(1, 1)
    assert capsys.readouterr().err == ""
    meter = Meter(True)
    meter.update(1, 1_000_000)
    meter.finish(1, 1_000_000)
    assert "1 rows, 1.0 MB" in capsys.readouterr().err


def test_what_is_over_soon_shows_nothing(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr(progress, "FIRST", 1e6)
    meter = Meter(True)
    meter.update(1, 1_000_000)
    meter.finish(1, 1_000_000)
    assert capsys.readouterr().err == ""
