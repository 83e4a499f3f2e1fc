"""Messages of unknown peers to a host with connections: every message with extreme bytes, and floods."""

from __future__ import annotations

from random import Random
from typing import Any, cast

from txrdma.cm.connection import CMConnection
from txrdma.cm.connections.endpoints import IBServerEndpoint
from txrdma.cm.core.connection import ConnectionCore
from txrdma.cm.core.dispatcher import MOST_SIDR_REQUESTS
from txrdma.cm.layouts.messages import (
    APR,
    DREP,
    DREQ,
    MRA,
    REJ,
    RejectReason,
    REQ,
    RTU,
    SIDRREP,
    SIDRREQ,
    SIDRStatus,
)
from txrdma.cm.layouts.paths import pathFor
from txrdma.cm.layouts.rejectinfo import informationOf
from txrdma.iba.path import GMP_QKEY, IBPath
from txrdma.iba.types import DEFAULT_PKEY, GID, GUID, QPN
from txrdma.kit.shares import CLIENT_SHARE
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.frames import frame
from txrdma.mad.layouts.attributes import Attribute, ManagementClass, Method
from txrdma.mad.layouts.values import PathMTU
from txrdma.mad.ports import verbsport
from txrdma.mad.ports.verbsport import VerbsPort
from txrdma.mad.server import MADServer
from txrdma.messages.protocol import MessageFactory
from txrdma.test.support.cm.messages import KINDS
from txrdma.test.support.cm.messaging import MessagingCase, SERVICE
from txrdma.test.support.mad.pairs import Answers

BACKLOG = 16
PRIVATE = {
    kind: next(field.offset // 8 for field in kind.fields if field.name == "privateData") for kind in KINDS
}
"""Kinds of messages, and the offsets of their private data."""


class StrangerCase(MessagingCase):
    """Two hosts with a connection, and a third one that sends arbitrary messages to the second."""

    def setUp(self) -> None:
        super().setUp()
        self.third = self.network.device("10.0.1.3")
        self.addCleanup(self.third.close)
        port = VerbsPort(cast(Any, self.clock), self.third, isGSI=True, closesDevice=False)
        self.agent = MADAgent(self.clock, port)
        self.addCleanup(self.agent.close)
        self.strangersPath = IBPath(sgid=GID.fromIP("10.0.1.3"), dgid=GID.fromIP("10.0.1.2"), hopLimit=64,
                                    dqpn=QPN(1), sqpn=QPN(1), qkey=GMP_QKEY, packetLifeTime=10)  # fmt: skip
        endpoint = IBServerEndpoint(self.clock, SERVICE, self.devices[1], backlog=BACKLOG)
        self.port: Any = self.successResultOf(endpoint.listen(MessageFactory(self.made)))
        self.client = self.result(self.ask())
        self.wait(lambda: self.served[-1].isMade)
        self.server = self.served[-1]
        self.manager = self.server.transport.adapter.localManager

    @property
    def core(self) -> ConnectionCore:
        """Return the state machine of the server's end."""
        return cast(CMConnection, self.server.transport._cm)._core

    def send(self, kind: type[Attribute], raw: bytes) -> None:
        """Send the bytes of a message."""
        number = kind.attributeID
        self.agent.send(frame(ManagementClass.COMM_MGT, Method.SEND, 7, number, 0, raw), self.strangersPath)

    def request(self, number: int, **more: Any) -> REQ:
        """Return a valid REQ of the third host."""
        fields: dict[str, Any] = {
            "localCommID": number,
            "localCAGUID": GUID.fromInt(0x0200_0000_0000_0003),
            "localQPN": QPN(number & 0xFFFFFF),
            "serviceID": SERVICE,
            "primary": pathFor(self.strangersPath),
            "pathMTU": PathMTU(3),
            "pkey": DEFAULT_PKEY,
            "maxCMRetries": 1,
            "localCMResponseTimeout": 10,
        }
        return REQ(**{**fields, **more})

    def assertUndisturbed(self) -> None:
        """Assert that the connection transfers messages in both directions."""
        for one, other in ((self.client, self.server), (self.server, self.client)):
            before = len(other.messages)
            one.transport.sendMessage(b"still here")
            self.wait(lambda o=other, n=before: len(o.messages) > n)  # type: ignore[misc]  # a lambda
        self.assertEqual((self.client.lost, self.server.lost), ([], []))
        self.assertIs(self.server.transport.alternate, None)

    def end(self) -> None:
        """Assert that the connection works; end it and the listener, and assert that nothing is left."""
        self.assertUndisturbed()
        self.client.transport.loseConnection()
        self.wait(lambda: self.client.lost and self.server.lost)
        self.port.stopListening()
        self.agent.close()
        self.third.close()
        self.assertNothingLeft(2000.0)


class StrangerTests(StrangerCase):
    """The connection continues, and all state created by unknown peers is released."""

    receives = verbsport.RECEIVES  # enough for all of their messages

    def test_limits(self) -> None:
        """Messages with extreme bytes, even with one valid comm ID, change no connection."""
        ours = self.core.localCommID
        for kind, length in PRIVATE.items():
            names = {field.name for field in kind.fields}
            base: Any = self.request(5) if kind is REQ else kind()
            if "remoteCommID" in names:
                base = base.replace(localCommID=0x0BADBAD0, remoteCommID=ours)
            if kind in (SIDRREQ, SIDRREP):
                base = base.replace(serviceID=SERVICE)
            for place in range(length):
                for value in (0x00, 0x7F, 0x80, 0xFF):
                    if 4 <= place < 8 and "remoteCommID" in names:
                        continue  # already contains the valid ID
                    raw = bytearray(base.encode())
                    raw[place] = value
                    self.send(kind, bytes(raw))
            self.pause(0.2)
            self.assertUndisturbed()
        received = sum(count for name, count in self.manager.counters.items() if name.startswith("received"))
        self.assertGreater(received, 1000)
        self.end()

    def test_invalidMTU(self) -> None:
        """A REQ whose path MTU has no meaning is rejected, which is no failure of the program."""
        for number, mtu in enumerate((0, 6, 15), 1):
            self.send(REQ, self.request(number, pathMTU=PathMTU(mtu)).encode())
        self.wait(lambda: self.manager.counters["sent REJ"] == 3)
        self.assertEqual(len(self.served), 1)
        self.end()

    def test_arbitraryBytesChangeNoConnection(self) -> None:
        random = Random(12)
        ours = self.core.localCommID
        for _ in range(1500):
            kind = random.choice(tuple(PRIVATE))
            message: Any = kind.decode(random.randbytes(232))
            names = {field.name for field in kind.fields}
            if "serviceID" in names and random.random() < 0.5:
                message = message.replace(serviceID=SERVICE)
            if "remoteCommID" in names and random.random() < 0.5:
                message = message.replace(remoteCommID=ours)
            self.send(kind, message.encode())
            if random.random() < 0.05:
                self.pause(0.01)
        self.pause(0.2)
        self.end()

    def test_flood(self) -> None:
        """
        REQs of a host create as many queue pairs as its share of the backlog allows; other REQs are dropped,
        and all end. Another host connects meanwhile.
        """
        before = len(self.devices[1]._queuePairs)
        most = 0
        for number in range(1, 1501):
            self.send(REQ, self.request(number, maxCMRetries=15).encode())
            if not number % 50:
                self.pause(0.002)
                most = max(most, len(self.devices[1]._queuePairs) - before)
        self.assertGreater(most, 0)
        self.assertLessEqual(most, BACKLOG * CLIENT_SHARE)
        self.assertGreater(self.manager.counters["dropped REQ"], 1000)
        self.assertLess(len(self.manager._core), 100 + BACKLOG)
        self.assertUndisturbed()
        again = self.result(self.ask())  # the rest of the backlog is for other hosts
        self.assertEqual(len(self.devices[1]._queuePairs) - before, int(BACKLOG * CLIENT_SHARE) + 1)
        self.assertLess(len(self.devices[1]._queuePairs) - before, BACKLOG)
        again.transport.loseConnection()
        self.wait(lambda: again.lost)
        self.wait(lambda: len(self.devices[1]._queuePairs) == before, 2000.0)
        self.end()

    def test_otherClassVersion(self) -> None:
        """Requests of another class version are rejected with the supported one."""
        answers = Answers(lambda request: None)
        MADServer(self.agent).handle(ManagementClass.COMM_MGT, answers, (Method.SEND,))
        question = SIDRREQ(requestID=9, serviceID=SERVICE)
        for message in (self.request(5), question, RTU(localCommID=5, remoteCommID=self.core.localCommID)):
            number, data = message.attributeID, message.encode()
            raw = bytearray(frame(ManagementClass.COMM_MGT, Method.SEND, 7, number, 0, data))
            raw[2] = 1
            self.agent.send(bytes(raw), self.strangersPath)
        self.wait(lambda: len(answers.asked) == 2)
        rejection, response = found = [cast(Any, each.payload) for each in answers.asked]
        self.assertEqual(rejection.reason, RejectReason.UNSUPPORTED_CLASS_VERSION)
        self.assertEqual(rejection.remoteCommID, 5)
        self.assertEqual((response.status, response.requestID), (SIDRStatus.VERSION_NOT_SUPPORTED, 9))
        self.assertEqual([informationOf(each) for each in found], [2, 2])
        self.end()

    def test_SIDRFloodForUnknownServiceLeavesNothing(self) -> None:
        for number in range(1, 1501):
            self.send(SIDRREQ, SIDRREQ(requestID=number, serviceID=SERVICE + 1).encode())
            if not number % 50:
                self.pause(0.002)
        self.assertEqual(len(self.manager._core._sidrRequests), 0)
        self.assertGreater(self.manager.counters["sent SIDRREP"], 1000)
        self.end()

    def test_manyQuestions(self) -> None:
        """During a flood of SIDR_REQs for an existing service, a limited number is stored."""
        core, share = self.manager._core, int(MOST_SIDR_REQUESTS * CLIENT_SHARE)
        for host, stored in ((9, share), (8, MOST_SIDR_REQUESTS), (7, MOST_SIDR_REQUESTS)):
            for number in range(1, MOST_SIDR_REQUESTS):
                core._ofSIDRREQ(SIDRREQ(requestID=number, serviceID=SERVICE), number, self.fromHost(host))
            self.assertEqual(len(core._sidrRequests), stored)
        self.forgetQuestions()
        self.end()

    def test_backlog(self) -> None:
        """Hosts together can use a backlog, and each of them its share."""
        core, now = self.manager._core, self.clock.seconds()
        [listener] = core._listeners[SERVICE]
        for host, waiting in ((9, int(BACKLOG * CLIENT_SHARE)), (8, BACKLOG), (7, BACKLOG)):
            for number in range(1, BACKLOG + 1):
                guid = GUID.fromInt(0x0200_0000_0000_0100 + host)
                request = self.request(number, localCAGUID=guid)
                core._ofREQ(request, number, self.fromHost(host), now)
            self.assertEqual(len(listener.waiting), waiting)
        for number in tuple(listener.waiting):
            core._forget(core._connections[number])
        self.assertEqual(len(listener.waiting), 0)
        self.end()

    @staticmethod
    def fromHost(number: int) -> IBPath:
        return IBPath(sgid=GID.fromIP(f"10.9.9.{number}"), dgid=GID.fromIP("10.9.9.1"))

    def forgetQuestions(self) -> None:
        """Forget all SIDR_REQs, and assert that nothing of them is left."""
        core = self.manager._core
        for managed in list(core._sidrRequests.values()):
            core._forget(managed)
        self.assertEqual((core._sidrRequests, len(core._sidrShares)), ({}, 0))

    def test_manyAnswers(self) -> None:
        """
        All SIDR_REQs are answered: the oldest stored answers are discarded for new ones, those of the same
        host if it has its share.
        """
        core, share = self.manager._core, int(MOST_SIDR_REQUESTS * CLIENT_SHARE)
        now = self.clock.seconds()

        def ask(host: int, number: int) -> int:
            """Return how often the service was asked."""
            core.received(SIDRREQ(requestID=number, serviceID=SERVICE), number, self.fromHost(host), now)
            events = core.events()
            for managed, _ in events:
                managed.resolution.answer(SIDRREP(), now)
                core.collect(managed, now)
            self.assertEqual([each.transactionID for each in core.outgoing()], [number])
            return len(events)

        self.assertEqual(ask(6, 1), 1)
        for number in range(1, MOST_SIDR_REQUESTS + 100):
            ask(9, number)
        self.assertEqual((len(core._sidrRequests), ask(6, 1)), (share + 1, 0))
        for host in (8, 7):
            for number in range(1, MOST_SIDR_REQUESTS + 100):
                ask(host, number)
            self.assertEqual(len(core._sidrRequests), MOST_SIDR_REQUESTS)
        self.forgetQuestions()
        self.end()

    def test_replays(self) -> None:
        """Messages of the connection repeated from another address change nothing."""
        connection = self.server.transport._cm
        request, reply, ours = connection.request, connection.reply, self.core
        assert reply is not None
        remoteID = ours.remoteCommID
        for message in (
            request,
            reply,
            RTU(localCommID=remoteID, remoteCommID=ours.localCommID),
            MRA(localCommID=remoteID, remoteCommID=ours.localCommID),
            DREP(localCommID=remoteID, remoteCommID=ours.localCommID),
            APR(localCommID=remoteID, remoteCommID=ours.localCommID),
            DREQ(localCommID=remoteID, remoteCommID=ours.localCommID, remoteQPN=QPN(ours.localQPN ^ 1)),
            DREQ(localCommID=remoteID ^ 1, remoteCommID=ours.localCommID, remoteQPN=ours.localQPN),
            REJ(localCommID=remoteID ^ 1, remoteCommID=ours.localCommID, reason=RejectReason.TIMEOUT),
        ):
            for _ in range(3):
                self.send(type(message), message.encode())
            self.pause(0.05)
            self.assertUndisturbed()
        self.end()
