"""What UDDI says when it refuses: a disposition report with a number and a code."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

from dai.errors import (
    BusyError,
    ConflictError,
    DaiError,
    DatabaseUnavailableError,
    DeniedError,
    LimitError,
    NotFoundError,
    QuotaError,
    TooLargeError,
)
from dai.service.registry.uddi.structures import OPERATOR
from dai.service.registry.uddi.types import NAMESPACE, write
from dai.service.soap import envelope


class Refused(DaiError):
    """What only UDDI refuses, with its code."""

    status = 400

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.named = code


ERRORS = {
    "E_unrecognizedVersion": 10040,
    "E_unsupported": 10050,
    "E_userMismatch": 10140,
    "E_accountLimitExceeded": 10160,
    "E_invalidKeyPassed": 10210,
    "E_busy": 10400,
    "E_fatalError": 10500,
}
_CODES: tuple[tuple[type[DaiError], str], ...] = (
    (NotFoundError, "E_invalidKeyPassed"),
    (ConflictError, "E_invalidKeyPassed"),
    (DeniedError, "E_userMismatch"),
    (QuotaError, "E_accountLimitExceeded"),
    (LimitError, "E_accountLimitExceeded"),
    (TooLargeError, "E_accountLimitExceeded"),
    (BusyError, "E_busy"),
    (DatabaseUnavailableError, "E_busy"),
)


def fault(error: DaiError) -> bytes:
    code = error.named if isinstance(error, Refused) else "E_fatalError"
    code = next((each for kind, each in _CODES if isinstance(error, kind)), code)
    side = "Client" if error.status < 500 else "Server"
    info = {"errCode": code, "text": str(error) or error.title}
    told = write("dispositionReport", report(ERRORS[code], info))
    told = told.replace("<dispositionReport", f'<dispositionReport xmlns="{NAMESPACE}"', 1)
    text = escape(error.detail or error.title)
    return envelope(
        f"<s:Fault><faultcode>s:{side}</faultcode><faultstring>{text}</faultstring><detail>{told}</detail></s:Fault>"
    )


def report(number: int, info: dict[str, str]) -> dict[str, Any]:
    return {"generic": "2.0", "operator": OPERATOR, "result": [{"errno": str(number), "errInfo": info}]}
