"""What leaves an activity passes here: counted, stopped by the cancellation, its failure recorded where it arose."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TypeVar

import pyarrow as pa

from dai.errors import DaiError, InternalError, of_memory
from dai.perform.activity import FRAGMENT, Source
from dai.perform.pipeline.progress import Progress
from dai.streams.stream import Block, ByteStream, Encoded, Stream

log = logging.getLogger("dai.perform.pipeline")
Item = TypeVar("Item", pa.RecordBatch, Block)


def watched(progress: Progress, name: str, link: str, source: Source) -> Source:
    """The output ``link`` of the activity ``name``; takes over ``source``."""
    if isinstance(source, Encoded):
        return source.watched(lambda items: _watch(progress, name, link, items))
    if isinstance(source, Stream):
        return Stream(source.schema, _watch(progress, name, link, source), source.close)
    checked = source.media_type != FRAGMENT
    return ByteStream(source.media_type, _watch(progress, name, link, source, checked), source.close)


def _watch(progress: Progress, name: str, link: str, items: Iterator[Item], checked: bool = True) -> Iterator[Item]:
    """A consumer that wants no more closes the generator."""
    cancellation = progress.cancellation_of(name)
    count = progress.count(name, link)
    try:
        while True:
            if checked:
                cancellation.check()
            began = time.perf_counter()
            item = next(items, None)
            count.seconds += time.perf_counter() - began
            if item is None:
                progress.ended(name, link)
                return
            count.add(item)
            yield item
    except DaiError as error:
        progress.failed(name, error)
        raise
    except Exception as error:
        unforeseen = unforeseen_at(name, error)
        progress.failed(name, unforeseen)
        raise unforeseen from error
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()


def unforeseen_at(name: str, error: Exception) -> DaiError:
    """What becomes of an exception that is no DaiError where it leaves the activity ``name``."""
    if (refused := of_memory(error)) is not None:
        return refused
    log.error("activity failed", exc_info=error, extra={"activity": name})
    return InternalError("The service failed at this activity; its log has the cause under the request's id.")
