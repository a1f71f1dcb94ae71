"""HTTP: PUT in chunks, GET in ranges. Redirects are not followed."""

from __future__ import annotations

import base64
import http.client
from collections.abc import Iterator
from contextlib import contextmanager

from dai.config import DeliveryConfig
from dai.errors import DataError, DeniedError, TruncatedError
from dai.perform.delivery import calls
from dai.perform.delivery.addresses import PORTS, Address, account_of
from dai.perform.delivery.calls import BLOCK_BYTES, Blocks, going_on, media_type_of, tls
from dai.streams.cancellation import Cancellation


class _Connection(http.client.HTTPConnection):
    """Connects by the call: to the address that was looked at, not to the name again."""

    def __init__(self, address: Address, call: calls.Call) -> None:
        super().__init__(address.host, address.port)
        self.default_port = PORTS[address.scheme]
        self._call, self._secure = call, address.scheme == "https"
        self._account = account_of(address, call.config)

    def connect(self) -> None:
        self.sock = self._call.connect(self.port)
        if self._secure:
            self.sock = tls(self._call.config, self._account).wrap_socket(self.sock, server_hostname=self.host)


class Call(calls.Call):
    """With an HTTP ``connection``, which connects by itself."""

    def __init__(self, address: Address, config: DeliveryConfig, cancellation: Cancellation) -> None:
        super().__init__(address.host, config, cancellation, (http.client.HTTPException,))
        self.connection = _Connection(address, self)

    def hang_up(self) -> None:
        self.connection.close()
        super().hang_up()


def authorization(address: Address, config: DeliveryConfig) -> dict[str, str]:
    """The header of the configured account, if there is one."""
    account = account_of(address, config)
    if account is None:
        return {}
    if account.token is not None:
        return {"Authorization": f"Bearer {account.token}"}
    credentials = base64.b64encode(f"{account.user}:{account.password or ''}".encode()).decode()
    return {"Authorization": f"Basic {credentials}"}


def check_status(response: http.client.HTTPResponse, address: Address) -> None:
    if 300 <= response.status < 400:
        raise DeniedError(
            f"{address.host!r} redirects; redirects are not followed.", hint="Use the address to which it redirects."
        )
    if not 200 <= response.status < 300:
        raise DataError(f"{address.host!r} answered with the status {response.status}.")


def put(address: Address, blocks: Blocks, media_type: str, config: DeliveryConfig, cancellation: Cancellation) -> None:
    """Sends the blocks as they come (chunked)."""
    headers = {"Content-Type": media_type, "Transfer-Encoding": "chunked", **authorization(address, config)}
    with Call(address, config, cancellation) as call, call.translated():
        call.connection.request("PUT", address.target, body=blocks, headers=headers, encode_chunked=True)
        check_status(call.connection.getresponse(), address)


def post(
    address: Address, body: bytes, headers: dict[str, str], config: DeliveryConfig, cancellation: Cancellation
) -> int:
    """The status of the answer, whose body is not read."""
    with Call(address, config, cancellation) as call, call.translated():
        call.connection.request("POST", address.target, body=body, headers=headers | authorization(address, config))
        return call.connection.getresponse().status


@contextmanager
def got(address: Address, config: DeliveryConfig, cancellation: Cancellation) -> Iterator[tuple[str, Iterator[bytes]]]:
    """The media type and the bytes of the answer. What breaks off goes on by a range, if the answer has a strong
    ``ETag`` and the server has still the same."""
    with Call(address, config, cancellation) as call:
        headers = {"Accept-Encoding": "identity", **authorization(address, config)}

        def answer(more: dict[str, str]) -> http.client.HTTPResponse:
            with call.translated():
                call.connection.request("GET", address.target, headers=headers | more)
                response = call.connection.getresponse()
                check_status(response, address)
            return response

        first = answer({})
        tag = first.headers.get("ETag") or ""
        unread = [first]

        def open_at(position: int) -> Iterator[bytes] | None:
            if unread:
                return _blocks(unread.pop(), call)
            if not tag.startswith('"') or first.headers.get("Accept-Ranges") == "none":
                return None
            call.hang_up()
            response = answer({"Range": f"bytes={position}-", "If-Range": tag})
            follows = (response.headers.get("Content-Range") or "").startswith(f"bytes {position}-")
            same = response.headers.get("ETag", tag) == tag
            return _blocks(response, call) if response.status == 206 and follows and same else None

        yield media_type_of(first.headers.get("Content-Type")), going_on(open_at, call, config)


def _blocks(response: http.client.HTTPResponse, call: Call) -> Iterator[bytes]:
    while data := _next(response, call):
        yield data


def _next(response: http.client.HTTPResponse, call: Call) -> bytes:
    with call.translated():
        data = response.read1(BLOCK_BYTES)
        if not data and response.length:
            raise TruncatedError(f"{call.host!r} broke off its answer.")
        return data


class HTTP:
    put, got = staticmethod(put), staticmethod(got)
