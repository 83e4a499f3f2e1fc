"""
Remote calls: AMP, Perspective Broker, Foolscap, XML-RPC and LDAP.
"""

from __future__ import annotations

from typing import Any

from zope.interface import implementer

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.protocol import Factory
from twisted.protocols import amp
from twisted.spread import pb, util

from txrdma.test.system.foreign.programs.program import BIG, digest, Ends, factoryOf, Program

_LONGEST = 0xFFFF


class Sum(amp.Command):
    arguments = ((b"numbers", amp.ListOf(amp.Integer())),)
    response = ((b"total", amp.Integer()),)


class Twist(amp.Command):
    arguments = ((b"text", amp.String()),)
    response = ((b"text", amp.String()),)
    errors = {ValueError: b"VALUE"}  # as AMP requires


class _Locator(amp.AMP):
    @Sum.responder
    def sum(self, numbers: list[int]) -> dict[str, int]:
        return {"total": sum(numbers)}

    @Twist.responder
    def twist(self, text: bytes) -> dict[str, bytes]:
        if not text:
            raise ValueError("nothing to turn")
        return {"text": text[::-1]}


class AMP(Program):
    """AMP: values of 65,535 bytes, a thousand calls at a time, errors, and STARTTLS in mid-stream."""

    needs = ("pyOpenSSL",)
    imports = ("OpenSSL",)

    async def serve(self, ends: Ends) -> None:
        certificate = ends.certificate()

        class Server(_Locator):
            @amp.StartTLS.responder
            def startTLS(self) -> dict[str, Any]:
                return {"tls_localCertificate": certificate}

        await ends.listen(factoryOf(Server))

    async def use(self, ends: Ends) -> object:
        client = await ends.connect(factoryOf(_Locator))
        saw: list[object] = [await self._talk(client)]
        await client.callRemote(amp.StartTLS)
        saw.append(await self._talk(client))
        client.transport.loseConnection()
        return saw

    async def _talk(self, client: Any) -> object:
        longest = BIG[:_LONGEST]
        many = [client.callRemote(Sum, numbers=[each] * (each % 30)) for each in range(1000)]
        turned = [client.callRemote(Twist, text=longest) for _ in range(20)]
        refused = client.callRemote(Twist, text=b"").addErrback(lambda failure: failure.type.__name__)
        totals = [each["total"] for each in await gatherResults(many)]
        texts = {digest(each["text"]) for each in await gatherResults(turned)}
        return [sum(totals), sorted(texts), await refused]


class PerspectiveBroker(Program):
    """Perspective Broker: callbacks in both directions, pages of 3 MB, copies, errors, and a closing peer."""

    async def serve(self, ends: Ends) -> None:
        class Root(pb.Root):
            def remote_echo(self, *things: Any) -> Any:
                return things

            def remote_pages(self, collector: Any) -> None:
                util.StringPager(collector, BIG, 60_000)

            async def _counted(self, callback: Any) -> int:
                return sum([await callback.callRemote("ask", number) for number in range(100)])

            def remote_count(self, callback: Any) -> Any:
                return Deferred.fromCoroutine(self._counted(callback))

            def remote_fail(self) -> None:
                raise pb.Error("as asked for")

            def remote_leave(self, mind: Any) -> None:
                mind.broker.transport.loseConnection()

        await ends.listen(pb.PBServerFactory(Root()))

    async def use(self, ends: Ends) -> object:
        class Asked(pb.Referenceable):
            def remote_ask(self, number: int) -> int:
                return number * 2

        factory = pb.PBClientFactory()
        await ends.connect(factory)
        root: Any = await factory.getRootObject()
        saw: list[object] = [await root.callRemote("echo", 1, "two", [3.0, {"four": b"5" * 1000}])]
        saw[0] = repr(saw[0])
        paged: Deferred[Any] = Deferred()
        util.getAllPages(root, "pages").chainDeferred(paged)
        saw.append(digest(b"".join(await paged)))
        saw.append(await root.callRemote("count", Asked()))
        many = [root.callRemote("echo", number) for number in range(500)]
        saw.append([each[0] for each in await gatherResults(many)] == list(range(500)))
        saw.append(await root.callRemote("fail").addErrback(lambda failure: str(failure.type)))
        gone: Deferred[None] = Deferred()
        root.notifyOnDisconnect(lambda _: gone.callback(None))
        left = root.callRemote("leave", Asked()).addErrback(lambda failure: failure.type.__name__)
        await gone
        saw.append(await left)
        return saw


class Foolscap(Program):
    """Foolscap: two Tubs with separate certificates, calls in both directions, and 3 MB."""

    needs = ("foolscap",)
    imports = ("foolscap",)

    async def serve(self, ends: Ends) -> None:
        from foolscap.api import Referenceable, Tub

        class Target(Referenceable):  # type: ignore[misc]  # untyped
            def remote_turn(self, text: bytes) -> bytes:
                return text[::-1]

            def remote_call(self, other: Any) -> Any:
                return other.callRemote("answer", 41)

        tub = Tub()
        tub.setServiceParent(_service())

        class Listening:
            """An endpoint with the interface that a Tub expects."""

            def listen(self, factory: Any) -> Any:
                return Deferred.fromCoroutine(ends.listen(factory))

        from zope.interface import classImplements

        from twisted.internet.interfaces import IStreamServerEndpoint

        classImplements(Listening, IStreamServerEndpoint)
        tub.listenOn(Listening())
        tub.setLocation("here:localhost:1")
        (ends.folder / "furl").write_text(tub.registerReference(Target()))

    async def use(self, ends: Ends) -> object:
        from foolscap.api import Referenceable, Tub
        from foolscap.ipb import IConnectionHintHandler

        @implementer(IConnectionHintHandler)
        class Hints:
            def hint_to_endpoint(self, hint: str, reactor: Any, update: Any) -> Any:
                return ends.endpoint, "localhost"

        class Answering(Referenceable):  # type: ignore[misc]  # untyped
            def remote_answer(self, number: int) -> int:
                return number + 1

        tub = Tub()
        tub.addConnectionHintHandler("here", Hints())
        tub.setServiceParent(_service())
        there = await tub.getReference((ends.folder / "furl").read_text())
        saw: list[object] = [await there.callRemote("call", Answering())]
        saw.append(digest(await there.callRemote("turn", BIG)))
        many = await gatherResults([there.callRemote("turn", b"%d" % each) for each in range(200)])
        saw.append(digest(b",".join(many)))
        await tub.stopService()
        return saw


def _service() -> Any:
    from twisted.application.service import MultiService

    parent = MultiService()
    parent.startService()
    return parent


class XMLRPC(Program):
    """XML-RPC by C{twisted.web}: 50 calls at a time, each over a separate connection."""

    async def serve(self, ends: Ends) -> None:
        from twisted.web import server, xmlrpc

        class Adder(xmlrpc.XMLRPC):
            def xmlrpc_add(self, *numbers: int) -> int:
                return sum(numbers)

        await ends.listen(server.Site(Adder(allowNone=True)))

    async def use(self, ends: Ends) -> object:
        from twisted.web import xmlrpc

        async def call(number: int) -> Any:
            answer: Deferred[Any] = Deferred()
            factory = xmlrpc.QueryFactory(b"/", b"localhost", "add", args=(number, 1))
            factory.deferred.chainDeferred(answer)
            await ends.connect(factory)
            return await answer

        return await gatherResults([Deferred.fromCoroutine(call(number)) for number in range(50)])


class LDAP(Program):
    """Ldaptor: binds, and searches a tree of 500 entries."""

    needs = ("ldaptor",)
    imports = ("ldaptor",)

    async def serve(self, ends: Ends) -> None:
        from ldaptor.inmemory import ReadOnlyInMemoryLDAPEntry
        from ldaptor.interfaces import IConnectedLDAPEntry
        from ldaptor.protocols.ldap.ldapserver import LDAPServer

        from twisted.python.components import registerAdapter

        root = ReadOnlyInMemoryLDAPEntry("dc=org", {"objectClass": ["domain"], "dc": ["org"]})
        for number in range(500):
            attributes = {"objectClass": ["person"], "cn": [f"p{number}"], "sn": ["x" * number]}
            root.addChild(f"cn=p{number}", attributes)

        class Tree(Factory):
            def __init__(self) -> None:
                self.root = root

        registerAdapter(lambda factory: factory.root, Tree, IConnectedLDAPEntry)
        factory = Tree()

        def build() -> Any:
            made = LDAPServer()
            made.factory = factory
            return made

        factory.buildProtocol = lambda address: build()  # type: ignore[method-assign]  # as a program does
        await ends.listen(factory)

    async def use(self, ends: Ends) -> object:
        from ldaptor.protocols.ldap.ldapclient import LDAPClient
        from ldaptor.protocols.ldap.ldapsyntax import LDAPEntry

        client = await ends.connect(factoryOf(LDAPClient))
        found = await LDAPEntry(client, "dc=org").search(filterText="(objectClass=person)")
        client.unbind()
        reported = sorted(f"{each.dn.getText()} {sum(map(len, each['sn']))}" for each in found)
        return [len(reported), digest("\n".join(reported).encode())]
