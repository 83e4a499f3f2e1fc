"""
Tests for L{txrdma.soft.core.directdatagrams}: datagrams of the software device without work requests.
"""

from __future__ import annotations

import select
from dataclasses import replace
from typing import Any, cast

from txrdma.iba.internet import IPv4
from txrdma.iba.verbs import Operation, QPAttributes, QPKind, QPState
from txrdma.interfaces import IDirectDatagrams
from txrdma.test.integration.soft.test_datagrams import DatagramCase, DatagramEnd
from txrdma.test.support.soft.pairs import End, QKEY


class DirectTests(DatagramCase):
    """Datagrams without work requests, by both routes."""

    def ends(self, route: str) -> tuple[DatagramEnd, DatagramEnd]:
        """Return two ends on one route, the second with an inbox."""
        if route == "auto":
            one, other = self.both()
        else:
            one, other = DatagramEnd(self.open(route)), DatagramEnd(self.open(route))
        self.direct, self.inbox = IDirectDatagrams(one.qp), IDirectDatagrams(other.qp)
        self.assertEqual(len(self.inbox.openInbox()), 0)
        self.got: list[tuple[tuple[bytes, int], bytes]] = []
        return one, other

    def takes(self, count: int) -> list[bytes]:
        """Return the next datagrams of the inbox."""

        def enough() -> bool:
            self.got += [(source, bytes(data)) for source, data, _codepoint in self.inbox.takeDatagrams(64)]
            return len(self.got) >= count

        self.runUntil(enough)
        found, self.got = [data for _source, data in self.got], []
        return found

    def test_datagramsArriveInInboxInOrderWithoutReceives(self) -> None:
        for route in ("auto", "rocev2"):
            one, other = self.ends(route)
            texts = [b"x" * length for length in (0, 1, 2, 3, 63, 64, 200)]
            for text in texts:
                one.sendText(other, text)
            self.assertEqual(self.takes(len(texts)), texts)
            other.pollQueue()
            self.assertEqual(other.completions, [])
            left = other.RECEIVES - (route == "auto")  # the first one arrived before the inbox existed
            self.assertEqual(len(cast(Any, other.qp).receives), left)

    def test_datagramHasAddressAndQueuePairOfHeader(self) -> None:
        one, _other = self.ends("auto")
        one.sendText(_other, b"who")
        found: list[object] = []

        def hasCome() -> bool:
            found.extend(source for source, _data, _codepoint in self.inbox.takeDatagrams(1))
            return bool(found)

        self.runUntil(hasCome)
        self.assertEqual(found, [(bytes((127, 0, 0, 1)), one.qp.number)])

    def test_datagramHasECNFieldOfIPHeader(self) -> None:
        one, other = DatagramEnd(self.open("rocev2")), DatagramEnd(self.open("rocev2"))

        def send(codepoint: int) -> None:
            vector = replace(other.vector(), trafficClass=codepoint)
            one.sendText(other, b"text", address=one.domain.createAddressHandle(vector))

        def isCompleted() -> bool:
            other.pollQueue()
            return bool(other.completions)

        for codepoint in (2, 0, 3):
            send(codepoint)
            self.runUntil(isCompleted)
            header = IPv4.decode(other.header(other.completions.pop())[20:])
            self.assertEqual(header.typeOfService, codepoint)
        inbox = IDirectDatagrams(other.qp)
        inbox.openInbox()
        found: list[int] = []

        def isTaken() -> bool:
            found.extend(codepoint for _source, _data, codepoint in inbox.takeDatagrams(1))
            return len(found) == 3

        for codepoint in (2, 0, 3):
            send(codepoint)
        self.runUntil(isTaken)
        self.assertEqual(found, [2, 0, 3])

    def test_atMostRequestedNumberIsReturned(self) -> None:
        one, other = self.ends("auto")
        for number in range(5):
            one.sendText(other, b"%d" % number)
        self.assertEqual([len(self.inbox.takeDatagrams(2)) for _each in range(4)], [2, 2, 1, 0])

    def test_datagramWithImmediateCompletesReceive(self) -> None:
        one, other = self.ends("auto")
        one.sendText(other, b"what", Operation.SEND_WITH_IMMEDIATE, immediate=5)
        self.assertEqual(list(self.inbox.takeDatagrams(64)), [])
        other.pollQueue()
        self.assertEqual([other.content(each) for each in other.completions], [b"what"])

    def test_unwantedDatagramsAreLostAndCounted(self) -> None:
        for route in ("auto", "rocev2"):
            one, other = self.ends(route)
            core = cast(Any, other.qp)._route.datagrams
            one.sendText(other, b"wrong", remoteQKey=QKEY + 1)
            one.sendText(other, b"right")
            self.assertEqual(self.takes(1), [b"right"])
            self.assertEqual(core.dropped, 1)
            most = other.qp.capacity.maxReceive
            self.patch(cast(Any, other.qp)._direct, "most", 3)
            for number in range(5):
                one.sendText(other, b"%d" % number)
            self.runUntil(lambda: core.dropped == 3 or self.inbox.takeDatagrams(0) is None)  # noqa: B023
            self.assertEqual(self.takes(3), [b"0", b"1", b"2"])
            self.assertGreater(most, 3)

    def test_putSendsBySharedMemoryAfterPostedOnesOnly(self) -> None:
        one, other = self.both()
        self.direct = IDirectDatagrams(one.qp)
        handle = one.domain.createAddressHandle(other.vector())
        number = other.qp.number
        self.assertTrue(self.direct.putDatagram(handle, number, QKEY, b"he", b"llo"))
        one.sendText(other, b"posted")
        self.assertTrue(self.direct.putDatagram(handle, number, QKEY, b"", b""))
        self.isAccepted(other, [b"hello", b"posted", b""])
        one.pollQueue()
        self.assertEqual(one.completions, [])
        self.assertFalse(self.direct.putDatagram(handle, number, QKEY, b"", bytes(9000)))
        one, other = DatagramEnd(self.open("rocev2")), DatagramEnd(self.open("rocev2"))
        handle = one.domain.createAddressHandle(other.vector())
        self.assertFalse(IDirectDatagrams(one.qp).putDatagram(handle, other.qp.number, QKEY, b"", b"x"))

    def test_sendingNeedsRTSAndInboxSurvivesReset(self) -> None:
        one, other = self.ends("auto")
        handle = one.domain.createAddressHandle(other.vector())
        back = other.domain.createAddressHandle(one.vector())
        for state in (QPState.ERR, QPState.RESET):
            other.qp.modify(QPAttributes(state=state))
            self.assertFalse(self.inbox.putDatagram(back, one.qp.number, QKEY, b"", b"x"))
            if state is QPState.ERR:
                self.assertTrue(self.direct.putDatagram(handle, other.qp.number, QKEY, b"", b"lost"))
            self.assertEqual(list(self.inbox.takeDatagrams(64)), [])
        other.open()
        one.sendText(other, b"again")
        self.assertEqual(self.takes(1), [b"again"])
        self.runUntil(lambda: self.inbox.putDatagram(back, one.qp.number, QKEY, b"", b"x"))
        self.isAccepted(one, [b"x"])

    def test_channelsDescriptorWakesReaderOnBothRoutes(self) -> None:
        for route in ("auto", "rocev2"):
            one, other = self.ends(route)
            other.queue.arm()
            while self.inbox.takeDatagrams(64):
                pass
            one.sendText(other, b"wake")
            self.runUntil(lambda: bool(select.select([other.channel.fileno()], [], [], 0)[0]))  # noqa: B023
            self.assertEqual(self.takes(1), [b"wake"])
            other.channel.takeEvents()

    def test_connectedAndResetQueuePairsHaveNoInbox(self) -> None:
        device = self.open()
        end = End(device, QPKind.UD)
        self.assertIsNone(IDirectDatagrams(end.qp, None))
        self.assertIsNone(IDirectDatagrams(End(device).qp, None))
