"""Checks what a caller may still do when the service acts in their name later, such as for webhooks.

Rights are taken away by revoking a token, or in the configuration. A JSON Web Token ends, and nobody says who may have
another: what it said of groups does not last. The name does, as that of whoever made a job.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from dai.config import IdentityConfig
from dai.config.identity import KeyConfig, SubjectConfig
from dai.errors import DeniedError
from dai.security.identity import Caller, StoredToken

_SIGNATURES = {"signature", "xml-signature", "ws-security"}


def now(caller: Caller, what: str, config: IdentityConfig, tokens: Iterable[StoredToken]) -> Caller:
    """The caller, with what is left of the groups and of the rights of an administrator that they had when they asked.
    ``what`` they ask is no resource of others. DeniedError for a name that is not known any more."""
    methods = set(config.methods)
    if not caller.name:
        if methods and not config.anonymous:
            raise DeniedError("This service no longer serves anonymous callers.")
        return caller
    known = list(_callers(caller.name, config, tokens))
    fitting = [each for each in known if each.may_ask(what)]
    others = methods - _SIGNATURES - {"token"}
    if config.certificate.subjects:
        others.discard("certificate")
    if methods and not others and not fitting:
        raise DeniedError(
            f"This service no longer knows the caller {caller.name!r}.",
            hint="The token may have been revoked, or have expired.",
        )
    groups = frozenset[str]().union(*(each.groups for each in fitting))
    administrator = any(each.administrator for each in fitting)
    return replace(caller, groups=caller.groups & groups, administrator=caller.administrator and administrator)


def _callers(name: str, config: IdentityConfig, tokens: Iterable[StoredToken]) -> Iterable[Caller]:
    """Who has that name, by each method that keeps names here."""
    methods = set(config.methods)
    kept: list[StoredToken | KeyConfig | SubjectConfig] = []
    if "token" in methods:
        kept += [each for each in tokens if each.expires > time.time()]
    if methods & _SIGNATURES and config.signatures is not None:
        kept += config.signatures.keys.values()
    if "certificate" in methods:
        kept += config.certificate.subjects.values()
    for each in kept:
        if each.name == name:
            yield Caller(name, "", frozenset(each.resources), each.administrator, frozenset(each.groups))
