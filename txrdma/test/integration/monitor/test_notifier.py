"""
Channels of alerts over real connections.
"""

from __future__ import annotations

import json
from typing import Any

from zope.interface import implementer

from twisted.internet import reactor as theReactor
from twisted.internet.defer import Deferred, succeed
from twisted.internet.protocol import connectionDone
from twisted.internet.task import deferLater
from twisted.mail.smtp import IMessage, IMessageDelivery, SMTP, SMTPFactory, User
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site

from txrdma.error import DeviceUnavailable
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
        self.envelope.append(str(user.dest))
        return lambda: _Mail(self.mails)


class ChannelTests(TestCase):
    """Channels over loopback, to Twisted's servers."""

    async def listening(self, factory: Any) -> int:
        port = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        return int(port.getHost().port)

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
        hook.answer = bytes(MOST_ANSWER + 1)  # and more, without end
        await channel.send(alertsOf("leaf 1"))
        hook.code, hook.answer = 500, b"{}"
        await self.assertFailure(channel.send(alertsOf("leaf 1")), DeviceUnavailable)

    async def test_mail(self) -> None:
        """A mail arrives, with its sender and receivers."""
        delivery = _Delivery()
        factory = SMTPFactory()
        ended: list[Deferred[None]] = []

        class Ending(SMTP):
            def connectionMade(self) -> None:
                ended.append(Deferred())
                super().connectionMade()

            def connectionLost(self, reason: Failure = connectionDone) -> None:
                super().connectionLost(reason)
                ended[0].callback(None)

        factory.protocol = lambda: Ending(delivery)  # type: ignore[assignment, misc]  # as good as a class
        number = await self.listening(factory)
        settings = MailSettings("127.0.0.1", "fabric@example.org", ("ops@example.org",), number)
        await MailChannel(reactor, settings).send(alertsOf("leaf 1"))
        self.assertEqual(delivery.envelope, ["fabric@example.org", "ops@example.org"])
        self.assertIn(b"Subject: [fabric] width at leaf 1", delivery.mails[0])
        self.assertIn(b"Mend it.", delivery.mails[0])
        await ended[0]
        await deferLater(reactor, 0.0)  # the client's side ends, too
