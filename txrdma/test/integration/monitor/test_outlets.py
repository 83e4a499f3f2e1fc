"""
Alerts to broken mail servers.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater
from twisted.mail.smtp import SMTP, SMTPBadRcpt, SMTPConnectError, SMTPFactory, User
from twisted.trial.unittest import TestCase

from txrdma.monitor.events import channels
from txrdma.monitor.events.channels import MailChannel, MailSettings
from txrdma.test.integration.monitor.test_notifier import _Delivery
from txrdma.test.support.monitor.alerts import alertsOf

reactor: Any = theReactor


class MailTests(TestCase):
    """Mail servers over loopback."""

    timeout = 30

    async def listening(self, factory: Any) -> MailChannel:
        port = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        return self.channel(port.getHost().port)

    def channel(self, number: int) -> MailChannel:
        receivers = ("ops@example.org", "nobody@example.org")
        return MailChannel(reactor, MailSettings("127.0.0.1", "fabric@example.org", receivers, number))

    async def test_away(self) -> None:
        """A server that closes the connection is tried once: the queue decides about further attempts."""
        connections: list[object] = []

        class HangUp(Protocol):
            def connectionMade(self) -> None:
                connections.append(self)
                self.transport.loseConnection()  # type: ignore[union-attr]  # it is connected

        channel = await self.listening(Factory.forProtocol(HangUp))
        await self.assertFailure(channel.send(alertsOf("leaf 1")), SMTPConnectError)
        await deferLater(reactor, 0.1)
        self.assertEqual(len(connections), 1)

    async def test_silent(self) -> None:
        """A server that does not answer causes a timeout."""
        self.patch(channels, "MAIL_SECONDS", 0.2)
        gone: Deferred[None] = Deferred()

        class Quiet(Protocol):
            def connectionLost(self, reason: object = None) -> None:
                gone.callback(None)

        channel = await self.listening(Factory.forProtocol(Quiet))
        await self.assertFailure(channel.send(alertsOf("leaf 1")), Exception)
        await gone

    async def test_oneRefused(self) -> None:
        """A refused recipient does not prevent delivery to the others, which get the mail once."""

        class Choosy(_Delivery):
            def validateTo(self, user: User) -> Any:
                if user.dest.local == b"nobody":
                    raise SMTPBadRcpt(user)
                return super().validateTo(user)

        delivery, gone = Choosy(), Deferred[None]()

        class Ending(SMTP):
            def connectionLost(self, reason: Any = None) -> None:
                super().connectionLost(reason)
                gone.callback(None)

        factory = SMTPFactory()
        factory.protocol = lambda: Ending(delivery)  # type: ignore[assignment, misc]  # as good as a class
        channel = await self.listening(factory)
        await channel.send(alertsOf("leaf 1"))
        self.assertEqual(len(delivery.mails), 1)
        await gone
        await deferLater(reactor, 0.0)
