"""The result codes of replica location, with their texts, and the errors that they become.

Source: the codes are those of the original service, which its clients know.
"""

from __future__ import annotations

from enum import IntEnum

from dai.errors import ConflictError, DaiError, NotFoundError, ParameterError

LOGICAL, TARGET = 0, 1
"""Kinds of names, by the numbers that the protocol gives them."""
KINDS = {"logical": LOGICAL, "target": TARGET}


class Code(IntEnum):
    OK = 0
    GLOBUSERR = 1
    BADURL = 3
    BADARG = 6
    PERM = 7
    BADMETHOD = 8
    INVSERVER = 9
    MAPPING_NEXIST = 10
    LFN_EXIST = 11
    LFN_NEXIST = 12
    PFN_EXIST = 13
    PFN_NEXIST = 14
    LRC_EXIST = 15
    LRC_NEXIST = 16
    DBERROR = 17
    RLI_EXIST = 18
    RLI_NEXIST = 19
    MAPPING_EXIST = 20
    INV_ATTR_TYPE = 21
    ATTR_EXIST = 22
    ATTR_NEXIST = 23
    UNSUPPORTED = 26
    TIMEOUT = 27
    ATTR_VALUE_NEXIST = 29
    ATTR_INUSE = 30


TEXTS = {
    Code.GLOBUSERR: "Error",
    Code.BADURL: "Bad URL",
    Code.BADARG: "Bad argument",
    Code.PERM: "Permission denied",
    Code.BADMETHOD: "Bad method name",
    Code.INVSERVER: "Invalid server for the operation",
    Code.MAPPING_NEXIST: "Mapping doesn't exist",
    Code.LFN_EXIST: "LFN already exists",
    Code.LFN_NEXIST: "LFN doesn't exist",
    Code.PFN_EXIST: "PFN already exists",
    Code.PFN_NEXIST: "PFN doesn't exist",
    Code.LRC_EXIST: "LRC already exists",
    Code.LRC_NEXIST: "LRC doesn't exist",
    Code.DBERROR: "Database error",
    Code.RLI_EXIST: "RLI already exists",
    Code.RLI_NEXIST: "RLI doesn't exist",
    Code.MAPPING_EXIST: "Mapping already exists",
    Code.INV_ATTR_TYPE: "Invalid attribute type",
    Code.ATTR_EXIST: "Attribute already exists",
    Code.ATTR_NEXIST: "Attribute doesn't exist",
    Code.UNSUPPORTED: "Unsupported",
    Code.TIMEOUT: "Timeout",
    Code.ATTR_VALUE_NEXIST: "Attribute value doesn't exist",
    Code.ATTR_INUSE: "Attribute in use",
}
MISSING = (Code.LFN_NEXIST, Code.PFN_NEXIST)
"""By the kind of the name."""
PRESENT = (Code.LFN_EXIST, Code.PFN_EXIST)


def text(code: int, about: str = "") -> str:
    """As the original service said it: ``LFN doesn't exist: x``."""
    said = TEXTS.get(Code(code), "")
    return f"{said}: {about}" if about else said


class Refused(Exception):
    """An operation that ends with a code, for which ``about`` says of what."""

    def __init__(self, code: Code, about: str = "") -> None:
        super().__init__(text(code, about))
        self.code, self.about = code, about

    def error(self) -> DaiError:
        kind: type[DaiError] = ParameterError
        if self.code.name.endswith("NEXIST"):
            kind = NotFoundError
        elif self.code.name.endswith("EXIST") or self.code is Code.ATTR_INUSE:
            kind = ConflictError
        return kind(f"{self}.", replica_code=int(self.code))
