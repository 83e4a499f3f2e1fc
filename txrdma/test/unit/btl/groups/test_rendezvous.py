"""The rendezvous of a group, and the members' side of it, without sockets."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from zope.interface import directlyProvides

from twisted.internet.address import IPv4Address
from twisted.internet.interfaces import IWriteDescriptor
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.groups.errors import GroupFailed
from txrdma.btl.groups.rendezvous import LONGEST_LINE, Rendezvous, RendezvousClient
from txrdma.error import Refused

SIZE = 3


class RendezvousTests(SynchronousTestCase):
    """Members that report their ports, leave, and end."""

    def setUp(self) -> None:
        self.rendezvous = Rendezvous(None, SIZE)
        self.rendezvous._port = SimpleNamespace(getHost=lambda: IPv4Address("TCP", "127.0.0.1", 4000))
        self.members = [self.connect(rank) for rank in range(SIZE)]

    def connect(self, rank: int) -> tuple[Any, StringTransport]:
        """Connect a member that has proved its rank."""
        address = IPv4Address("TCP", f"192.0.2.{rank}", 5000 + rank)
        self.rendezvous._admit(rank, address)
        lines = self.rendezvous.buildProtocol(address)
        transport = StringTransport(peerAddress=address)
        lines.makeConnection(transport)
        return lines, transport

    def received(self, rank: int) -> list[Any]:
        """Return what a member has received."""
        transport = self.members[rank][1]
        data = transport.value()
        transport.clear()
        return [json.loads(line) for line in data.splitlines()]

    def report(self, *ranks: int) -> None:
        for rank in ranks:
            self.members[rank][0].dataReceived(b'{"port": %d}\n' % (6000 + rank))

    def test_complete(self) -> None:
        """When all members have reported, each gets the addresses of all."""
        self.report(2, 0)
        self.assertEqual(self.received(0), [])
        self.report(1)
        addresses = [[f"192.0.2.{rank}", 6000 + rank] for rank in range(SIZE)]
        for rank in range(SIZE):
            self.assertEqual(self.received(rank), [{"members": addresses}])

    def test_ended(self) -> None:
        """The first member that ends is reported to all others, including those that connect later."""
        self.members[1][0].connectionLost()
        self.members[2][0].connectionLost()
        self.assertEqual(self.received(0), [{"failed": 1, "text": self.rendezvous.failure[1]}])  # type: ignore[index]
        self.assertEqual(self.rendezvous.failure, (1, "its process has ended"))
        late = Rendezvous(None, SIZE)
        late._port = self.rendezvous._port
        late.ended(0, "killed")
        self.rendezvous = late
        self.members[2] = self.connect(2)
        self.report(2)
        self.assertEqual(self.received(2), [{"failed": 0, "text": "killed"}])

    def test_left(self) -> None:
        """A member that leaves first is not reported."""
        self.members[1][0].dataReceived(b'{"leave": true}\n')
        self.members[1][0].connectionLost()
        self.assertEqual((self.received(0), self.rendezvous.failure), ([], None))

    def test_cannotJoin(self) -> None:
        """A member that cannot join is reported with its reason, and its end is not."""
        self.members[1][0].dataReceived(b'{"failed": "no device"}\n')
        self.members[1][0].connectionLost()
        self.assertEqual(self.received(0), [{"failed": 1, "text": "no device"}])
        self.assertEqual((self.received(1), self.rendezvous.failure), ([], (1, "no device")))

    def test_controlCharacters(self) -> None:
        """The reason of a member that cannot join has no control characters when it is reported."""
        self.members[1][0].dataReceived(rb'{"failed": "\u001b[2J\n"}' + b"\n")
        self.assertEqual(self.rendezvous.failure, (1, r"\x1b[2J\x0a"))
        self.assertEqual(self.received(0), [{"failed": 1, "text": r"\x1b[2J\x0a"}])

    def test_causes(self) -> None:
        """A member's first report counts; a chain of reports ends at the member that is the cause."""
        for rank, causes in ((2, (1, 0)), (1, (1,))):
            for cause in causes:
                self.members[rank][0].dataReceived(b'{"because": %d}\n' % cause)
        self.assertEqual([self.rendezvous.causeOf(rank) for rank in range(SIZE)], [0, 1, 1])

    def test_dissolve(self) -> None:
        """Once members are connected, the rendezvous can end, and a member's disconnection is no failure."""
        closed: list[bool] = []
        self.rendezvous._port.stopListening = lambda: closed.append(True)
        self.successResultOf(self.rendezvous.dissolve())
        self.assertEqual(closed, [True])
        self.members[1][0].connectionLost()
        for rank in (0, 2):
            self.assertEqual(self.received(rank), [{"dissolved": True}])
        self.assertIsNone(self.rendezvous.failure)

    def test_twice(self) -> None:
        """A rank that has connected is not admitted again, even after its end."""
        self.assertRaises(Refused, self.rendezvous._admit, 1, None)
        self.members[1][0].connectionLost()
        self.assertRaises(Refused, self.rendezvous._admit, 1, None)

    def test_badLines(self) -> None:
        """A member that sends an invalid line is disconnected."""
        for rank, line in enumerate((b"[" * 16000, b'{"port": 70000}', b"[]")):
            self.members[rank][0].dataReceived(line + b"\n")
            self.assertTrue(self.members[rank][1].disconnected, line)

    def test_portTwice(self) -> None:
        """A member that reports another port is disconnected: all would get all addresses again."""
        self.report(0, 1, 2)
        self.received(0)
        self.report(1)
        self.assertEqual((self.received(0), self.members[1][1].disconnected), ([], True))

    def test_manyBadLines(self) -> None:
        """Lines that arrive together with an invalid one are neither processed nor logged."""
        # Twisted's sockets end in the next iteration.
        self.patch(self.members[0][1], "abortConnection", lambda: None)
        with capturedLogs() as events:
            self.members[0][0].dataReceived(b"[]\n" * 1000 + b'{"leave": true}\n')
        self.assertEqual((len(events), self.rendezvous._left), (1, set()))

    def test_badLineIsNotLoggedWhole(self) -> None:
        with capturedLogs() as events:
            self.members[0][0].dataReceived(b"\xff" * (LONGEST_LINE - 1) + b"\n")
        self.assertLess(len(events[0]["error"]), 1000)

    def test_longLine(self) -> None:
        """A line of excessive length closes the connection."""
        self.members[0][0].dataReceived(b"x" * (LONGEST_LINE + 2))
        self.assertTrue(self.members[0][1].disconnecting)


class ClientTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.failures: list[tuple[int | None, str]] = []
        self.client = RendezvousClient(2, lambda rank, text: self.failures.append((rank, text)))
        self.transport = StringTransport()
        self.client.makeConnection(self.transport)

    def test_members(self) -> None:
        """The member reports its port, and gets addresses."""
        self.client.report(4000)
        self.assertEqual(self.transport.value(), b'{"port": 4000}\n')
        self.client.dataReceived(b'{"members": [["a", 1], ["b", 2]]}\n')
        self.assertEqual(self.successResultOf(self.client.members), [("a", 1), ("b", 2)])

    def test_wrongNumber(self) -> None:
        """An address list of the wrong length closes the connection."""
        self.client.dataReceived(b'{"members": [["a", 1]]}\n')
        self.assertTrue(self.transport.disconnected)

    def test_badNumbers(self) -> None:
        """Ports and ranks that are not valid numbers close the connection."""
        for line in (
            '{"members": [["a", 1], ["b", 1e999]]}',
            '{"members": [["a", 1], ["b", 65536]]}',
            '{"failed": 1e999, "text": ""}',
        ):
            self.setUp()
            self.client.dataReceived(line.encode() + b"\n")
            self.assertTrue(self.transport.disconnected, line)

    def test_failedBefore(self) -> None:
        """A failure before the addresses have arrived fails the Deferred."""
        self.client.dataReceived(b'{"failed": 1, "text": "killed"}\n')
        error = self.failureResultOf(self.client.members, GroupFailed).value
        self.assertEqual((error.rank, str(error)), (1, "rank 1 has failed: killed"))
        self.assertEqual(self.transport.value(), b'{"because": 1}\n')

    def test_controlCharacters(self) -> None:
        """The text of a failure that the rendezvous sends has no control characters in errors."""
        self.client.dataReceived(rb'{"failed": 1, "text": "\u001b[2J\n"}' + b"\n")
        error = self.failureResultOf(self.client.members, GroupFailed).value
        self.assertEqual(str(error), r"rank 1 has failed: \x1b[2J\x0a")

    def test_failedLater(self) -> None:
        """A failure after the addresses, and the end of the rendezvous, are reported."""
        self.test_members()
        self.client.dataReceived(b'{"failed": 1, "text": "killed"}\n')
        self.client.connectionLost()
        self.assertEqual(self.failures[0], (1, "rank 1 has failed: killed"))
        self.assertRegex(self.failures[1][1], "rendezvous was lost")

    def test_blame(self) -> None:
        """The reason of a failure is sent before the call returns, since the process may exit then."""
        flushed: list[bytes] = []
        directlyProvides(self.transport, IWriteDescriptor)
        self.transport.doWrite = lambda: flushed.append(self.transport.value())  # type: ignore[attr-defined]
        self.client.blame(1)
        self.client.leave()
        self.client.blame(1)
        self.assertEqual(flushed, [b'{"because": 1}\n'])

    def test_leave(self) -> None:
        """When a member has left, the end of its connection is no failure."""
        self.test_members()
        self.transport.clear()
        self.client.leave()
        self.client.leave()
        self.client.connectionLost()
        self.assertEqual((self.transport.value(), self.failures), (b'{"leave": true}\n', []))
        self.assertTrue(self.transport.disconnecting)

    def test_cannotJoin(self) -> None:
        """A member that leaves for a reason reports it."""
        self.client.leave("no device")
        self.assertEqual(self.transport.value(), b'{"failed": "no device"}\n')
        self.assertTrue(self.transport.disconnecting)

    def test_dissolved(self) -> None:
        """A member leaves a rendezvous that is dissolved."""
        self.test_members()
        self.transport.clear()
        self.client.dataReceived(b'{"dissolved": true}\n')
        self.client.connectionLost()
        self.assertEqual((self.transport.value(), self.failures), (b'{"leave": true}\n', []))
        self.assertTrue(self.transport.disconnecting)
