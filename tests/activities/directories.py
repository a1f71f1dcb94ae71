"""What tests of the activities over files share: documents, and how they end."""

from types import SimpleNamespace

from dai.config import Config, LimitsConfig
from dai.perform.parser import parse
from dai.perform.pipeline import Environment, Running
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Block, Stream
from tests.documents import Ends, written

SECRET = "the secret"
CONFIG = Config(limits=LimitsConfig(transform_bytes=1 << 20, unpacked_bytes=1 << 22))


def read(file: str, portion: str = "", encode: str = "") -> str:
    return f'<fileAccessActivity name="r"><file>{file}</file>{portion}<output name="e"{encode}/></fileAccessActivity>'


def write(file: str, operation: str, locate: str = "") -> str:
    located = f"<locate>{locate}</locate>" if locate else ""
    return (
        f'<fileWritingActivity name="w"><file>{file}</file>{located}{operation}<output name="e"/></fileWritingActivity>'
    )


def manipulate(operation: str) -> str:
    return f'<fileManipulation name="m">{operation}<output name="e"/></fileManipulation>'


def listed(directory: str = "") -> str:
    inside = f"<directory>{directory}</directory>" if directory else ""
    return f'<directoryAccess name="d">{inside}<output name="e"/></directoryAccess>'


def outcome(body: str, place: SimpleNamespace, *pushed: bytes) -> bytes:
    session = Ends(capacity=100_000)
    for data in pushed:
        session.input("pushed").put(Block(data, 1), Cancellation())
    session.input("pushed").finish()
    if pushed:
        body += '<inputStream name="pushed"><toLocal name="data"/></inputStream>'
    with Running(parse(written(body)), Environment(place.driver, session, Cancellation(), config=CONFIG)) as work:
        work.open()
        (table,) = [source.table() if isinstance(source, Stream) else source.read() for _, source in work.end_points()]
        work.raise_cause()
    return table
