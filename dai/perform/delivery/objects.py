"""Object stores with the protocol of S3, by obstore: uploads in parts, readings that go on at the same version."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import S3Store

from dai.config import DeliveryConfig
from dai.errors import DeniedError, NotFoundError, UnreachableError
from dai.perform.delivery.addresses import Address, account_of, resolved
from dai.perform.delivery.calls import Blocks, Call, going_on, media_type_of
from dai.perform.delivery.loops import SETTLE_SECONDS, Loop
from dai.perform.delivery.pinned import Proxy
from dai.streams.cancellation import Cancellation

PART_BYTES, PARTS = 8 << 20, 3
"""An upload holds so many parts of this size; a store takes 10,000 parts."""
READ_BYTES = 1 << 20


@contextmanager
def _store(address: Address, config: DeliveryConfig, cancellation: Cancellation) -> Iterator[S3Store]:
    """The bucket, by the account of the configuration alone; its endpoint is checked like any host, and connections
    lead nowhere else."""
    account = account_of(address, config)
    if account is None or not account.user:
        raise DeniedError(
            f"This service has no account for the bucket {address.host!r}.",
            hint="The operator of the service can add one in [delivery.accounts].",
        )
    endpoint = account.endpoint or f"https://s3.{account.region}.amazonaws.com"
    parts = urllib.parse.urlsplit(endpoint)
    tls = parts.scheme != "http"
    port = parts.port or (443 if tls else 80)
    number = resolved(parts.hostname or "", port, config, cancellation)
    with Proxy(number, port, tls, config.silence) as proxy:
        yield S3Store(
            address.host,
            endpoint=endpoint,
            region=account.region,
            access_key_id=account.user,
            secret_access_key=account.password or "",
            virtual_hosted_style_request=False,
            client_options={
                "allow_http": not tls,
                "connect_timeout": timedelta(seconds=config.silence),
                "proxy_url": proxy.url,
                "timeout": timedelta(seconds=config.seconds),
            },
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=config.silence)},
        )


@contextmanager
def _translated(call: Call) -> Iterator[None]:
    bucket = call.host
    with call.translated():
        try:
            yield
        except (exceptions.NotFoundError, FileNotFoundError) as error:
            raise NotFoundError(f"The bucket {bucket!r} has no such object, or does not exist.") from error
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise DeniedError(f"The bucket {bucket!r} refuses the credentials of this service.") from error
        except exceptions.BaseError as error:
            raise UnreachableError(f"The store of {bucket!r} cannot be reached, or broke off.") from error


class Objects:
    """An object is there, or replaced, when all of it has arrived."""

    def put(
        self,
        address: Address,
        blocks: Blocks,
        media_type: str,
        config: DeliveryConfig,
        cancellation: Cancellation,
    ) -> None:
        key = address.file.lstrip("/")
        with (
            _store(address, config, cancellation) as store,
            Call(address.host, config, cancellation, ()) as call,
            Loop(call) as loop,
        ):
            call.interrupted_by(loop.stop)
            writer = obstore.open_writer_async(
                store, key, attributes={"Content-Type": media_type}, buffer_size=PART_BYTES, max_concurrency=PARTS
            )
            try:
                for data in blocks:
                    with _translated(call):
                        loop.wait(_write(writer, data))
                with _translated(call):
                    loop.wait(_flush(writer))
                    call.check()
            except BaseException as error:
                blocks.close()
                loop.settle(_abort(writer, error))
                raise
            with _translated(call):
                loop.wait(_close(writer))

    @contextmanager
    def got(
        self, address: Address, config: DeliveryConfig, cancellation: Cancellation
    ) -> Iterator[tuple[str, Iterator[bytes]]]:
        key = address.file.lstrip("/")
        with (
            _store(address, config, cancellation) as store,
            Call(address.host, config, cancellation, ()) as call,
            Loop(call) as loop,
        ):
            call.interrupted_by(loop.stop)
            with _translated(call):
                first = loop.wait(_get(store, key, {}))
            version = first.meta["e_tag"]

            def open_at(position: int) -> Iterator[bytes] | None:
                if not position:
                    return _blocks(first, loop, call)
                if version is None:
                    return None
                with _translated(call):
                    try:
                        rest = loop.wait(_get(store, key, {"range": {"offset": position}, "if_match": version}))
                    except exceptions.PreconditionError:
                        return None
                return _blocks(rest, loop, call)

            yield media_type_of(first.attributes.get("Content-Type")), going_on(open_at, call, config)


async def _write(writer: Any, data: bytes) -> None:
    """A cancellation waits for the write a little: the answer may have the identifier of the upload, without which
    nothing can remove it."""
    writing = asyncio.ensure_future(writer.write(data))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        with suppress(Exception):
            async with asyncio.timeout(SETTLE_SECONDS):
                await writing
        raise


async def _flush(writer: Any) -> None:
    await writer.flush()


async def _abort(writer: Any, error: BaseException) -> None:
    """Removes the parts of an upload that is not closed."""
    await writer.__aexit__(type(error), error, error.__traceback__)


async def _close(writer: Any) -> None:
    await writer.close()


async def _get(store: S3Store, key: str, options: Any) -> Any:
    return await obstore.get_async(store, key, options=options)


async def _next(stream: Any) -> bytes:
    async for data in stream:
        return bytes(data)
    return b""


def _blocks(result: Any, loop: Loop, call: Call) -> Iterator[bytes]:
    stream = result.stream(min_chunk_size=READ_BYTES)
    while True:
        with _translated(call):
            data = loop.wait(_next(stream))
        if not data:
            return
        yield data
