"""
Declines of either end in L{txrdma.smc.handshake._machine}, and messages that cross them.
"""

from __future__ import annotations

from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import Refused
from txrdma.smc.handshake._machine import (
    ApplicationData,
    ClientHandshake,
    Confirmed,
    Event,
    FellBack,
    HandshakeFailed,
    LATE_DECLINE_TIMEOUT,
    ServerHandshake,
)
from txrdma.smc.wire.clc import (
    Decline,
    decode,
    Diagnosis,
    LateCLCFilter,
)
from txrdma.test.unit.smc.test_handshake import (
    accept,
    CLIENT,
    clientAt,
    confirm,
    Either,
    newServer,
    offer,
    proposal,
    SERVER,
    serverAt,
    STEPS,
)


class DeclineTests(SynchronousTestCase):
    def test_everyCodeIsReported(self) -> None:
        for diagnosis in (*Diagnosis, Diagnosis(0x06000000)):
            for version, words in ((1, b""), (2, bytes(16)), (2, b"")):
                client = ClientHandshake(0.0, offer)
                raw = Decline(SERVER, diagnosis, version=version, words=words).encode()
                client.received(raw + b"data", 0.0)
                self.assertEqual(client.events(), [FellBack(Diagnosis.PEERDECL, diagnosis, b"data")])

    def test_peersDeclineLosesNoByte(self) -> None:
        for at, steps in STEPS:
            for step in steps:
                if step == "deciding":
                    continue  # nothing is read meanwhile: see the next test
                end = at(step)
                end.received(Decline(b"somebody", Diagnosis.MEM).encode() + b"hello", 0.0)
                expected = FellBack(Diagnosis.PEERDECL, Diagnosis.MEM, b"hello")
                self.assertEqual(end.events(), [expected], step)
                self.assertEqual((end.done, end.outgoing()), (True, b""))
                end.established()  # events of messages in flight arrive too late
                end.decline(Diagnosis.INTERR, 0.0)
                self.assertEqual((end.events(), end.outgoing()), ([], b""))

    def test_declineWhileDecidingCancelsDecision(self) -> None:
        raw = Decline(CLIENT, Diagnosis.MEM).encode()
        for cut in (0, 1, 27, 28):
            for end in (serverAt("deciding"), clientAt("deciding")):
                end.received(raw[:cut], 0.0)
                end.received(raw[cut:] + b"hello", 0.0)
                data = b"hello" if cut < len(raw) else b""
                expected: list[Event] = [FellBack(Diagnosis.PEERDECL, Diagnosis.MEM, data)]
                if cut == len(raw):
                    expected.append(ApplicationData(b"hello"))
                self.assertEqual((end.done, end.events()), (True, expected))
                if isinstance(end, ServerHandshake):
                    end.accept(accept, 0.0)
                else:
                    end.confirm(confirm, 0.0)
                self.assertEqual((end.events(), end.outgoing()), ([], b""))

    def test_outOfSync(self) -> None:
        server = serverAt("waiting")
        server.received(Decline(CLIENT, Diagnosis.SYNCERR, True).encode(), 0.0)
        self.assertEqual(server.events(), [FellBack(Diagnosis.PEERDECL, Diagnosis.SYNCERR, b"", True)])
        client = clientAt("deciding")
        client.decline(Diagnosis.SYNCERR, 0.0)
        self.assertEqual(decode(client.outgoing()), Decline(CLIENT, Diagnosis.SYNCERR, True))

    def test_declineIsSentOnceAndRestIsData(self) -> None:
        for at, steps in STEPS:
            for step in steps:
                end = at(step)
                end.decline(Diagnosis.MEM, 0.0)
                end.decline(Diagnosis.INTERR, 0.0)
                sent = decode(end.outgoing())
                assert isinstance(sent, Decline)
                self.assertEqual((sent.diagnosis, len(sent.encode())), (Diagnosis.MEM, 28))
                self.assertEqual(end.events(), [FellBack(Diagnosis.MEM, None, b"")], step)
                end.received(b"hello", 0.1)
                self.assertEqual(end.events(), [ApplicationData(b"hello")], step)
                self.assertTrue(end.done)

    def test_noDeclineToUnknownClient(self) -> None:
        server = newServer(False)
        server.received(b"\xe2", 0.0)
        server.decline(Diagnosis.MEM, 0.0)
        self.assertEqual(server.outgoing(), b"")
        self.assertEqual(server.events(), [FellBack(Diagnosis.MEM, None, b"\xe2")])

    def test_crossingMessagesAreNoData(self) -> None:
        late = Decline(b"somebody", Diagnosis.TIMEOUT_CL).encode()
        cases: list[tuple[Either, bytes]] = [
            (serverAt("sniffing"), proposal.encode()),
            (serverAt("waiting"), confirm.encode()),
            (serverAt("waiting"), late),
            (serverAt("waiting"), confirm.encode() + late),
            (serverAt("linking"), late),
            (clientAt("waiting"), accept.encode()),
            (clientAt("linking"), late),
        ]
        for end, crossing in cases:
            end.decline(Diagnosis.MEM, 0.0)
            end.events()
            for byte in crossing:
                end.received(bytes((byte,)), 0.0)
            self.assertEqual(end.events(), [])
            end.received(b"hello", 0.0)
            self.assertEqual(end.events(), [ApplicationData(b"hello")])

    def test_crossingAndData(self) -> None:
        late = Decline(CLIENT, Diagnosis.TIMEOUT_CL).encode()
        server = serverAt("waiting")
        server.decline(Diagnosis.MEM, 0.0)
        server.events()
        server.received(confirm.encode() + late + late, 0.0)
        self.assertEqual(server.events(), [ApplicationData(late)])  # only the first one is a CLC message

    def test_crossingEndsAfterOneSecond(self) -> None:
        server = serverAt("linking")
        server.decline(Diagnosis.MEM, 5.0)
        server.events()
        self.assertEqual(server.deadline(), 5.0 + LATE_DECLINE_TIMEOUT)
        server.received(b"\xe2\xd4", 5.5)
        self.assertFalse(server.done)
        server.expired(6.0)
        self.assertEqual((server.done, server.events()), (True, [ApplicationData(b"\xe2\xd4")]))

    def test_lateCrossingIsRecognized(self) -> None:
        server = serverAt("linking")
        self.assertFalse(server.mayCross)
        server.decline(Diagnosis.MEM, 5.0)
        server.expired(6.0)
        self.assertTrue(server.mayCross)
        late = Decline(CLIENT, Diagnosis.TIMEOUT_CL).encode()
        for clc in (late, confirm.encode() + late, accept.encode() + late):
            self.assertEqual(LateCLCFilter()(clc), (len(clc), True))
            self.assertEqual(LateCLCFilter()(clc + late), (len(clc), True))  # that can only be data
            self.assertEqual(LateCLCFilter()(clc + b"hello"), (len(clc), True))
            for length in (4, 5, 27):
                self.assertEqual(LateCLCFilter()(clc[:length]), (0, False), length)
        for data in (b"hello", late[:4] + b"\xff" * 40, late[:-1] + b"!"):
            self.assertEqual(LateCLCFilter()(data), (0, True))
        one = len(confirm.encode())
        self.assertEqual(LateCLCFilter()(confirm.encode()), (one, False))
        self.assertEqual(LateCLCFilter()(confirm.encode() + b"hello"), (one, True))

    def test_joinedClientCannotFallBack(self) -> None:
        for isLate in (False, True):
            server = serverAt("sniffing")
            server.received(proposal.encode(), 0.0)
            server.accept(replace(accept, firstContact=False), 0.0)
            server.events()
            server.decline(Diagnosis.TIMEOUT_CL, 6.0)
            self.assertEqual([type(each) for each in server.events()], [FellBack])
            joining = replace(confirm, firstContact=False).encode()
            if isLate:
                server.expired(7.0)
                self.assertTrue(server.mayCross)
                self.assertRaises(Refused, LateCLCFilter(server.isJoining), joining)
            else:
                server.received(joining, 6.5)
                self.assertEqual([type(each) for each in server.events()], [HandshakeFailed])
        self.assertFalse(serverAt("waiting").isJoining)

    def test_confirmedClientIsNotDeclined(self) -> None:
        for isFirst in (True, False):
            server = serverAt("deciding")
            server.accept(replace(accept, firstContact=isFirst), 0.0)
            server.received(replace(confirm, firstContact=isFirst).encode(), 0.0)
            self.assertEqual([type(each) for each in server.events()], [Confirmed], isFirst)
            server.outgoing()
            server.decline(Diagnosis.NOACTLINK, 0.0)
            reported = [type(each) for each in server.events()]
            self.assertEqual(
                (reported, server.outgoing() == b""),
                ([FellBack], False) if isFirst else ([HandshakeFailed], True),
            )

    def test_crossingInPiecesIsScannedOnce(self) -> None:
        late = Decline(CLIENT, Diagnosis.TIMEOUT_CL).encode()
        for rest in (b"hello", late):
            filter_, held, skipped = LateCLCFilter(), b"", 0
            raw = confirm.encode() + late + rest
            for at in range(0, len(raw), 4):
                held += raw[at : at + 4]
                count, isSure = filter_(held)
                held, skipped = held[count:], skipped + count
                if isSure:
                    break
            self.assertEqual(skipped, len(confirm.encode() + late))

    def test_crossingIsBounded(self) -> None:
        filter_ = LateCLCFilter()
        self.assertEqual(filter_(confirm.encode() * 1000), (2 * len(confirm.encode()), True))

    def test_endReleasesHeldBytes(self) -> None:
        server = serverAt("linking")
        server.decline(Diagnosis.MEM, 5.0)
        server.received(b"\xe2\xd4", 5.5)
        server.events()
        server.ended()
        self.assertEqual((server.done, server.events()), (True, [ApplicationData(b"\xe2\xd4")]))
        self.assertFalse(server.mayCross)

    def test_endBeforeCLCIsUsable(self) -> None:
        for announced, events in ((False, [FellBack(Diagnosis.PEERNOSMC, None, b"\xe2")]), (True, [])):
            server = newServer(announced)
            server.received(b"\xe2", 0.0)
            server.ended()
            self.assertEqual(server.events(), events)
        client = clientAt("waiting")
        client.ended()
        self.assertEqual((client.done, client.events()), (True, [FellBack(Diagnosis.PEERNOSMC, None, b"")]))
        begun = clientAt("waiting")
        begun.received(accept.encode()[:9], 0.0)
        for end in (serverAt("waiting"), serverAt("linking"), begun, clientAt("linking")):
            end.events()
            end.ended()
            self.assertEqual(end.events(), [])

    def test_halfCloseWhileDecidingIsAnswered(self) -> None:
        for rest in (b"", b"\xe2\xd4", b"hello", proposal.encode()):
            server = serverAt("deciding")
            server.events()
            server.received(rest, 6.0)
            server.ended()
            self.assertEqual((server.done, server.events()), (False, []))
