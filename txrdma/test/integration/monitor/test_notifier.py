"""Channels of alerts over real connections."""

from __future__ import annotations

import json
from typing import Any

from zope.interface import implementer

from twisted.internet import reactor as theReactor
from twisted.internet.defer import Deferred, succeed
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.internet.task import deferLater
from twisted.mail.smtp import (
    IMessage,
    IMessageDelivery,
    SMTP,
    SMTPBadRcpt,
    SMTPFactory,
    User,
)
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site

from txrdma.error import DeviceUnavailable
from txrdma.monitor.events import channels
from txrdma.monitor.events.channels import (
    AlertChannel,
    MailChannel,
    MailSettings,
    MOST_ANSWER,
    WebhookChannel,
)
from txrdma.test.support.monitor.alerts import alertsOf

reactor: Any = theReactor


class _Hook(Resource):
    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[Any] = []
        self.code = 200
        self.answer = b"{}"
        self.authorizations: list[str | None] = []

    def render_POST(self, request: Any) -> bytes | int:
        self.bodies.append((request.getHeader("content-type"), json.loads(request.content.read())))
        self.authorizations.append(request.getHeader("authorization"))
        request.setResponseCode(self.code)
        if len(self.answer) > MOST_ANSWER:
            request.write(self.answer)
            return NOT_DONE_YET
        return self.answer


@implementer(IMessage)
class _Mail:
    def __init__(self, mails: list[bytes]) -> None:
        self._lines: list[bytes] = []
        self._mails = mails

    def lineReceived(self, line: bytes) -> None:
        self._lines.append(line)

    def eomReceived(self) -> Deferred[None]:
        self._mails.append(b"\n".join(self._lines))
        return succeed(None)

    def connectionLost(self) -> None:
        pass


@implementer(IMessageDelivery)
class _Delivery:
    def __init__(self) -> None:
        self.mails: list[bytes] = []
        self.envelope: list[str] = []

    def receivedHeader(self, helo: object, origin: object, recipients: object) -> bytes:
        return b"Received: here"

    def validateFrom(self, helo: object, origin: Any) -> Any:
        self.envelope.append(str(origin))
        return origin

    def validateTo(self, user: User) -> Any:
        if user.dest.local == b"nobody":
            raise SMTPBadRcpt(user)
        self.envelope.append(str(user.dest))
        return lambda: _Mail(self.mails)


class ChannelTestCase(TestCase):
    """Channels over loopback, to Twisted's servers."""

    async def listening(self, factory: Any) -> int:
        port = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        return int(port.getHost().port)


class ChannelTests(ChannelTestCase):
    """Webhooks over loopback."""

    async def test_webhook(self) -> None:
        """Both formats arrive; an unsuccessful HTTP status is a failure."""
        hook = _Hook()
        number = await self.listening(Site(hook))
        url = f"http://127.0.0.1:{number}/api/v2/alerts"
        for isAlertmanager in (True, False):
            channel: AlertChannel = WebhookChannel(reactor, "me", url, isAlertmanager)
            await channel.send(alertsOf("leaf 1"))
        (first, second) = hook.bodies
        self.assertEqual((first[0], first[1][0]["annotations"]["where"]), ("application/json", "leaf 1"))
        self.assertEqual(second[1]["alerts"][0]["annotations"]["where"], "leaf 1")
        self.assertEqual(hook.authorizations, [None, None])
        channel = WebhookChannel(reactor, "me", url, True, "Bearer abc")
        await channel.send(alertsOf("leaf 1"))
        self.assertEqual(hook.authorizations[-1], "Bearer abc")
        hook.answer = bytes(MOST_ANSWER + 1)  # an endless answer
        await channel.send(alertsOf("leaf 1"))
        hook.code, hook.answer = 500, b"{}"
        await self.assertFailure(channel.send(alertsOf("leaf 1")), DeviceUnavailable)


class _Ending(SMTP):
    """A server's end of a connection; C{ended} fires when it is lost."""

    def __init__(self, delivery: _Delivery) -> None:
        super().__init__(delivery)
        self.ended: Deferred[None] = Deferred()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        super().connectionLost(reason)
        self.ended.callback(None)


class MailTests(ChannelTestCase):
    """Mail servers over loopback."""

    timeout = 30

    async def mailing(self, factory: Any) -> MailChannel:
        receivers = ("ops@example.org", "nobody@example.org")
        number = await self.listening(factory)
        return MailChannel(reactor, MailSettings("127.0.0.1", "fabric@example.org", receivers, number))

    async def test_mail(self) -> None:
        """A mail arrives once, with its sender and receivers, although one of these is refused."""
        delivery = _Delivery()
        server = _Ending(delivery)
        factory = SMTPFactory()
        factory.protocol = lambda: server  # type: ignore[assignment, misc]  # as good as a class
        channel = await self.mailing(factory)
        await channel.send(alertsOf("leaf 1"))
        self.assertEqual(delivery.envelope, ["fabric@example.org", "ops@example.org"])
        (mail,) = delivery.mails
        self.assertIn(b"Subject: [fabric] width at leaf 1", mail)
        self.assertIn(b"Mend it.", mail)
        await server.ended
        await deferLater(reactor, 0.0)  # until the client's end is closed

    async def test_away(self) -> None:
        """If a server closes the connection, the channel does not retry: the queue decides about that."""
        connections: list[object] = []

        class HangUp(Protocol):
            def connectionMade(self) -> None:
                connections.append(self)
                self.transport.loseConnection()  # type: ignore[union-attr]  # it is connected

        channel = await self.mailing(Factory.forProtocol(HangUp))
        await self.assertFailure(channel.send(alertsOf("leaf 1")), DeviceUnavailable)
        await deferLater(reactor, 0.1)
        self.assertEqual(len(connections), 1)

    async def test_silent(self) -> None:
        """A server that does not answer causes a timeout."""
        self.patch(channels, "MAIL_SECONDS", 0.2)
        gone: Deferred[None] = Deferred()

        class Quiet(Protocol):
            def connectionLost(self, reason: object = None) -> None:
                gone.callback(None)

        channel = await self.mailing(Factory.forProtocol(Quiet))
        await self.assertFailure(channel.send(alertsOf("leaf 1")), Exception)
        await gone
