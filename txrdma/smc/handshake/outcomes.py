"""
Outcomes of an endpoint's connections, logged and counted: SMC-R, plain TCP, or neither.
"""

from __future__ import annotations

from twisted.internet.error import ConnectError
from twisted.logger import Logger

from txrdma.error import Refused
from txrdma.kit.logs import Seldom
from txrdma.smc.common import counting
from txrdma.smc.common.names import diagnosisName
from txrdma.smc.wire.clc import Diagnosis

_log = Logger()
_seldom = Seldom(_log, seconds=3600.0)


class NotSMC(Refused, ConnectError):
    """
    The connection would have to run plain TCP, which was forbidden by C{fallback=no}.

    @ivar reason: why.
    @ivar peerDiagnosis: why the peer declined, if it did.
    """

    def __init__(self, reason: Diagnosis, peerDiagnosis: Diagnosis | None) -> None:
        text = f"no SMC-R, and no fallback to TCP is allowed: {diagnosisName(reason)}"
        if peerDiagnosis is not None:
            text += f", the peer says {diagnosisName(peerDiagnosis)}"
        super().__init__(text, int(reason))
        self._text = text
        self.osError = None
        self.reason = reason
        self.peerDiagnosis = peerDiagnosis

    def __str__(self) -> str:
        return self._text


class Outcomes:
    """
    Logs what became of the connections of an endpoint: the first of each kind, then once an hour how many.

    Endpoints of one name share that, so one for each connection is no noisier than one for all.
    """

    def __init__(self, where: str) -> None:
        """
        @param where: which connections, as C{"connection to 127.0.0.1:80"}.
        """
        self._where = where

    def fellBack(self, reason: Diagnosis, peerDiagnosis: Diagnosis | None, allowed: bool) -> None:
        """A connection runs on TCP, or has ended because it may not."""
        if not allowed:
            counting.refused[diagnosisName(reason) or ""] += 1
        _seldom.info(
            (self._where, allowed, reason, peerDiagnosis),
            "{where}: {what}, because {reason}{peer}",
            where=self._where,
            what="plain TCP" if allowed else "dropped, as it can't be SMC-R",
            reason=diagnosisName(reason),
            peer="" if peerDiagnosis is None else f"; the peer says {diagnosisName(peerDiagnosis)}",
        )

    def established(self, version: int, device: str, route: str) -> None:
        """A connection runs on SMC-R, of that version; 0 when that is not known."""
        _seldom.info(
            (self._where, version, device, route),
            "{where}: {what} by {device}, {route}",
            where=self._where,
            what="SMC-R" if version < 2 else f"SMC-Rv{version}",
            device=device,
            route=route,
        )
