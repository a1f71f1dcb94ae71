"""Refusals of UDDI: a disposition report with a number and a code."""

from __future__ import annotations

from typing import Any

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
from dai.service import soap
from dai.service.registry.uddi.structures import OPERATOR
from dai.service.registry.uddi.types import UDDI


class Refused(DaiError):
    """A refusal that only UDDI has, with its code."""

    status = 400

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.named = code


ERRORS = {
    "E_nameTooLong": 10020,
    "E_tooManyOptions": 10030,
    "E_unrecognizedVersion": 10040,
    "E_unsupported": 10050,
    "E_authTokenExpired": 10110,
    "E_authTokenRequired": 10120,
    "E_userMismatch": 10140,
    "E_accountLimitExceeded": 10160,
    "E_invalidKeyPassed": 10210,
    "E_keyRetired": 10310,
    "E_busy": 10400,
    "E_fatalError": 10500,
    "E_assertionNotFound": 30000,
    "E_invalidCompletionStatus": 30100,
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


def code_of(error: DaiError) -> str:
    if isinstance(error, Refused):
        return error.named
    return next((each for kind, each in _CODES if isinstance(error, kind)), "E_fatalError")


def fault(error: DaiError) -> bytes:
    code = code_of(error)
    info = {"errCode": code, "text": str(error) or error.title}
    detail = UDDI.message("dispositionReport", report(ERRORS[code], info))
    return soap.fault(error, detail)


def report(number: int, info: dict[str, str]) -> dict[str, Any]:
    return {"generic": "2.0", "operator": OPERATOR, "result": [{"errno": str(number), "errInfo": info}]}
