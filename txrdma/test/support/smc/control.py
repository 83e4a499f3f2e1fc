"""
Base class for tests of control sockets on the real reactor.
"""

from __future__ import annotations

import os
from typing import Any, cast

from zope.interface import implementer

from twisted.internet import reactor as installedReactor
from twisted.python.runtime import platform
from twisted.trial.unittest import TestCase

from txrdma.interfaces import ISMCStatus
from txrdma.smc.status import control as introspection
from txrdma.smc.status.control import answer
from txrdma.unix import answers as unixanswers

reactor = cast(unixanswers.IUNIXReactor, installedReactor)


NAMESPACE = f"txrdma/test-{os.getpid()}"
"""Prefix of abstract names that no other process of this machine uses, so that none of them answers."""


@implementer(ISMCStatus)
class ReportedStatus:
    """A stand-in for a connection's status."""

    mode = "SMC-R"
    fallbackReason = None
    peerDiagnosis = None
    version = 1
    eid = ""
    device = "soft"
    route = "shared-memory"
    linkGroup = "0001"
    state = "ACTIVE"
    bytesSent = bytesReceived = writes = messagesSent = messagesReceived = 0

    def toDict(self) -> dict[str, object]:
        return {"mode": self.mode, "state": self.state, "linkGroup": self.linkGroup}


class AskingCase(TestCase):
    """Tests with the control sockets of this process."""

    if not platform.isLinux():
        skip = "abstract UNIX sockets are available on Linux only"

    def setUp(self) -> None:
        self.patch(introspection, "NAMESPACE", NAMESPACE)

    def listen(self, connections: int = 2) -> None:
        control = answer(reactor, lambda: {"connections": [ReportedStatus().toDict()] * connections})
        assert control is not None
        self.addCleanup(control.close)

    async def ours(self, pid: int) -> list[dict[str, Any]]:
        """Return the answers of a process, of which there may be none."""
        return [each for each in await unixanswers.askAll(NAMESPACE, reactor, 5.0) if each["pid"] == pid]
