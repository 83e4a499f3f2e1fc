"""
L{txrdma.smc.handshake._machine}: agreement, Declines at every step, unknown peers, invalid messages,
timeouts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, Union

from hypothesis import assume, given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import Refused, WireError
from txrdma.iba.types import GID, MACAddress, MTU, QPN, RKey
from txrdma.iba.verbs import GIDType
from txrdma.smc.handshake._machine import (
    Accepted,
    ApplicationData,
    CLC_TIMEOUT,
    ClientHandshake,
    Confirmed,
    Event,
    FellBack,
    HandshakeFailed,
    LATE_DECLINE_TIMEOUT,
    Proposed,
    ServerHandshake,
)
from txrdma.smc.terms.offer import Abilities, Agreement, Candidate, Offer, VERSION_1
from txrdma.smc.wire.clc import (
    Accept,
    Confirm,
    Decline,
    decode,
    Diagnosis,
    enterpriseID,
    LateCLCFilter,
    MAX_LENGTH,
    Path,
    Proposal,
    ProposalV2,
    SMCDAccept,
    SMCDArea,
)
from txrdma.test.support.captures import streams

CLIENT = b"\0\1client"
SERVER = b"\0\2server"

proposal = Proposal(CLIENT, GID.fromIP("10.0.0.1"), MACAddress(b"client"), 0x0A000001, 24)
_end: dict[str, Any] = {
    "qpn": QPN(5),
    "rkey": RKey(7),
    "index": 1,
    "token": 99,
    "sizeCode": 2,
    "mtu": 3,
    "address": 4096,
    "psn": 77,
    "firstContact": True,
}
accept = Accept(SERVER, GID.fromIP("10.0.0.2"), MACAddress(b"server"), **_end)
confirm = Confirm(CLIENT, GID.fromIP("10.0.0.1"), MACAddress(b"client"), **_end)
_own = Candidate(CLIENT, GID.fromIP("10.0.0.1"), GIDType.ROCE_V2, MACAddress(b"client"), MTU.MTU_1024)
offer = Offer(proposal, Abilities(), _own, None)

# the same with version 2
_eid = enterpriseID("TXRDMA")
_settled = Agreement(2, _eid, True, 1, 255, 1, 0)
proposal2 = replace(
    proposal,
    version=2,
    subnet=0,
    prefixLength=0,
    typeV1=Path.NONE,
    smcd=SMCDArea(extensionOffset=28),
    v2=ProposalV2(_own.gid, (_eid,), 1, maxConnections=255, maxLinks=1),
)
offer2 = Offer(proposal2, Abilities(ueids=(_eid,)), None, _own)
accept2 = replace(accept, version=2, v2=_settled.extension(True, b"server".ljust(32)))
confirm2 = replace(confirm, version=2, v2=_settled.extension(True, b"client".ljust(32), (_own.gid,)))

E = TypeVar("E", bound=Event)
Either = Union[ServerHandshake, ClientHandshake]


def newServer(announced: bool = True, version: int = 2) -> ServerHandshake:
    return ServerHandshake(0.0, peerID=SERVER, announced=announced, version=version)


def serverAt(step: str) -> ServerHandshake:
    """Return a server in that state, after it has sent its Accept."""
    server = newServer()
    if step == "sniffing":
        return server
    server.received(proposal.encode(), 0.0)
    if step != "deciding":
        server.accept(accept, 0.0)
        if step != "waiting":
            server.received(confirm.encode(), 0.0)
    server.events()
    server.outgoing()
    return server


def clientAt(step: str) -> ClientHandshake:
    """Return a client in that state, after it has sent its Confirm."""
    client = ClientHandshake(0.0, offer)
    if step != "waiting":
        client.received(accept.encode(), 0.0)
        if step != "deciding":
            client.confirm(confirm, 0.0)
    client.events()
    client.outgoing()
    return client


class AgreementTests(SynchronousTestCase):
    """Both ends support SMC."""

    def test_threeMessagesAgree(self) -> None:
        self._agree(offer, accept, VERSION_1, confirm)
        self._agree(offer2, accept2, _settled, confirm2)

    def _agree(self, offer: Offer, accept: Accept, agreement: Agreement, confirm: Confirm) -> None:
        client, server = ClientHandshake(0.0, offer), newServer(False)
        server.received(client.outgoing(), 0.0)
        self.assertEqual(server.events(), [Proposed(offer.proposal)])
        self.assertIsNone(server.deadline())
        server.accept(accept, 0.0)
        client.received(server.outgoing(), 0.0)
        self.assertEqual(client.events(), [Accepted(accept, agreement)])
        client.confirm(confirm, 0.0)
        server.received(client.outgoing(), 0.0)
        self.assertEqual(server.events(), [Confirmed(confirm)])
        for end in (client, server):
            self.assertFalse(end.done)
            end.established()
            self.assertTrue(end.done)
            self.assertEqual((end.events(), end.outgoing(), end.deadline()), ([], b"", None))

    def test_messagesCutAnywhere(self) -> None:
        client, server = ClientHandshake(0.0, offer), newServer(False)

        def drip(source: Either, target: Either) -> list[Event]:
            found = []
            for byte in source.outgoing():
                target.received(bytes((byte,)), 0.0)
                found += target.events()
            return found

        self.assertEqual(drip(client, server), [Proposed(proposal)])
        server.accept(accept, 0.0)
        self.assertEqual(drip(server, client), [Accepted(accept, VERSION_1)])
        client.confirm(confirm, 0.0)
        self.assertEqual(drip(client, server), [Confirmed(confirm)])

    def test_kernelsProposalIsAnswered(self) -> None:
        found = {source: content for source, _, content in streams("smc-first")}
        raw = [found[source] for source in sorted(found)]
        server = newServer()
        server.received(raw[0][:156], 0.0)
        [event] = server.events()
        assert isinstance(event, Proposed)
        self.assertEqual(event.proposal.encode(), raw[0][:156])
        abilities = Abilities(ueids=(_eid,), maxLinks=2, features=1)
        client = ClientHandshake(0.0, Offer(event.proposal, abilities, None, _own))
        client.received(raw[1][:160], 0.0)
        [accepted] = client.events()
        assert isinstance(accepted, Accepted)
        self.assertEqual(accepted.agreement, replace(_settled, maxLinks=2, features=1))
        server.accept(accepted.accept, 0.0)
        server.received(raw[0][156:336], 0.0)
        [confirmed] = server.events()
        assert isinstance(confirmed, Confirmed)
        self.assertEqual(confirmed.confirm.encode(), raw[0][156:336])


class VersionTests(SynchronousTestCase):
    """The version of a Decline is the one that both ends have used so far."""

    def _declined(self, end: Either, version: int) -> None:
        """Assert that a Decline in the exact form of that version is sent."""
        raw = end.outgoing()
        sent = decode(raw)
        assert isinstance(sent, Decline)
        self.assertEqual((len(raw), raw[7] >> 4), {1: (28, 1), 2: (44, 2)}[version])

    def test_clientVersionFollowsAccept(self) -> None:
        both = replace(offer2, proposal=replace(proposal2, typeV1=Path.SMC_R), v1=_own)
        for one, answer, version in (
            (offer, None, 1),
            (both, None, 2),
            (both, accept, 1),
            (both, accept2, 2),
        ):
            client = ClientHandshake(0.0, one)
            client.outgoing()
            if answer is not None:
                client.received(answer.encode(), 0.0)
            client.decline(Diagnosis.MEM, 0.0)
            self._declined(client, version)

    def test_serverVersionFollowsProposal(self) -> None:
        both = replace(proposal2, typeV1=Path.SMC_R)
        cases = ((proposal, 2, None, 1), (both, 2, None, 2), (both, 1, None, 1), (both, 2, accept, 1),
                 (proposal2, 2, accept2, 2), (replace(both, version=3), 2, None, 2))  # fmt: skip
        for one, highest, answer, version in cases:
            server = newServer(version=highest)
            server.received(one.encode(), 0.0)
            if answer is not None:
                server.accept(answer, 0.0)
                server.outgoing()
            server.decline(Diagnosis.MEM, 0.0)
            self._declined(server, version)

    def test_versionOfDeclineAfterSilence(self) -> None:
        client, server = ClientHandshake(0.0, offer2), newServer()
        client.outgoing()
        for end, version in ((client, 2), (server, 1)):
            end.expired(CLC_TIMEOUT)
            self._declined(end, version)

    def test_declineOfVersion2IsAsLinux(self) -> None:
        server = newServer()
        server.received(proposal2.encode(), 0.0)
        server.decline(Diagnosis.NOSMCRDEV, 0.0)
        recorded = next(raw for _, _, raw in streams("smc-decline") if raw[4] == 4)[:44]
        self.assertEqual(server.outgoing(), recorded.replace(recorded[8:16], SERVER))

    def test_answerOfOtherVersionIsDeclined(self) -> None:
        client = ClientHandshake(0.0, offer)
        client.outgoing()
        client.received(accept2.encode(), 0.0)
        self.assertEqual(client.events(), [FellBack(Diagnosis.VERSMISMAT, None, b"")])
        self._declined(client, 1)
        server = newServer()
        server.received(proposal2.encode(), 0.0)
        server.accept(accept2, 0.0)
        server.outgoing()
        server.events()
        server.received(confirm.encode(), 0.0)
        self.assertEqual(server.events(), [FellBack(Diagnosis.VERSMISMAT, None, b"")])
        self._declined(server, 2)


class StrangerTests(SynchronousTestCase):
    """Clients without SMC, at a server with SMC."""

    @given(st.binary(min_size=1, max_size=100), st.booleans(), st.data())
    def test_plainClientBytesAreReleasedInOrder(
        self, data: bytes, announced: bool, draw: st.DataObject
    ) -> None:
        assume(
            not announced or data[:1] != b"\xe2"
        )  # an announced client that begins like this must be given time
        server = newServer(announced)
        got = b""
        at = 0
        while at < len(data):
            step = draw.draw(st.integers(1, len(data)))
            server.received(data[at : at + step], 0.0)
            at += step
        fallbacks = 0
        for now in (0.0, CLC_TIMEOUT):
            server.expired(now)
            for event in server.events():
                assert isinstance(event, (FellBack, ApplicationData)), event
                got += event.data
                fallbacks += isinstance(event, FellBack)
                if isinstance(event, FellBack):
                    self.assertEqual((event.reason, event.peerDiagnosis), (Diagnosis.PEERNOSMC, None))
        self.assertEqual((got, fallbacks), (data, 1))
        self.assertEqual(server.outgoing(), b"")
        self.assertTrue(server.done)

    def test_bytesAreHeldOnlyWhileProposalIsPossible(self) -> None:
        for begin in (b"\xe2", b"\xe2\xd4\xc3", proposal.encode()[:8], proposal.encode()[:-1]):
            server = newServer(False)
            server.received(begin, 1.0)
            self.assertEqual((server.events(), server.deadline()), ([], 1.0 + CLC_TIMEOUT))
            server.received(b"GET " * 12, 2.0)
            self.assertEqual(server.events(), [FellBack(Diagnosis.PEERNOSMC, None, begin + b"GET " * 12)])

    def test_heldBytesAreReleasedAfterSilence(self) -> None:
        server = newServer(False)
        self.assertIsNone(server.deadline())
        server.received(b"\xe2\xd4", 1.0)
        server.expired(CLC_TIMEOUT)
        self.assertEqual(server.events(), [])
        server.expired(1.0 + CLC_TIMEOUT)
        self.assertEqual(server.events(), [FellBack(Diagnosis.PEERNOSMC, None, b"\xe2\xd4")])

    def test_damagedProposalIsDataUnlessAnnounced(self) -> None:
        raw = proposal.encode()[:-1] + b"?"
        server = newServer(False)
        server.received(raw, 0.0)
        self.assertEqual(server.events(), [FellBack(Diagnosis.PEERNOSMC, None, raw)])
        server = newServer(True)
        server.received(raw, 0.0)
        [event] = server.events()
        assert isinstance(event, HandshakeFailed)
        self.assertIsInstance(event.error, WireError)

    def test_acceptOrConfirmFirstIsNoClient(self) -> None:
        for message in (accept, confirm):
            server = newServer(False)
            server.received(message.encode(), 0.0)
            self.assertEqual(server.events(), [FellBack(Diagnosis.PEERNOSMC, None, message.encode())])
            server = newServer(True)
            server.received(message.encode(), 0.0)
            [event] = server.events()
            self.assertIsInstance(event, HandshakeFailed)

    def test_declineFirstThenPlainTCP(self) -> None:
        server = newServer(False)
        server.received(Decline(CLIENT, Diagnosis.NOSMCDEV).encode() + b"GET", 0.0)
        self.assertEqual(server.events(), [FellBack(Diagnosis.PEERDECL, Diagnosis.NOSMCDEV, b"GET")])
        server.received(b" /", 0.0)
        self.assertEqual(server.events(), [ApplicationData(b" /")])

    def test_plainServerAnsweringProposalFails(self) -> None:
        client = ClientHandshake(0.0, offer)
        client.received(b"220 hello", 0.0)
        [event] = client.events()
        self.assertIsInstance(event, HandshakeFailed)
        client.received(b"more", 0.0)
        self.assertEqual((client.events(), client.done), ([], True))


class DeclineTests(SynchronousTestCase):
    STEPS: tuple[tuple[Callable[[str], Either], tuple[str, ...]], ...] = (
        (serverAt, ("sniffing", "deciding", "waiting", "linking")),
        (clientAt, ("waiting", "deciding", "linking")),
    )

    def test_everyCodeIsReported(self) -> None:
        for diagnosis in (*Diagnosis, Diagnosis(0x06000000)):
            for version, words in ((1, b""), (2, bytes(16)), (2, b"")):
                client = ClientHandshake(0.0, offer)
                raw = Decline(SERVER, diagnosis, version=version, words=words).encode()
                client.received(raw + b"data", 0.0)
                self.assertEqual(client.events(), [FellBack(Diagnosis.PEERDECL, diagnosis, b"data")])

    def test_peersDeclineLosesNoByte(self) -> None:
        for at, steps in self.STEPS:
            for step in steps:
                if step == "deciding":
                    continue  # nothing is read meanwhile: see the next test
                end = at(step)
                end.received(Decline(b"somebody", Diagnosis.MEM).encode() + b"hello", 0.0)
                expected = FellBack(Diagnosis.PEERDECL, Diagnosis.MEM, b"hello")
                self.assertEqual(end.events(), [expected], step)
                self.assertEqual((end.done, end.outgoing()), (True, b""))
                end.established()  # what was in flight arrives too late
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
        for at, steps in self.STEPS:
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
        self.assertEqual(server.events(), [ApplicationData(late)])  # the second one is not CLC any more

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


class TimeTests(SynchronousTestCase):
    def test_silenceDeclinesAfterSixSeconds(self) -> None:
        cases: tuple[tuple[Either, bytes], ...] = (
            (serverAt("sniffing"), proposal.encode()),
            (serverAt("waiting"), confirm.encode()),
            (clientAt("waiting"), accept.encode()),
        )
        for end, late in cases:
            self.assertEqual(end.deadline(), CLC_TIMEOUT)
            end.expired(5.9)
            self.assertEqual(end.events(), [])
            end.expired(6.0)
            self.assertEqual(end.events(), [FellBack(Diagnosis.TIMEOUT_CL, None, b"")])
            sent = decode(end.outgoing())
            assert isinstance(sent, Decline)
            self.assertEqual(sent.diagnosis, Diagnosis.TIMEOUT_CL)
            self.assertFalse(end.done)
            end.received(late + b"hello", 6.5)
            self.assertEqual((end.done, end.events()), (True, [ApplicationData(b"hello")]))

    def test_busyServerLearnsOfFallback(self) -> None:
        client, server = ClientHandshake(0.0, offer), newServer()
        sent = client.outgoing()
        client.expired(6.0)
        client.expired(7.0)
        self.assertTrue(client.mayCross)
        server.received(sent + client.outgoing() + b"hello", 0.0)
        fallback = FellBack(Diagnosis.PEERDECL, Diagnosis.TIMEOUT_CL, b"hello")
        self.assertEqual((server.done, server.events(), server.outgoing()), (True, [fallback], b""))

    def test_lateAcceptIsNotUsed(self) -> None:
        for isFirst in (True, False):
            client = ClientHandshake(0.0, offer)
            client.outgoing()
            client.received(replace(accept, firstContact=isFirst).encode(), 6.0)
            client.confirm(replace(confirm, firstContact=isFirst), 6.5)
            sent = decode(client.outgoing())
            if isFirst:  # it is not on SMC-R before the link is confirmed, and gets a Decline
                self.assertIsInstance(sent, Confirm)
                continue
            assert isinstance(sent, Decline)
            self.assertEqual(sent.diagnosis, Diagnosis.TIMEOUT_CL)
            fallback = FellBack(Diagnosis.TIMEOUT_CL, None, b"")
            self.assertIn(fallback, client.events())
            self.assertEqual((client.done, client.mayCross), (True, True))
            late = Decline(SERVER, Diagnosis.TIMEOUT_CL).encode()
            self.assertEqual(LateCLCFilter(client.isJoining)(late + b"hello"), (len(late), True))

    def test_withdrawnClientIsPlain(self) -> None:
        for early in (b"", b"\xe2\xd4"):
            server = newServer()
            server.received(early, 1.0)
            server.withdrawn()
            self.assertEqual(server.events(), [FellBack(Diagnosis.PEERNOSMC, None, early)])
            self.assertEqual((server.done, server.outgoing()), (True, b""))
            server.received(b"hello", 1.0)
            self.assertEqual(server.events(), [ApplicationData(b"hello")])
        for step in ("deciding", "waiting", "linking"):
            server = serverAt(step)
            server.withdrawn()
            self.assertEqual((server.done, server.events()), (False, []))

    def test_undecidedHandshakePausesTCP(self) -> None:
        for end in (serverAt("deciding"), clientAt("deciding")):
            self.assertFalse(end.isFull)
            end.received(bytes(MAX_LENGTH - 1), 0.0)
            self.assertFalse(end.isFull)
            end.received(b"x", 0.0)
            self.assertTrue(end.isFull)
            end.decline(Diagnosis.MEM, 0.0)
            self.assertFalse(end.isFull)
            self.assertEqual(end.events(), [FellBack(Diagnosis.MEM, None, b""),
                                            ApplicationData(bytes(MAX_LENGTH - 1) + b"x")])  # fmt: skip

    def test_ownDecisionHasNoTimeout(self) -> None:
        unannounced = newServer(False)
        unannounced.received(proposal.encode(), 0.0)
        unannounced.accept(accept, 0.0)
        unannounced.received(confirm.encode(), 0.0)
        unannounced.events()
        ends = (*map(serverAt, ("deciding", "linking")), *map(clientAt, ("deciding", "linking")), unannounced)
        for end in ends:
            end.received(b"\xe2", 0.0)
            self.assertIsNone(end.deadline())
            end.expired(1e9)
            self.assertEqual(end.events(), [])


class LieTests(SynchronousTestCase):
    def test_falseAcceptIsDeclined(self) -> None:
        client = clientAt("waiting")
        client.received(replace(accept, index=0).encode() + b"x", 0.0)
        self.assertEqual(client.events(), [FellBack(Diagnosis.CNFERR, None, b""), ApplicationData(b"x")])
        self.assertEqual(decode(client.outgoing()), Decline(CLIENT, Diagnosis.CNFERR))

    def test_falseConfirmIsDeclined(self) -> None:
        for lie, diagnosis in (({"peerID": b"somebody"}, Diagnosis.CNFERR),
                               ({"firstContact": False}, Diagnosis.SYNCERR)):  # fmt: skip
            server = serverAt("waiting")
            server.received(replace(confirm, **lie).encode(), 0.0)
            self.assertEqual(server.events(), [FellBack(diagnosis, None, b"")], lie)
            expected = Decline(SERVER, diagnosis, outOfSync=diagnosis is Diagnosis.SYNCERR)
            self.assertEqual(decode(server.outgoing()), expected)

    def test_messageOutOfTurnEnds(self) -> None:
        cases: tuple[tuple[Either, bytes], ...] = (
            (serverAt("waiting"), proposal.encode()),
            (serverAt("waiting"), accept.encode()),
            (serverAt("waiting"), b"data"),
            (serverAt("linking"), confirm.encode()),
            (serverAt("linking"), proposal.encode()),
            (serverAt("linking"), b"data"),
            (clientAt("waiting"), confirm.encode()),
            (clientAt("waiting"), proposal.encode()),
            (clientAt("waiting"), SMCDAccept(1, 2, 3, 4, 5).encode()),
            (clientAt("linking"), accept.encode()),
            (clientAt("linking"), b"data"),
        )
        for end, raw in cases:
            end.received(raw, 0.0)
            [event] = end.events()
            assert isinstance(event, HandshakeFailed)
            self.assertIsInstance(event.error, WireError)
            self.assertEqual((end.done, end.outgoing(), end.deadline()), (True, b"", None))

    def test_incompleteMessageBeforeLinkIsDropped(self) -> None:
        for end in (serverAt("linking"), clientAt("linking")):
            end.received(b"\xe2", 0.0)
            end.established()
            [event] = end.events()
            self.assertIsInstance(event, HandshakeFailed)

    @given(st.lists(st.sampled_from([proposal.encode(), accept.encode(), confirm.encode(), b"data", b"\xe2",
                                     Decline(CLIENT, Diagnosis.MEM).encode()])),
           st.lists(st.integers(1, 60)))  # fmt: skip
    def test_anyInputIsAnsweredAndEndsOnce(self, messages: list[bytes], cuts: list[int]) -> None:
        for at, steps in DeclineTests.STEPS:
            for step in steps:
                end = at(step)
                raw = b"".join(messages)
                for cut in cuts:
                    end.received(raw[:cut], 0.0)
                    raw = raw[cut:]
                end.received(raw, 0.0)
                end.decline(Diagnosis.MEM, 1.0)
                end.expired(10.0)
                ends = [event for event in end.events() if isinstance(event, (FellBack, HandshakeFailed))]
                self.assertEqual((len(ends), end.done), (1, True))
