"""
L{txrdma.smc.handshake._machine}: agreement, Declines at every step, unknown peers, invalid messages,
timeouts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, Union

from hypothesis import assume, given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import WireError
from txrdma.iba.types import GID, MACAddress, MTU
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
    Proposal,
    ProposalV2,
    SMCDAccept,
    SMCDArea,
    SMCKind,
    SMCR,
)
from txrdma.test.support.captures import streams
from txrdma.test.support.smc.clc import END

CLIENT = b"\0\1client"
SERVER = b"\0\2server"

proposal = Proposal(CLIENT, GID.fromIP("10.0.0.1"), MACAddress(b"client"), 0x0A000001, 24)
accept = Accept(SERVER, GID.fromIP("10.0.0.2"), MACAddress(b"server"), **END, firstContact=True)
confirm = Confirm(CLIENT, GID.fromIP("10.0.0.1"), MACAddress(b"client"), **END, firstContact=True)
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
    typeV1=SMCKind.NONE,
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


STEPS: tuple[tuple[Callable[[str], Either], tuple[str, ...]], ...] = (
    (serverAt, ("sniffing", "deciding", "waiting", "linking")),
    (clientAt, ("waiting", "deciding", "linking")),
)
"""Functions that return an end, and the states that they accept."""


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
        both = replace(offer2, proposal=replace(proposal2, typeV1=SMCKind.SMC_R), v1=_own)
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
        both = replace(proposal2, typeV1=SMCKind.SMC_R)
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
        # The first byte of these is that of a CLC message, which the server waits for.
        assume(not announced or data[:1] != b"\xe2")
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

    def test_otherFirstMessageIsDataUnlessAnnounced(self) -> None:
        for raw in (proposal.encode()[:-1] + b"?", accept.encode(), confirm.encode()):
            server = newServer(False)
            server.received(raw, 0.0)
            self.assertEqual(server.events(), [FellBack(Diagnosis.PEERNOSMC, None, raw)])
            server = newServer(True)
            server.received(raw, 0.0)
            [event] = server.events()
            assert isinstance(event, HandshakeFailed)
            self.assertIsInstance(event.error, WireError)


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
            if isFirst:  # until the link is confirmed, a Decline is possible
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

    def test_longMessageIsNotAwaited(self) -> None:
        """A message longer than any of CLC ends the handshake; unless announced, it is application data."""
        raw = SMCR + b"\1" + (MAX_LENGTH + 1).to_bytes(2, "big") + b"\x10"
        for end in (serverAt("sniffing"), serverAt("waiting"), clientAt("waiting")):
            end.received(raw, 0.0)
            [event] = end.events()
            self.assertIsInstance(event, HandshakeFailed)
            self.assertEqual((end.done, end.outgoing(), end.deadline()), (True, b"", None))
        server = newServer(False)
        server.received(raw, 0.0)
        self.assertEqual(server.events(), [FellBack(Diagnosis.PEERNOSMC, None, raw)])

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
        for at, steps in STEPS:
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
