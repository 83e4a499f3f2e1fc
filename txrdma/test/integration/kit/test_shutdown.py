"""Ports of a reactor that stops."""

from __future__ import annotations

from socket import create_connection
from typing import Any

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory
from twisted.internet.selectreactor import SelectReactor
from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.shutdown import addShutdownListener, IRefusesOnShutdown


class PortTests(SynchronousTestCase):
    def test_portsRefuseWhileConnectionsClose(self) -> None:
        """Ports that ask for it close before connections, and their factories are stopped after these."""
        calls: list[str] = []
        left: Deferred[None] = Deferred()

        @implementer(IRefusesOnShutdown)
        class Refusing(Factory):
            noisy = False

            def stopFactory(self) -> None:
                calls.append("stopFactory")

        reactor = SelectReactor()
        self.addCleanup(reactor.removeAll)
        addShutdownListener(reactor, lambda: left)
        refusing: Any = reactor.listenTCP(0, Refusing(), interface="127.0.0.1")
        other: Any = reactor.listenTCP(0, Factory(), interface="127.0.0.1")
        addresses = [(each.getHost().host, each.getHost().port) for each in (refusing, other)]
        reactor.fireSystemEvent("shutdown")
        self.assertRaises(ConnectionRefusedError, create_connection, addresses[0])
        create_connection(addresses[1]).close()
        self.assertEqual(calls, [])
        left.callback(None)
        self.assertEqual(calls, ["stopFactory"])
        self.assertTrue(refusing.disconnected and other.disconnected)
