"""Sends changes to webhooks: ``POST`` of JSON, signed by the secret of the webhook (RFC 9421, hmac-sha256)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from dai.config import DeliveryConfig
from dai.errors import CancelledError, DaiError, DataError, DeniedError
from dai.perform.delivery.addresses import allowed
from dai.perform.delivery.http import post
from dai.security.identity import Caller
from dai.service.registry.mirror import sees
from dai.service.registry.registry import Registry
from dai.service.registry.webhooks.store import Webhook, Webhooks
from dai.streams.cancellation import Cancellation

if TYPE_CHECKING:
    from dai.client.http.signing import Signer

log = logging.getLogger("dai.registry")
AT_ONCE, OF_ONE, MOST_CHANGES = 4, 2, 1000
"""Requests to webhooks at once, of all owners and of one: receivers who are silent keep nobody else waiting."""
LOOK_SECONDS, TOGETHER_SECONDS = 1.0, 0.02
"""How often changes by other processes, and new webhooks, are looked for; and how long changes are waited for that can
go with the first one."""
RETRIES = 12
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds until a failed request is tried again; each pause is twice the one before."""
SECONDS, SILENCE = 20.0, 10.0
"""Seconds that a receiver may take."""
CLOSING_SECONDS = 3.0
_GONE = 410


def checked(url: str, config: DeliveryConfig) -> str:
    """DeniedError for an address that the operator does not allow."""
    if allowed(url, config).scheme not in ("http", "https"):
        raise DeniedError("Changes can only be sent by http and https.")
    return url


def signing() -> type[Signer]:
    """MissingDependencyError where the library is not installed that signs."""
    from dai.client.http.signing import Signer

    return Signer


class Sender:
    """Works in threads of its own. ``now``: the caller with the rights that they have now; raises DeniedError for who
    may not read the registry any more."""

    def __init__(
        self, registry: Registry, webhooks: Webhooks, config: DeliveryConfig, now: Callable[[Caller], Caller]
    ) -> None:
        self._registry, self._webhooks, self._now = registry, webhooks, now
        self._config = replace(config, seconds=min(config.seconds, SECONDS), silence=min(config.silence, SILENCE))
        self._calls = Cancellation()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._due: dict[str, float] = {}
        self._busy: dict[str, str] = {}
        """The owners of the webhooks that are served, by their ids."""
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="webhook")
        registry.listeners.append(self._wake.set)
        self._thread = threading.Thread(target=self._run, name="webhooks", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.clear()
            known: list[Webhook] = []
            try:
                # taken before what each webhook has had is read: one that is served meanwhile would get it again
                busy = set(self._busy)
                known = self._webhooks.all()
                last = self._registry.number() if known else 0
                for each in known:
                    ready = not each.stopped and each.number < last and each.id not in busy
                    if ready and time.monotonic() >= self._due.get(each.id, 0.0) and self._has_room(each.owner):
                        self._busy[each.id] = each.owner
                        self._pool.submit(self._serve, each)
            except DaiError as error:
                log.warning("webhooks could not be read", extra={"error": error.code})
            except Exception as error:
                log.error("webhooks failed", exc_info=error)
            # without a webhook no change is a reason to look; with some, many changes go together
            self._closing.wait(TOGETHER_SECONDS if known else LOOK_SECONDS)
            if known:
                self._wake.wait(LOOK_SECONDS)

    def _has_room(self, owner: str) -> bool:
        return list(self._busy.values()).count(owner) < OF_ONE

    def _serve(self, webhook: Webhook) -> None:
        try:
            self._send(webhook)
            self._due.pop(webhook.id, None)
        except DaiError as error:
            stop = isinstance(error, DeniedError | _GoneError) or webhook.failures + 1 >= RETRIES
            self._due[webhook.id] = time.monotonic() + min(FIRST_PAUSE * 2**webhook.failures, LONGEST_PAUSE)
            if not self._closing.is_set():
                with suppress(DaiError):  # then it counts as a failure less
                    self._webhooks.failed(webhook, str(error), stop=stop)
        except Exception as error:
            log.error("a webhook failed", exc_info=error)
        finally:
            self._busy.pop(webhook.id, None)
            self._wake.set()

    def _send(self, webhook: Webhook) -> None:
        """Sends the new changes for one webhook in one request."""
        caller = self._now(webhook.caller)
        changes = self._registry.changes(webhook.number, MOST_CHANGES)
        if changes is None:
            number = self._registry.number()
            self._post(webhook, {"changes": [], "number": number, "lost": True})
        elif not changes:
            return
        else:
            number = changes[-1].number
            wanted = [each.event() for each in changes if webhook.wants(each) and sees(caller, each.audience)]
            if wanted:
                self._post(webhook, {"changes": wanted, "number": number})
        self._webhooks.took(webhook, number)

    def _post(self, webhook: Webhook, said: dict[str, Any]) -> None:
        """DeniedError where the address is not allowed (any more), DataError where what is there does not take it."""
        address = allowed(checked(webhook.url, self._config), self._config)
        body = orjson.dumps({"webhook": webhook.id, **said})
        headers = {"Content-Type": "application/json", "Host": urlsplit(webhook.url).netloc}
        headers |= signing().with_secret(webhook.secret, webhook.id).headers("POST", webhook.url, headers, body)
        status = post(address, body, headers, self._config, self._calls)
        if status == _GONE:
            raise _GoneError(f"{address.host!r} does not want changes any more (410).")
        if not 200 <= status < 300:
            raise DataError(f"{address.host!r} answered with the status {status}.")

    def close(self) -> None:
        self._closing.set()
        self._registry.listeners.remove(self._wake.set)
        self._wake.set()
        self._calls.cancel(CancelledError("The service is stopping."))
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._thread.join(CLOSING_SECONDS)


class _GoneError(DataError):
    """The receiver wants no more."""
