"""
L{txrdma.smc.group._linkgroup}: two connected ends, recorded and invalid messages, timeouts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import ResourceExhausted
from txrdma.iba.types import GID, MACAddress, MTU, QPN, RKey
from txrdma.iba.verbs import GIDType
from txrdma.smc.group._groupstate import (
    Event,
    GroupEnded,
    GroupKey,
    LinkConfirmed,
    LinkEnd,
    LinkRefused,
    RuleBroken,
    Timing,
)
from txrdma.smc.group._linkgroup import LinkGroupProtocol
from txrdma.smc.terms.offer import Agreement, Candidate, Choice, MOST_CONNECTIONS, Role, VERSION_1
from txrdma.smc.wire import llc
from txrdma.smc.wire.clc import Accept, Diagnosis, Proposal
from txrdma.smc.wire.clc import decode as decodeCLC
from txrdma.test.support.captures import messages, SMC_GO

SERVER = LinkEnd(MACAddress(b"server"), GID.fromIP("10.0.0.2"), QPN(2))
CLIENT = LinkEnd(MACAddress(b"client"), GID.fromIP("10.0.0.1"), QPN(1))


def ask(body: llc.Body, flags: int = 0) -> bytes:
    """Return a message of version 1."""
    return llc.message(body, llc.LLCHeader(llc.LLCFlags(flags))).encode()


class Pair:
    """The groups of a server and a client, connected."""

    def __init__(self, **server: Any) -> None:
        self.server = LinkGroupProtocol(Role.SERVER, SERVER, **server)
        self.client = LinkGroupProtocol(Role.CLIENT, CLIENT)
        self.output: list[tuple[str, llc.LLC]] = []

    def run(self, now: float = 0.0) -> tuple[list[Event], list[Event]]:
        """Deliver messages until none is left; return the events of the server and of the client."""
        found: tuple[list[Event], list[Event]] = ([], [])
        moved = True
        while moved:
            moved = False
            for place, (one, other) in enumerate(((self.server, self.client), (self.client, self.server))):
                for _, raw in one.outgoing():
                    self.output.append((one.role.value, llc.decode(raw)))
                    other.received(raw, now)
                    moved = True
                found[place].extend(one.events())
        return found

    def confirm(self, now: float = 0.0) -> tuple[list[Event], list[Event]]:
        self.client.confirm(now, SERVER)
        self.server.confirm(now, CLIENT)
        return self.run(now)

    def names(self) -> list[tuple[str, str, bool]]:
        """Return the sender and type of each message, and whether it was a response."""
        output, self.output = self.output, []
        return [(who, one.type.name, one.isResponse) for who, one in output]


def active(**server: Any) -> Pair:
    """Return a pair whose link is up."""
    pair = Pair(**server)
    pair.confirm()
    pair.output.clear()
    return pair


def answers(group: LinkGroupProtocol) -> list[llc.LLC]:
    """Return a group's messages."""
    return [llc.decode(raw) for _, raw in group.outgoing()]


def alone(role: Role = Role.CLIENT) -> LinkGroupProtocol:
    """Return one group whose link is active; the test is the other end."""
    pair = active()
    return pair.client if role is Role.CLIENT else pair.server


class ConfirmLinkTests(SynchronousTestCase):
    def test_serverRequestsAndClientConfirms(self) -> None:
        pair = Pair()
        self.assertEqual(pair.server.state, "fresh")
        self.assertEqual(pair.confirm(), ([LinkConfirmed()], [LinkConfirmed()]))
        [(_, request), (_, response)] = pair.output
        for one, end in ((request, SERVER), (response, CLIENT)):
            assert isinstance(one.body, llc.ConfirmLink)
            self.assertEqual((one.body.mac, one.body.gid, one.body.qpn), end)
            self.assertEqual((one.body.link, one.body.maxLinks), (1, 1))
            self.assertEqual(one.header.flags & llc.LLCFlags.NO_EYECATCHER, llc.LLCFlags.NO_EYECATCHER)
            self.assertEqual(len(one.encode()), 44)
        self.assertEqual((pair.server.usable, pair.client.usable), (True, True))

    def test_serverTimesOut(self) -> None:
        pair = Pair()
        pair.server.confirm(10.0, CLIENT)
        self.assertEqual(pair.server.deadline(), 15.0)
        pair.server.expired(14.9)
        self.assertEqual(pair.server.events(), [])
        pair.server.expired(15.0)
        self.assertEqual(pair.server.events(), [LinkRefused(Diagnosis.TIMEOUT_CL)])
        self.assertEqual((pair.server.state, pair.server.deadline()), ("ended", None))

    def test_falseRequestIsRefused(self) -> None:
        right = llc.ConfirmLink(mac=SERVER.mac, gid=SERVER.gid, qpn=SERVER.qpn, link=1)
        for body, flags, diagnosis in (
            (right, 0, Diagnosis.RMBE_EC),
            (right, 1, Diagnosis.RMBE_EC),
            (right.replace(qpn=QPN(7)), 3, Diagnosis.NOSRVLINK),
            (right.replace(gid=GID(bytes(16))), 3, Diagnosis.NOSRVLINK),
            (right.replace(mac=MACAddress(b"nobody")), 3, Diagnosis.NOSRVLINK),
        ):
            client = LinkGroupProtocol(Role.CLIENT, CLIENT)
            client.confirm(0.0, SERVER)
            client.received(ask(body, flags), 0.0)
            self.assertEqual((client.events(), client.outgoing()), ([LinkRefused(diagnosis)], []))
            self.assertFalse(client.usable)

    def test_falseResponseIsRefused(self) -> None:
        right = llc.ConfirmLink(mac=CLIENT.mac, gid=CLIENT.gid, qpn=CLIENT.qpn, link=1)
        for body in (right.replace(link=2), right.replace(qpn=QPN(7))):
            server = LinkGroupProtocol(Role.SERVER, SERVER)
            server.confirm(0.0, CLIENT)
            server.received(ask(body, 0x83), 0.0)
            self.assertEqual(server.events(), [LinkRefused(Diagnosis.NOSRVLINK)])

    def test_failedQueuePairDeclines(self) -> None:
        pair = Pair()
        pair.client.confirm(0.0, SERVER)
        pair.client.linkDown(0.0, "retries exceeded")
        self.assertEqual(pair.client.events(), [LinkRefused(Diagnosis.NOACTLINK)])

    def test_linkDeletedBeforeItIsUp(self) -> None:
        server = LinkGroupProtocol(Role.SERVER, SERVER)
        server.confirm(0.0, CLIENT)
        server.received(ask(llc.DeleteLink(), llc.LLCFlags.ALL_LINKS), 0.0)
        self.assertEqual(server.events(), [LinkRefused(Diagnosis.NOACTLINK)])

    def test_offerWithMTUZeroIsRejected(self) -> None:
        pair = Pair(offersLink=True)
        pair.confirm()
        self.assertEqual(pair.names()[2:], [("server", "ADD_LINK", False), ("client", "ADD_LINK", True)])
        self.assertEqual((pair.server.state, pair.client.state), ("active", "active"))


class RecordedTests(SynchronousTestCase):
    """A client's group replaces the recorded kernel's."""

    def test_kernelsRequestsAreAnswered(self) -> None:
        output = [(captured.source, raw) for captured, raw in messages("smc-first") if raw[0] != 0xFE]
        confirmed = llc.decode(output[1][1]).body
        assert isinstance(confirmed, llc.ConfirmLink)
        server = llc.decode(output[0][1]).body
        assert isinstance(server, llc.ConfirmLink)
        end = LinkEnd(confirmed.mac, confirmed.gid, confirmed.qpn)
        client = LinkGroupProtocol(Role.CLIENT, end, version=2)
        client.confirm(0.0, LinkEnd(server.mac, server.gid, server.qpn))
        client.learn(RKey(0x33C), 1)
        asked = [llc.decode(raw) for source, raw in output if source == "10.77.0.2"]
        expected = [llc.decode(raw) for source, raw in output if source == "10.77.0.1"]
        for one in asked:
            if not one.isResponse:
                client.received(one.encode(), 0.0)
        found = answers(client)
        answered = [one for one in expected if one.isResponse]
        self.assertEqual([one.type for one in found], [one.type for one in answered])
        self.assertEqual([one.header.flags for one in found], [one.header.flags for one in answered])
        rejected = [one for one in found if one.type is llc.LLCType.ADD_LINK]
        self.assertEqual([one.encode() for one in rejected], [one.encode() for one in answered[1:2]])

    def test_kernelsClientIsOfferedLink(self) -> None:
        """
        A server with one port sends the recorded client, which waits for it, the ADD LINK of the recorded
        server, but for the unusable MTU and queue pair; the client's rejection ends the exchange.
        """
        output = [(captured.source, raw) for captured, raw in messages("smc-first") if raw[0] != 0xFE]
        fromServer, fromClient = (
            [llc.decode(raw) for source, raw in output if source == address]
            for address in ("10.77.0.2", "10.77.0.1")
        )
        asked, offered = (one.body for one in fromServer[:2])
        confirmed, rejected = fromClient[:2]
        assert isinstance(asked, llc.ConfirmLink) and isinstance(offered, llc.AddLink)
        assert isinstance(confirmed.body, llc.ConfirmLink) and isinstance(rejected.body, llc.AddLink)
        client = LinkEnd(confirmed.body.mac, confirmed.body.gid, confirmed.body.qpn)
        for version in (1, 2):  # the recorded messages are of version 2
            server = LinkGroupProtocol(
                Role.SERVER, LinkEnd(asked.mac, asked.gid, asked.qpn), version=version, offersLink=True
            )
            server.confirm(0.0, client)
            server.outgoing()
            found = []
            for one in (confirmed, rejected):
                assert one.body is not None
                raw = one.encode() if version == 2 else ask(one.body, one.header.flags)
                server.received(raw, 0.0)
                found.append(answers(server))
            [offer], rest = found
            assert isinstance(offer.body, llc.AddLink)
            self.assertEqual((offer.header.version, offer.isResponse, offer.body.mtu), (version, False, 0))
            self.assertEqual(
                (offer.body.mac, offer.body.gid, offer.body.link), (offered.mac, offered.gid, offered.link)
            )
            self.assertEqual((rest, server.events()), ([], [LinkConfirmed()]))
            self.assertEqual(server.state, "active")

    def test_kernelsTestLinkIsAnswered(self) -> None:
        client = alone()
        asked = [raw for captured, raw in messages("smc-test-link") if raw[0] == 0x27]
        requests = [raw for raw in asked if not raw[3] & 0x80]
        self.assertGreater(len(requests), 3)
        for raw in requests:
            client.received(raw, 0.0)
        self.assertEqual([raw for _, raw in client.outgoing()], [raw for raw in asked if raw[3] & 0x80])


class ConnectionTests(SynchronousTestCase):
    def test_tokensAreUniqueAndNonzero(self) -> None:
        client = alone()
        client._token = 0xFFFFFFFE
        tokens = [client.add(object()) for _ in range(4)]
        self.assertEqual(tokens, [0xFFFFFFFE, 0xFFFFFFFF, 1, 2])
        client._token = 0xFFFFFFFE
        self.assertEqual(client.add(object()), 3)
        client.remove(1, 0.0)
        client.remove(1, 0.0)
        self.assertNotIn(1, client.connections)
        mine = object()
        self.assertIs(client.connections[client.add(mine)], mine)

    def test_groupIsFull(self) -> None:
        server = alone(Role.SERVER)
        tokens = [server.add(object()) for _ in range(MOST_CONNECTIONS)]
        self.assertFalse(server.usable)
        self.assertRaises(ResourceExhausted, server.add, object())
        server.remove(tokens[0], 0.0)
        self.assertTrue(server.usable)

    def test_clientAcceptsMoreThanServersLimit(self) -> None:
        client = alone()
        for _ in range(MOST_CONNECTIONS + 1):
            client.add(object())
        self.assertTrue(client.usable)

    def test_retiredGroupTakesNoConnections(self) -> None:
        server = alone(Role.SERVER)
        token = server.add(object())
        server.retire(0.0)
        self.assertEqual((server.usable, server.state), (False, "active"))
        server.remove(token, 1.0)
        self.assertEqual(server.state, "ending")
        server = alone(Role.SERVER)
        server.retire(0.0)
        self.assertEqual(server.state, "ending")

    def test_groupsAreFoundByProposalAndAccept(self) -> None:
        proposal, accept = decodeCLC(SMC_GO["proposal"]), decodeCLC(SMC_GO["accept"])
        assert isinstance(proposal, Proposal) and isinstance(accept, Accept)
        own = Candidate(b"ourselfs", SERVER.gid, GIDType.ROCE_V2, SERVER.mac, MTU.MTU_1024)
        choice = Choice(own, proposal.gid, VERSION_1)
        byProposal = GroupKey.ofProposal(proposal, choice, "host")
        byAccept = GroupKey.ofAccept(accept, own.gid, "host")
        self.assertNotEqual(byProposal, byAccept)
        moved = replace(proposal, subnet=5)
        self.assertEqual(byProposal, GroupKey.ofProposal(moved, choice, "host"))
        others = (
            replace(choice, gid=CLIENT.gid),
            replace(choice, candidate=replace(own, gid=CLIENT.gid)),
            *(replace(choice, agreement=Agreement(2, eid * 32)) for eid in (b"e", b"f")),
        )
        self.assertEqual(len({GroupKey.ofProposal(proposal, other, "host") for other in others}), 4)
        for other in others:
            self.assertNotEqual(byProposal, GroupKey.ofProposal(proposal, other, "host"))
        self.assertNotEqual(byAccept, GroupKey.ofAccept(replace(accept, qpn=QPN(1)), own.gid, "host"))
        self.assertNotEqual(byAccept, GroupKey.ofAccept(replace(accept, version=2), own.gid, "host"))
        self.assertNotEqual(byAccept, GroupKey.ofAccept(accept, CLIENT.gid, "host"))

    def test_agreedConnectionLimit(self) -> None:
        server = LinkGroupProtocol(Role.SERVER, SERVER, version=2, maxConnections=16)
        server.confirm(0.0, CLIENT)
        body = answers(server)[0].body
        assert isinstance(body, llc.ConfirmLink)
        self.assertEqual((body.maxConnections, body.maxLinks), (16, 1))
        answer = llc.ConfirmLink(mac=CLIENT.mac, gid=CLIENT.gid, qpn=CLIENT.qpn, link=1)
        server.received(ask(answer, 0x83), 0.0)
        for _ in range(16):
            self.assertTrue(server.usable)
            server.add(object())
        self.assertFalse(server.usable)
        self.assertRaises(ResourceExhausted, server.add, object())


class IdleTests(SynchronousTestCase):
    """Groups without connections, and links without traffic."""

    def _quiet(self, role: Role) -> LinkGroupProtocol:
        group = LinkGroupProtocol(role, SERVER, timing=Timing(testIdle=0))
        group.confirm(0.0, CLIENT)
        flags = 0x83 if role is Role.SERVER else 3
        group.received(
            ask(llc.ConfirmLink(mac=CLIENT.mac, gid=CLIENT.gid, qpn=CLIENT.qpn, link=1), flags), 0.0
        )
        group.outgoing()
        group.events()
        return group

    def test_unusedGroupEnds(self) -> None:
        for role, seconds in ((Role.SERVER, 600.0), (Role.CLIENT, 610.0)):
            group = self._quiet(role)
            self.assertEqual(group.deadline(), seconds)
            token = group.add(object())
            self.assertIsNone(group.deadline())
            group.remove(token, 100.0)
            self.assertEqual(group.deadline(), 100.0 + seconds)
            group.expired(99.0 + seconds)
            self.assertEqual(group.state, "active")
            group.expired(100.0 + seconds)
            self.assertEqual(group.state, "ending")
            [request] = answers(group)
            self.assertEqual(request.header.flags, llc.LLCFlags.ALL_LINKS | llc.LLCFlags.ORDERLY)

    def test_testLinkAfterIdleTime(self) -> None:
        pair = active()
        pair.server.first.lastReceivedAt = 10.0
        self.assertEqual(pair.server.deadline(), 40.0)
        pair.server.expired(39.0)
        self.assertEqual(pair.server.outgoing(), [])
        pair.server.expired(40.0)
        self.assertEqual(pair.server.deadline(), 115.0)
        pair.run(41.0)
        self.assertEqual(pair.names(), [("server", "TEST_LINK", False), ("client", "TEST_LINK", True)])
        self.assertEqual(pair.server.deadline(), 71.0)

    def test_silentPeerIsProbedAsLongAsTCPWould(self) -> None:
        server = alone(Role.SERVER)
        server.add(object())
        asked = []
        while not (events := server.events()):
            now = server.deadline()
            assert now is not None
            server.expired(now)
            asked += [now] * len(server.outgoing())
        self.assertEqual(asked[:3], [30.0, 105.0, 180.0])
        self.assertEqual(now, 7875.0)
        text = "the peer has answered no TEST LINK for too long"
        self.assertEqual(events, [GroupEnded(llc.DeleteReason.LOST_PATH, text)])

    def test_timeInWhichNothingRanIsNoSilence(self) -> None:
        """After a jump of the clock, or a suspension, the peer is probed as after an ordinary idle time."""
        for before in ((), (30.0, 105.0)):
            server = alone(Role.SERVER)
            server.add(object())
            for now in before:
                server.expired(now)
            server.outgoing()
            server.expired(1e6)
            self.assertEqual((server.state, server.events()), ("active", []))
            [request] = answers(server)
            self.assertIsInstance(request.body, llc.TestLink)
            asked = [1e6]
            while not server.events():
                now = server.deadline() or 0.0
                server.expired(now)
                asked += [now] * len(server.outgoing())
            self.assertGreaterEqual(now, 1e6 + 7000.0)
            self.assertGreater(len(asked), 90)

    def test_sharedMemoryConfirmsSeveralBuffers(self) -> None:
        for shares, reported in ((False, 1), (True, 3)):
            pair = Pair()
            if shares:
                pair.client.shareMemory()
            pair.confirm()
            for number in range(3):
                pair.client.confirmRKey(RKey(number + 1), 0x1000, 0.0)
            self.assertEqual(len(answers(pair.client)), reported)

    def test_watchedPeerIsNotProbed(self) -> None:
        server = alone(Role.SERVER)
        server.isWatched = True
        server.add(object())
        self.assertIs(server.deadline(), None)

    def test_answerWithOtherDataShowsLife(self) -> None:
        server = alone(Role.SERVER)
        server.expired(30.0)
        server.received(ask(llc.TestLink(userData=b"?" * 16), 0x80), 30.0)
        self.assertEqual(server.deadline(), 105.0)


class EndTests(SynchronousTestCase):
    def test_clientEnds(self) -> None:
        pair = active()
        pair.client.shutdown(0.0)
        found = pair.run()
        self.assertEqual(found[0], [GroupEnded(llc.DeleteReason.PROGRAM_ENDING, "ended by the peer", True)])
        self.assertEqual(found[1], [GroupEnded(llc.DeleteReason.PROGRAM_ENDING, "ended by this process")])
        self.assertEqual(
            pair.names(),
            [
                ("client", "DELETE_LINK", False),
                ("server", "DELETE_LINK", False),
                ("client", "DELETE_LINK", True),
            ],
        )

    def test_unansweredEnd(self) -> None:
        server = alone(Role.SERVER)
        server.shutdown(5.0)
        self.assertEqual(server.deadline(), 7.0)
        server.expired(7.0)
        self.assertEqual(
            server.events(), [GroupEnded(llc.DeleteReason.PROGRAM_ENDING, "ended by this process")]
        )
        self.assertEqual(server.state, "ended")

    def test_groupNeverUpEndsSilently(self) -> None:
        for group in (LinkGroupProtocol(Role.SERVER, SERVER), LinkGroupProtocol(Role.CLIENT, CLIENT)):
            group.shutdown(0.0)
            self.assertEqual((group.state, group.outgoing(), len(group.events())), ("ended", [], 1))

    def test_violationEndsGroupWithLogEntry(self) -> None:
        for raw in (bytes((10, 44)).ljust(44, b"\0"), b"\1\0\0\0".ljust(44, b"\0"), b"", b"\x01\x2c",
                    ask(llc.DeleteRKey(count=9))):  # fmt: skip
            client = alone()
            client.received(raw, 0.0)
            [broken, event] = client.events()
            assert isinstance(broken, RuleBroken) and isinstance(event, GroupEnded)
            self.assertEqual((event.reason, event.text), (llc.DeleteReason.PROTOCOL_VIOLATION, broken.text))
            [reported] = answers(client)
            self.assertEqual(
                (reported.type, reported.header.flags), (llc.LLCType.DELETE_LINK, llc.LLCFlags.ALL_LINKS)
            )
            self.assertEqual(client.state, "ended")

    def test_endedGroupIgnoresMessages(self) -> None:
        client = alone()
        client.linkDown(0.0, "gone")
        client.events()
        client.received(ask(llc.TestLink()), 0.0)
        client.linkDown(0.0, "gone")
        client.shutdown(0.0)
        client.expired(1e9)
        self.assertEqual((client.outgoing(), client.events(), client.deadline()), ([], [], None))


class RequestTests(SynchronousTestCase):
    def test_secondLinkIsRefusedWithReason(self) -> None:
        for role in Role:
            group = alone(role)
            asked = llc.AddLink(mac=SERVER.mac, gid=SERVER.gid, qpn=QPN(9), link=2, mtu=3, psn=4)
            group.received(ask(asked), 0.0)
            [answer] = answers(group)
            self.assertEqual(answer.body, asked)
            self.assertEqual(answer.header.flags, llc.LLCFlags.RESPONSE | llc.LLCFlags.REJECT)
            self.assertEqual(answer.header.rejectReason, llc.AddLinkReason.NO_ALTERNATE_PATH)
            self.assertTrue(group.usable)

    def test_peersByteOrderIsUsed(self) -> None:
        group = LinkGroupProtocol(Role.CLIENT, CLIENT, version=2)
        group.confirm(0.0, SERVER)
        body = llc.ConfirmLink(mac=SERVER.mac, gid=SERVER.gid, qpn=SERVER.qpn, link=1)
        group.received(llc.message(body, llc.LLCHeader(llc.LLCFlags(3), 2, bigEndian=True)).encode(), 0.0)
        group.confirmRKey(RKey(1), 2, 0.0)
        self.assertEqual([raw[:4].hex() for _, raw in group.outgoing()], ["21002c83", "26002c00"])

    @given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 255), st.binary(max_size=40)), max_size=8))
    def test_arbitraryMessagesEndAtMostOnce(self, found: list[tuple[int, int, bytes]]) -> None:
        for group in self._everywhere():
            ends = 0
            for kind, flags, body in found:
                group.received(bytes((kind, 44, 0, flags)) + body.ljust(40, b"\0"), 0.0)
                group.outgoing()
                ends += sum(isinstance(each, (GroupEnded, LinkRefused)) for each in group.events())
            self.assertEqual(ends, group.state == "ended")

    def _everywhere(self) -> Iterator[LinkGroupProtocol]:
        for role, end, peer in ((Role.SERVER, SERVER, CLIENT), (Role.CLIENT, CLIENT, SERVER)):
            yield LinkGroupProtocol(role, end)
            group = LinkGroupProtocol(role, end)
            group.confirm(0.0, peer)
            yield group
            yield alone(role)
            group = alone(role)
            group.shutdown(0.0)
            yield group
