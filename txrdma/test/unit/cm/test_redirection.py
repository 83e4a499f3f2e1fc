"""Redirections of REQs and SIDR_REQs to another port, which clients follow once."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.connections.adapter import adapterOf
from txrdma.cm.connections.datagrams import DatagramClientEndpoint, DatagramServerEndpoint
from txrdma.cm.errors import Rejected, Rejection, ServiceRefused
from txrdma.cm.layouts.messages import REJ, RejectReason, SIDRREP, SIDRStatus
from txrdma.cm.layouts.rejectinfo import informationFor, redirectedPath, ROOM
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, LID, QPN
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.messages.protocol import MessageFactory
from txrdma.test.support.cm.messaging import MessagingCase
from txrdma.test.unit.cm.test_datagrams import DatagramRecorder
from txrdma.testing.protocols import MessageRecorder

FIRST, SECOND = "10.0.1.2", "10.0.2.2"


def redirection(address: str) -> ClassPortInfo:
    """Return the information of a redirection to an address."""
    return ClassPortInfo(redirectGID=GID.fromIP(address), redirectQPN=QPN(1))


class PathTests(SynchronousTestCase):
    """L{redirectedPath}."""

    path = IBPath(sgid=GID.fromIP("10.0.1.1"), dgid=GID.fromIP(FIRST), hopLimit=64)

    def redirected(self, where: ClassPortInfo) -> IBPath | None:
        """Return the path to where a REJ redirects."""
        raw = informationFor(RejectReason.CM_AND_PORT_REDIRECT, where)
        return redirectedPath(
            self.path,
            REJ(
                reason=RejectReason.CM_AND_PORT_REDIRECT,
                rejectInfoLength=len(raw),
                additionalInfo=raw.ljust(ROOM, b"\0"),
            ),
        )

    def test_addresses(self) -> None:
        """The destination is replaced by a GID or a LID; redirections to other queue pairs are ignored."""
        found = self.redirected(redirection(SECOND))
        assert found is not None
        self.assertEqual((found.sgid, found.dgid), (self.path.sgid, GID.fromIP(SECOND)))
        found = self.redirected(ClassPortInfo(redirectLID=LID(7), redirectServiceLevel=3))
        assert found is not None
        self.assertEqual((found.dgid, found.dlid, found.serviceLevel), (self.path.dgid, 7, 3))
        self.assertIsNone(self.redirected(ClassPortInfo()))
        self.assertIsNone(self.redirected(redirection(SECOND).replace(redirectQPN=QPN(5))))
        self.assertIsNone(redirectedPath(self.path, REJ(reason=RejectReason.NO_RESOURCES)))


class RedirectedCase(MessagingCase):
    """A client, and a server with two ports."""

    addresses = (("10.0.1.1",), (FIRST, SECOND))


class ConnectionTests(RedirectedCase):
    """REQs of C{rdma:} clients."""

    def connecting(self, *advices: tuple[RejectReason, str]) -> tuple[Deferred[Any], Any]:
        """Connect to a server that redirects its clients to these addresses, one after the other."""
        left = list(advices)

        def made() -> MessageRecorder:
            if left:
                reason, address = left.pop(0)
                raise Rejection(reason, b"", informationFor(reason, redirection(address)))
            return self.made()

        port = self.listenAt(MessageFactory(made))
        return self.connectTo(privateData=b"hi"), port

    def test_otherPort(self) -> None:
        """A client connects to the port that a REJ names, with messages by that port or by the first one."""
        for reason, messagesTo in (
            (RejectReason.CM_AND_PORT_REDIRECT, SECOND),
            (RejectReason.PORT_REDIRECT, FIRST),
        ):
            asked, port = self.connecting((reason, SECOND))
            client = self.result(asked)
            self.wait(lambda: self.served and self.served[-1].isMade)
            server = self.served.pop()
            self.assertEqual(client.transport.path.remoteGID, GID.fromIP(SECOND))
            self.assertEqual(client.transport.connection.managed.path.dgid, GID.fromIP(messagesTo))
            self.assertEqual(client.transport.getPeer().host, SECOND)
            self.assertEqual(server.transport.getPeer().privateData, b"hi")
            client.transport.sendMessage(b"by the other port")
            self.wait(lambda server=server: server.messages)  # type: ignore[misc]  # a lambda
            client.transport.loseConnection()
            self.wait(lambda client=client: client.lost)  # type: ignore[misc]  # a lambda
            port.stopListening()
            self.assertNothingLeft()

    def test_onlyOnce(self) -> None:
        """A client that is redirected again fails with the second REJ."""
        reason = RejectReason.CM_AND_PORT_REDIRECT
        asked, port = self.connecting((reason, SECOND), (reason, FIRST))
        self.assertEqual(self.failure(asked, Rejected).status, reason)
        self.assertNothingLeft()


class ServiceTests(RedirectedCase):
    """SIDR_REQs of C{sidr:} clients."""

    def asking(self, *advices: str) -> tuple[Deferred[Any], Any]:
        """Query a service that redirects its clients to these addresses, one after the other."""
        port = self.listenAt(MessageFactory(lambda: DatagramRecorder(b"welcome")), DatagramServerEndpoint)
        left, answered = list(advices), port._answered

        def answer(request: Any, path: IBPath) -> SIDRREP:
            if not left:
                response: SIDRREP = answered(request, path)
                return response
            raw = informationFor(SIDRStatus.REDIRECT, redirection(left.pop(0)))
            return SIDRREP(
                status=SIDRStatus.REDIRECT,
                additionalInfoLength=len(raw),
                additionalInfo=raw.ljust(ROOM, b"\0"),
            )

        services = adapterOf(self.clock, self.devices[1]).localManager._services
        (listener,) = services
        services[listener] = answer
        return self.connectTo(MessageFactory(DatagramRecorder), DatagramClientEndpoint), port

    def test_otherPort(self) -> None:
        """A client finds the service at the port that a SIDR_REP names."""
        asked, port = self.asking(SECOND)
        client = self.result(asked)
        self.assertEqual(client.transport.peer.gid, GID.fromIP(SECOND))
        client.transport.loseConnection()
        self.assertNothingLeft()

    def test_onlyOnce(self) -> None:
        """A client that is redirected again fails with the second SIDR_REP."""
        asked, port = self.asking(SECOND, FIRST)
        self.assertEqual(self.failure(asked, ServiceRefused).status, SIDRStatus.REDIRECT)
        self.assertNothingLeft()
