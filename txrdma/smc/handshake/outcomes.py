"""Logs and counts whether connections use SMC-R or plain TCP, or are refused."""

from __future__ import annotations

from twisted.internet.error import ConnectError
from twisted.logger import Logger, LogLevel

from txrdma.error import Refused
from txrdma.kit.logs import RateLimitedLogger
from txrdma.smc.common import counting
from txrdma.smc.common.names import diagnosisName
from txrdma.smc.wire.clc import Diagnosis

_log = Logger()
_rateLimited = RateLimitedLogger(_log, seconds=3600.0)


class NotSMC(Refused, ConnectError):
    """The connection can't use SMC-R for this reason, and C{fallback=no} forbids plain TCP."""

    def __init__(self, reason: Diagnosis, peerDiagnosis: Diagnosis | None) -> None:
        text = f"no SMC-R, and no fallback to TCP is allowed: {diagnosisName(reason)}"
        if peerDiagnosis is not None:
            text += f", the peer reports {diagnosisName(peerDiagnosis)}"
        super().__init__(text, int(reason))
        self._text = text
        self.osError = None
        self.reason = reason
        self.peerDiagnosis = peerDiagnosis

    def __str__(self) -> str:
        return self._text


class Outcomes:
    """Logs the outcome of connections by name: the first of each kind, then a count once an hour."""

    def __init__(self, where: str) -> None:
        self._where = where

    def fellBack(
        self, reason: Diagnosis, peerDiagnosis: Diagnosis | None, allowed: bool, why: str = ""
    ) -> None:
        """
        Record that a connection uses TCP, or was dropped because a fallback is not allowed.

        @param why: the local error that has caused it, which an administrator may be able to correct.
        """
        if not allowed:
            counting.refused[diagnosisName(reason) or ""] += 1
        _rateLimited.emit(
            LogLevel.warn if why else LogLevel.info,
            (self._where, allowed, reason, peerDiagnosis, bool(why)),  # the text may differ each time
            "{where}: {what}, because {reason}{peer}{why}",
            where=self._where,
            what="plain TCP" if allowed else "dropped, as it can't be SMC-R",
            reason=diagnosisName(reason),
            peer="" if peerDiagnosis is None else f"; the peer reports {diagnosisName(peerDiagnosis)}",
            why=why and f": {why}",
        )

    def established(self, version: int, device: str, route: str) -> None:
        _rateLimited.info(
            (self._where, version, device, route),
            "{where}: {what} by {device}, {route}",
            where=self._where,
            what="SMC-R" if version < 2 else f"SMC-Rv{version}",
            device=device,
            route=route,
        )
