"""Late and forged messages: all old messages are repeated, and private data is invalid."""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.internet.protocol import Factory, Protocol

from txrdma.cm.connections.adapter import adapterOf
from txrdma.cm.layouts.ipcm import IPAddresses, PortSpace, serviceIDOf
from txrdma.cm.layouts.messages import REQ
from txrdma.cm.manager import ConnectionManager
from txrdma.cm.rsocket.endpoints import RSocketServerEndpoint
from txrdma.cm.rsocket.messages import ConnectionData
from txrdma.cm.terms import Greeting, REQ_MAGIC
from txrdma.iba.path import IBPath
from txrdma.iba.types import QPN
from txrdma.mad.core.frames import frame
from txrdma.mad.layouts.attributes import Attribute, ManagementClass, Method
from txrdma.test.support.cm.messaging import PORT
from txrdma.test.unit.cm.test_badinput import StrangerCase

STREAM_PORT = 7472
CONNECTIONS = 4
"""Number of earlier connections."""


class ReplayTests(StrangerCase):
    """Every message of earlier connections is repeated, with IDs that were valid, from its sender."""

    def setUp(self) -> None:
        self.output: list[tuple[ConnectionManager, Attribute, int, IBPath]] = []
        send = ConnectionManager._send

        def deliver(manager: ConnectionManager, message: Any, transactionID: int, path: IBPath) -> None:
            self.output.append((manager, message, transactionID, path))
            send(manager, message, transactionID, path)

        self.patch(ConnectionManager, "_send", deliver)
        super().setUp()
        self.release = adapterOf(self.clock, self.devices[0]).hold()  # one manager for all connections

    def again(self, which: tuple[ConnectionManager, Attribute, int, IBPath]) -> None:  # type: ignore[override]
        manager, message, transactionID, path = which
        number = message.attributeID
        raw = frame(ManagementClass.COMM_MGT, Method.SEND, transactionID, number, 0, message.encode())
        manager._agentFor(path).send(raw, path)

    def play(self, random: Random) -> None:
        """Open and close several connections; then open one, and repeat all messages."""
        for _ in range(CONNECTIONS):
            random.choice((self.client, self.server)).transport.loseConnection()
            self.wait(lambda: self.client.lost and self.server.lost)
            old = tuple(self.output)
            self.client = self.result(self.ask())
            self.wait(lambda: self.served[-1].isMade)
            self.server = self.served[-1]
        kinds = {type(message).__name__ for _manager, message, _number, _path in old}
        self.assertGreaterEqual(kinds, {"REQ", "REP", "RTU", "DREQ", "DREP"})
        living = len(self.output)
        before = [len(device._queuePairs) for device in self.devices]
        for which in random.choices(old, k=40):
            self.again(which)
            if random.random() < 0.3:
                self.pause(random.choice((0.001, 0.1, 3.0)))
        self.assertUndisturbed()
        for which in self.output[len(old) : living]:  # the connection's own REQ, REP and RTU
            self.again(which)
        self.pause(1.0)
        self.assertUndisturbed()
        self.wait(lambda: [len(device._queuePairs) for device in self.devices] == before, 200.0)

    def test_replaysDoNotDisturb(self) -> None:
        for seed in range(4):
            with self.subTest(seed=seed):
                self.play(Random(seed))
        self.release()
        self.end()


class PrivateDataTests(StrangerCase):
    """Listeners of all kinds answer arbitrary private data of unknown peers, and release everything."""

    def setUp(self) -> None:
        super().setUp()
        stream = Factory.forProtocol(Protocol), RSocketServerEndpoint
        self.ports = [self.listenAt(), self.listenAt(*stream, port=STREAM_PORT)]
        services = (serviceIDOf(PortSpace.TCP, port) for port in (PORT, STREAM_PORT))
        self.services = (self.port.serviceID, *services)

    def privateData(self, random: Random) -> bytes:
        """Generate private data that resembles txrdma's, or not, with extreme values."""

        def lie(bits: int) -> int:
            return random.choice((0, 1, (1 << bits) - 1, 1 << bits - 1, random.getrandbits(bits)))

        addresses = IPAddresses("10.0.1.3", random.getrandbits(16), "10.0.1.2").toPrivateData()
        greeting = Greeting(
            receives=lie(16), privateLength=lie(8), messageBytes=lie(32), longest=lie(32), magic=REQ_MAGIC
        ).encode()
        fields: dict[str, Any] = {
            field.name: lie(field.width) for field in ConnectionData.fields if field.name != "reserved1"
        }
        fields["version"] = random.choice((1, 1, 1, lie(8)))
        data = ConnectionData(**fields).encode()
        found = random.choice((b"", addresses)) + random.choice((b"", data, random.randbytes(40)))
        found = (found + random.choice((b"", random.randbytes(60))))[:92].ljust(92, b"\0")
        return random.choice((found, found[: -len(greeting)] + greeting))

    def play(self, random: Random, count: int) -> None:
        """Send this many REQs, each with different private data."""
        before = len(self.devices[1]._queuePairs)
        for _ in range(count):
            number = random.randrange(1, 1 << 32)
            more: dict[str, Any] = {
                "serviceID": random.choice(self.services),
                "privateData": self.privateData(random),
                "responderResources": random.choice((0, 1, 16, 255)),
                "initiatorDepth": random.choice((0, 1, 16, 255)),
                "localQPN": QPN(random.randrange(2, 1 << 24)),
            }
            self.send(REQ, self.request(number, **more).encode())
            self.pause(0.02)
        self.wait(lambda: len(self.devices[1]._queuePairs) == before, 2000.0)
        self.assertUndisturbed()

    def test_arbitraryPrivateDataGetsREPOrREJ(self) -> None:
        counters = self.manager.counters
        for seed in range(4):
            with self.subTest(seed=seed):
                before = counters["sent REP"] - counters["retried REP"] + counters["sent REJ"]
                self.play(Random(seed), 50)
                dropped = counters["dropped REQ"]
                after = counters["sent REP"] - counters["retried REP"] + counters["sent REJ"]
                self.assertGreaterEqual(after + dropped - before, 50)
        self.assertGreater(counters["sent REP"], 20)
        self.assertGreater(counters["sent REJ"], 20)
        self.assertEqual(self.flushLoggedErrors(), [])
        for port in self.ports:
            port.stopListening()
        self.end()
