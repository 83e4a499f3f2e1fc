"""
Sessions: WebSockets by Autobahn, IRC, SMTP and POP3.
"""

from __future__ import annotations

import io
from typing import Any

from zope.interface import implementer

from twisted.cred import checkers, credentials, portal
from twisted.internet.defer import Deferred, gatherResults, succeed
from twisted.internet.protocol import Factory

from txrdma.test.system.foreign.programs.program import BIG, digest, Ends, factoryOf, Program

_USER, _PASSWORD = b"user", b"secret"


def _portal(realm: Any) -> portal.Portal:
    users = checkers.InMemoryUsernamePasswordDatabaseDontUse(user=_PASSWORD)
    return portal.Portal(realm, [users])


class WebSockets(Program):
    """Autobahn's WebSockets: messages of 0 to 3 MB, pings, fragments, compression, closing codes."""

    needs = ("autobahn",)
    imports = ("autobahn",)

    async def serve(self, ends: Ends) -> None:
        from autobahn.twisted.websocket import WebSocketServerFactory, WebSocketServerProtocol

        class Server(WebSocketServerProtocol):  # type: ignore[misc]  # untyped
            def onMessage(self, payload: bytes, isBinary: bool) -> None:
                if payload == b"leave":
                    self.sendClose(3001, "as asked")
                elif payload == b"drop":
                    self.transport.abortConnection()
                else:
                    self.sendMessage(payload, isBinary, fragmentSize=len(payload) // 5 or None)

        factory = WebSocketServerFactory("ws://localhost:9000")
        factory.protocol = Server
        factory.setProtocolOptions(autoPingInterval=0.05, autoPingTimeout=10, **_compressing(True))
        await ends.listen(factory)

    async def use(self, ends: Ends) -> object:
        from autobahn.twisted.websocket import WebSocketClientFactory, WebSocketClientProtocol

        class Client(WebSocketClientProtocol):  # type: ignore[misc]  # untyped
            def __init__(self) -> None:
                super().__init__()
                self.opened: Deferred[None] = Deferred()
                self.closed: Deferred[str] = Deferred()
                self.answers: list[str] = []

            def onOpen(self) -> None:
                self.opened.callback(None)

            def onMessage(self, payload: bytes, isBinary: bool) -> None:
                self.answers.append(f"{isBinary} {digest(payload)}")
                if len(self.answers) == len(_SIZES) * 2:
                    self.sendMessage(self.last)

            def onClose(self, wasClean: bool, code: Any, reason: Any) -> None:
                self.closed.callback(f"{wasClean} {code} {reason}")

        saw: list[object] = []
        for last, isCompressed in ((b"leave", True), (b"drop", False), (b"leave", False)):
            factory = WebSocketClientFactory("ws://localhost:9000")
            factory.protocol = Client
            factory.setProtocolOptions(**(_compressing(False) if isCompressed else {}))
            client = await ends.connect(factory)
            client.last = last
            await client.opened
            for size in _SIZES:
                client.sendMessage(BIG[:size], True)
                client.sendMessage(b"t" * size, False)
            saw.append([await client.closed, client.answers])
        return saw


_SIZES = (0, 1, 125, 126, 65_535, 65_536, 3_000_000)


def _compressing(isServer: bool) -> dict[str, Any]:
    from autobahn.websocket import compress

    if isServer:
        return {
            "perMessageCompressionAccept": lambda offers: (
                compress.PerMessageDeflateOfferAccept(offers[0]) if offers else None
            )
        }
    return {
        "perMessageCompressionOffers": [compress.PerMessageDeflateOffer()],
        "perMessageCompressionAccept": lambda answer: compress.PerMessageDeflateResponseAccept(answer),
    }


class IRC(Program):
    """C{twisted.words}: two users of an IRC service talk in a channel."""

    async def serve(self, ends: Ends) -> None:
        from twisted.words import service

        realm = service.InMemoryWordsRealm("example.com")
        realm.createGroupOnRequest = True
        realm.createUserOnRequest = True

        @implementer(checkers.ICredentialsChecker)
        class Everybody:
            credentialInterfaces = (credentials.IUsernamePassword,)

            def requestAvatarId(self, known: Any) -> Any:
                return succeed(known.username)

        words = Everybody()
        await ends.listen(service.IRCFactory(realm, portal.Portal(realm, [words])))

    async def use(self, ends: Ends) -> object:
        from twisted.words.protocols import irc

        class User(irc.IRCClient):
            password = "secret"
            lineRate = None

            def __init__(self, name: str) -> None:
                self.nickname = name
                self.joinedChannel: Deferred[None] = Deferred()
                self.received: Deferred[list[str]] = Deferred()
                self.texts: list[str] = []

            def signedOn(self) -> None:
                self.join("#talk")

            def joined(self, channel: str) -> None:
                self.joinedChannel.callback(None)

            def privmsg(self, user: str, channel: str, message: str) -> None:
                self.texts.append(f"{user.partition('!')[0]} {channel} {message}")
                if len(self.texts) == 300:
                    self.received.callback(self.texts)

        alice = await ends.connect(factoryOf(lambda: User("alice")))
        await alice.joinedChannel
        bob = await ends.connect(factoryOf(lambda: User("bob")))
        await bob.joinedChannel
        for number in range(300):
            alice.sendLine(f"PRIVMSG #talk :number {number} {'x' * number}")
            bob.sendLine(f"PRIVMSG #talk :number {number}")
        saw = [digest("\n".join(await user.received).encode()) for user in (alice, bob)]
        alice.quit("enough")
        bob.transport.loseConnection()
        return saw


class SMTP(Program):
    """C{twisted.mail}: ESMTP with STARTTLS and a login, a mail of 4 MB, and 20 mails at a time."""

    needs = ("pyOpenSSL",)
    imports = ("OpenSSL",)

    async def serve(self, ends: Ends) -> None:
        from twisted.mail import smtp
        from twisted.mail.imap4 import LOGINCredentials, PLAINCredentials

        received = ends.folder / "mails"

        @implementer(smtp.IMessage)
        class Message:
            def __init__(self) -> None:
                self._lines: list[bytes] = []

            def lineReceived(self, line: bytes) -> None:
                self._lines.append(line)

            def eomReceived(self) -> Any:
                text = b"\n".join(each for each in self._lines if b"eceived" not in each)
                with open(received, "a") as file:
                    file.write(digest(text) + "\n")
                return succeed(None)

            def connectionLost(self) -> None:
                """Do nothing."""

        @implementer(smtp.IMessageDelivery)
        class Delivery:
            def receivedHeader(self, helo: Any, origin: Any, recipients: Any) -> bytes:
                return b"Received: by a test"

            def validateFrom(self, helo: Any, origin: Any) -> Any:
                return origin

            def validateTo(self, user: Any) -> Any:
                return Message

        @implementer(portal.IRealm)
        class Realm:
            def requestAvatar(self, name: Any, mind: Any, *interfaces: Any) -> Any:
                return smtp.IMessageDelivery, Delivery(), lambda: None

        options = ends.certificate().options()

        class Server(Factory):
            def buildProtocol(self, address: Any) -> Any:
                made = smtp.ESMTP(
                    {b"LOGIN": LOGINCredentials, b"PLAIN": PLAINCredentials}, contextFactory=options
                )
                made.portal = _portal(Realm())
                made.host = b"localhost"
                made.factory = self
                return made

        await ends.listen(Server())

    async def use(self, ends: Ends) -> object:
        from twisted.internet.ssl import CertificateOptions
        from twisted.mail import smtp

        async def send(body: bytes) -> Any:
            sent: Deferred[Any] = Deferred()
            mail = io.BytesIO(b"Subject: a test\n\n" + body)
            factory = smtp.ESMTPSenderFactory(
                _USER,
                _PASSWORD,
                b"alice@example.com",
                [b"bob@example.com"],
                mail,
                sent,
                contextFactory=CertificateOptions(),
                requireTransportSecurity=True,
                hostname="localhost",
            )
            await ends.connect(factory)
            return await sent

        import base64

        saw: list[object] = [repr(await send(base64.encodebytes(BIG)))]
        many = [Deferred.fromCoroutine(send(b"number %d\n" % number)) for number in range(20)]
        saw.append(repr(await gatherResults(many)))
        return [*saw, sorted((ends.folder / "mails").read_text().split("\n"))]


class POP3(Program):
    """C{twisted.mail}'s POP3: a list of 200 mails, and 65 of them, one after the other."""

    needs = ("pyOpenSSL",)
    imports = ("OpenSSL",)

    async def serve(self, ends: Ends) -> None:
        from twisted.mail import pop3
        from twisted.mail.interfaces import IMailboxPOP3 as imailbox

        @implementer(imailbox)
        class Mailbox:
            def listMessages(self, index: int | None = None) -> Any:
                sizes = [each * 97 for each in range(200)]
                return sizes if index is None else sizes[index]

            def getMessage(self, index: int) -> Any:
                return io.BytesIO(b"Subject: x\r\n\r\n" + b"%d\r\n" % index * (index * 10))

            def getUidl(self, index: int) -> bytes:
                return b"id%d" % index

            def deleteMessage(self, index: int) -> None:
                """Ignore the request."""

            def undeleteMessages(self) -> None:
                """Do nothing, because nothing was deleted."""

            def sync(self) -> None:
                """Do nothing."""

        @implementer(portal.IRealm)
        class Realm:
            def requestAvatar(self, name: Any, mind: Any, *interfaces: Any) -> Any:
                return imailbox, Mailbox(), lambda: None

        options = ends.certificate().options()

        @implementer(pop3.IServerFactory)
        class Server(Factory):
            cap_IMPLEMENTATION = cap_EXPIRE = cap_LOGIN_DELAY = staticmethod(lambda: b"0")
            perUserExpiration = perUserLoginDelay = staticmethod(lambda: False)

            def buildProtocol(self, address: Any) -> Any:
                made = pop3.POP3()
                made.portal, made.factory = _portal(Realm()), self
                made.ctx = options
                return made

        await ends.listen(Server())

    async def use(self, ends: Ends) -> object:
        from twisted.mail.pop3client import POP3Client

        greeted: Deferred[None] = Deferred()

        class Client(POP3Client):
            allowInsecureLogin = True

            def serverGreeting(self, greeting: Any) -> None:
                self.serverChallenge = None
                greeted.callback(None)

        client = await ends.connect(factoryOf(Client))
        await greeted
        await client.login(_USER, _PASSWORD)
        sizes = await client.listSize()
        mails = [digest(b"\n".join(await client.retrieve(number))) for number in range(1, 196, 3)]
        await client.quit()
        return [sum(sizes), mails]
