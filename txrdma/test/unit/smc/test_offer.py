"""
L{txrdma.smc.terms.offer}: what is proposed, what is chosen, and every reason to decline.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.types import GID, MACAddress, MTU, QPN
from txrdma.iba.verbs import GIDType
from txrdma.smc.terms.offer import (
    Abilities,
    Agreement,
    Candidate,
    check,
    checkConfirm,
    Choice,
    choose,
    Offer,
    propose,
    Subnets,
    VERSION_1,
)
from txrdma.smc.wire.clc import (
    Accept,
    AnswerV2,
    Confirm,
    decode,
    Diagnosis,
    enterpriseID,
    IPv6Prefix,
    Proposal,
    ProposalV2,
    SMCDArea,
    SMCKind,
)
from txrdma.test.support.captures import names, SMC_GO, streams
from txrdma.test.support.smc.clc import END

UEID = enterpriseID("TXRDMA")
OTHER = enterpriseID("OTHER")
BOTH = Abilities(ueids=(UEID,))
OLD = Abilities(versions=frozenset((1,)))
NEW = Abilities(versions=frozenset((2,)), ueids=(UEID,))


def candidate(address: str = "10.77.0.1", **more: Any) -> Candidate:
    """Return a port with RoCE v2 at an address."""
    mac = MACAddress(b"mac" + GID.fromIP(address).raw[-3:])
    values = {"peerID": b"ID" + mac.raw, "type": GIDType.ROCE_V2, "mac": mac, "mtu": MTU.MTU_1024, **more}
    return Candidate(gid=GID.fromIP(address), **values)


CLIENT, SERVER = candidate("10.77.0.1"), candidate("10.77.0.2")


def offered(abilities: Abilities = BOTH, one: Candidate = CLIENT, address: str = "10.77.0.1") -> Offer:
    """Return the offer of a client, which must exist."""
    offer = propose((one,), abilities, address)
    assert isinstance(offer, Offer), offer
    return offer


def answer(kind: Any, one: Candidate, agreement: Agreement, first: bool = True, **more: Any) -> Any:
    """Return the Accept or Confirm of an end that follows the agreement, as decoded by the other end."""
    gids = (one.gid,) if kind is Confirm and first else None
    message = kind(one.peerID, one.gid, one.mac, **END, firstContact=first, version=agreement.version,
                   v2=agreement.extension(first, b"host", gids))  # fmt: skip
    return decode(replace(message, **more).encode())


def chosen(abilities: Abilities = BOTH, offer: Offer | None = None, one: Candidate = SERVER) -> Choice:
    """Return the choice of a server, which must exist."""
    choice = choose((offer or offered()).proposal, (one,), abilities)
    assert isinstance(choice, Choice), choice
    return choice


class ProposingTests(SynchronousTestCase):
    def test_versionOneHas52Bytes(self) -> None:
        for abilities in (OLD, Abilities()):
            raw = offered(abilities).proposal.encode()
            self.assertEqual((len(raw), raw[7], raw[38:40]), (52, 0x10, b"\0\0"))
            self.assertEqual(raw[40:45], bytes((10, 77, 0, 1, 32)))

    def test_version2AsLinux(self) -> None:
        proposal = offered(replace(NEW, features=1, maxLinks=2)).proposal
        self.assertEqual(proposal.peerID, CLIENT.peerID)
        proposal = replace(proposal, peerID=bytes(8))
        content = next(content for _, _, content in streams("smc-first"))
        self.assertEqual(proposal.encode(), content[:156])

    def test_release0HasNoLimits(self) -> None:
        proposal = offered(replace(NEW, release=0)).proposal
        assert proposal.v2 is not None
        self.assertEqual((proposal.v2.release, proposal.v2.maxConnections, proposal.v2.maxLinks), (0, 0, 0))

    def test_IPv6ClientNamesIPv6(self) -> None:
        offer = offered(BOTH, candidate("2001:db8::1"), "2001:db8::1")
        expected = (IPv6Prefix(prefix=GID.fromIP("2001:db8::1").raw, length=128),)
        self.assertEqual((offer.proposal.version, offer.proposal.ipv6Prefixes), (1, expected))

    def test_subnetsOfInterface(self) -> None:
        shared = bytes.fromhex("20010db8") + bytes(12)
        one = candidate(subnets=Subnets((0x0A4D0000, 24), ((shared, 64),)))
        proposal = offered(OLD, one).proposal
        self.assertEqual((proposal.subnet, proposal.prefixLength), (0x0A4D0000, 24))
        proposal = offered(OLD, one, "2001:db8::1%eth0").proposal
        self.assertEqual(proposal.ipv6Prefixes, (IPv6Prefix(prefix=shared, length=64),))

    def test_portOfConnectionsAddress(self) -> None:
        offer = propose((SERVER, CLIENT), BOTH, "10.77.0.1")
        assert isinstance(offer, Offer)
        self.assertEqual((offer.v1, offer.v2), (CLIENT, CLIENT))
        offer = propose((SERVER, CLIENT), BOTH, "10.77.0.9")
        assert isinstance(offer, Offer)
        self.assertIs(offer.v2, SERVER)

    def test_candidatePerVersion(self) -> None:
        old = candidate("10.77.0.3", type=GIDType.ROCE_V1)
        offer = propose((old, CLIENT), BOTH, "10.77.0.9")
        assert isinstance(offer, Offer)
        self.assertEqual((offer.candidate(1), offer.candidate(2), offer.candidate(3)), (old, CLIENT, None))
        self.assertEqual(
            (offer.proposal.gid, offer.proposal.v2 and offer.proposal.v2.gid), (old.gid, CLIENT.gid)
        )

    def test_nothingToProposeHasReason(self) -> None:
        cases: tuple[tuple[tuple[Candidate, ...], Abilities, Diagnosis], ...] = (
            ((), BOTH, Diagnosis.NOSMCRDEV),
            ((CLIENT,), replace(NEW, ueids=()), Diagnosis.NOUEID),
            ((candidate(versions=frozenset((1,))),), NEW, Diagnosis.NOSMCRDEV),
            ((candidate(type=GIDType.ROCE_V1),), NEW, Diagnosis.NOSMCRDEV),
            ((candidate("2001:db8::1"),), NEW, Diagnosis.NOSMCRDEV),
        )
        for candidates, abilities, reason in cases:
            self.assertIs(propose(candidates, abilities, "10.77.0.1"), reason)


class ChoosingTests(SynchronousTestCase):
    def test_peerWithVersionOneOnly(self) -> None:
        for asking, serving in ((OLD, BOTH), (BOTH, OLD), (OLD, OLD), (BOTH, Abilities())):
            offer = offered(asking)
            choice = chosen(serving, offer)
            self.assertEqual((choice.agreement, choice.gid), (VERSION_1, CLIENT.gid))
            self.assertEqual(check(answer(Accept, SERVER, choice.agreement), offer), VERSION_1)

    def test_kernelsProposal(self) -> None:
        for name in names():
            if name.startswith("smc-"):
                content = next(content for _, _, content in streams(name))
                proposal = decode(content[: int.from_bytes(content[5:7], "big")])
                assert isinstance(proposal, Proposal) and proposal.v2 is not None
                choice = choose(proposal, (SERVER,), replace(NEW, maxLinks=2))
                assert isinstance(choice, Choice)
                self.assertEqual(choice.gid, proposal.v2.gid)
                self.assertEqual(choice.agreement, Agreement(2, UEID, True, 1, 255, 2, 0))

    def test_lesserRelease(self) -> None:
        offer = offered(replace(NEW, release=0))
        self.assertEqual(chosen(BOTH, offer).agreement, Agreement(2, UEID))
        self.assertEqual(chosen(replace(BOTH, release=0)).agreement, Agreement(2, UEID))
        proposal = offered().proposal
        assert proposal.v2 is not None
        newer = replace(proposal, version=3, v2=replace(proposal.v2, release=9))
        choice = choose(newer, (SERVER,), BOTH)
        assert isinstance(choice, Choice)
        self.assertEqual((choice.agreement.version, choice.agreement.release), (2, 1))

    def test_lesserLimitsAndCommonFeatures(self) -> None:
        offer = offered(replace(BOTH, maxConnections=100, maxLinks=2, features=0b110))
        choice = chosen(replace(BOTH, maxConnections=200, maxLinks=1, features=0b011), offer)
        self.assertEqual(choice.agreement, Agreement(2, UEID, True, 1, 100, 1, 0b010))

    def test_firstCommonUEID(self) -> None:
        third = enterpriseID("A-3")
        offer = offered(replace(BOTH, ueids=(OTHER, third, UEID)))
        self.assertEqual(chosen(replace(BOTH, ueids=(UEID, third)), offer).agreement.eid, third)

    def test_portOfConnectionsAddress(self) -> None:
        near = candidate("10.77.0.3")
        for abilities in (BOTH, OLD):
            choice = choose(offered().proposal, (SERVER, near), abilities, "10.77.0.3")
            assert isinstance(choice, Choice)
            self.assertIs(choice.candidate, near)

    def test_directPathIsPreferredToRouter(self) -> None:
        near = candidate("10.77.0.3", subnets=Subnets((0x0A4D0000, 24)))
        far = candidate("10.9.0.3", subnets=Subnets((0x0A090000, 24)))
        self.assertTrue(chosen(one=near).agreement.isDirect)
        self.assertFalse(chosen(one=far).agreement.isDirect)
        choice = choose(offered().proposal, (far, near), BOTH)
        assert isinstance(choice, Choice)
        self.assertIs(choice.candidate, near)

    def test_reasons(self) -> None:
        """A Proposal is declined with the diagnosis of the reason."""
        both, old, new = (offered(abilities).proposal for abilities in (BOTH, OLD, NEW))
        assert new.v2 is not None
        elsewhere = candidate(subnets=Subnets((0x0A090000, 24)), isRouted=False)
        onlyOld = candidate(versions=frozenset((1,)))
        cases: tuple[tuple[Proposal, tuple[Candidate, ...], Abilities, Diagnosis], ...] = (
            (new, (SERVER,), OLD, Diagnosis.VERSMISMAT),
            (old, (SERVER,), NEW, Diagnosis.VERSMISMAT),
            (replace(old, typeV1=SMCKind.SMC_D), (SERVER,), BOTH, Diagnosis.MODEUNSUPP),
            (replace(both, typeV1=SMCKind.SMC_D), (SERVER,), OLD, Diagnosis.MODEUNSUPP),
            (replace(new, typeV2=SMCKind.SMC_D), (SERVER,), BOTH, Diagnosis.MODEUNSUPP),
            (replace(new, typeV2=SMCKind.NONE, v2=None), (SERVER,), BOTH, Diagnosis.VERSMISMAT),
            (old, (elsewhere,), BOTH, Diagnosis.DIFFPREFIX),
            (both, (elsewhere,), OLD, Diagnosis.DIFFPREFIX),
            (old, (), BOTH, Diagnosis.NOSMCRDEV),
            (both, (), BOTH, Diagnosis.NOSMCRDEV),
            (new, (onlyOld,), BOTH, Diagnosis.NOSMCRDEV),
            (replace(new, v2=None), (SERVER,), BOTH, Diagnosis.NOV2EXT),
            (new, (SERVER,), replace(BOTH, ueids=(OTHER,)), Diagnosis.NOUEID),
            (new, (SERVER,), Abilities(), Diagnosis.NOUEID),
            (new, (elsewhere,), BOTH, Diagnosis.NOROUTE),
            (replace(new, v2=replace(new.v2, gid=GID(bytes(16)))), (SERVER,), BOTH, Diagnosis.NOROUTE),
            (replace(new, v2=replace(new.v2, maxConnections=15)), (SERVER,), BOTH, Diagnosis.MAXCONNERR),
            (replace(new, v2=replace(new.v2, maxLinks=0)), (SERVER,), BOTH, Diagnosis.MAXLINKERR),
        )
        for proposal, candidates, abilities, reason in cases:
            again = decode(proposal.encode())
            assert isinstance(again, Proposal)
            self.assertIs(choose(again, candidates, abilities), reason)

    def test_reasonIsOfVersion2(self) -> None:
        elsewhere = candidate(subnets=Subnets((0x0A090000, 24)))
        reason = choose(offered().proposal, (elsewhere,), replace(BOTH, ueids=(OTHER,)))
        self.assertIs(reason, Diagnosis.NOUEID)

    def test_offerOfSMCDAsWell(self) -> None:
        one = replace(offered().proposal, typeV1=SMCKind.BOTH, typeV2=SMCKind.BOTH)
        for abilities, version in ((OLD, 1), (BOTH, 2)):
            choice = choose(one, (SERVER,), abilities)
            assert isinstance(choice, Choice)
            self.assertEqual(choice.agreement.version, version)


class SubnetTests(SynchronousTestCase):
    """Version 1 requires a common subnet."""

    proposal = Proposal(b"\0\1client", GID.fromIP("10.0.0.1"), MACAddress(b"client"), 0x0A000001, 24)

    def _answer(self, subnets: Subnets | None, one: Proposal = proposal) -> Choice | Diagnosis:
        return choose(one, (candidate(subnets=subnets),), BOTH)

    def test_sameIPv4Network(self) -> None:
        self.assertIsInstance(self._answer(Subnets((0x0A0000FF, 24))), Choice)
        self.assertIsInstance(self._answer(None), Choice)
        for network in ((0x0A000100, 24), (0x0A000000, 23), (0x0A000000, 16), (0x0A000000, 33), None):
            self.assertIs(self._answer(Subnets(network)), Diagnosis.DIFFPREFIX)
        tooLong = replace(self.proposal, prefixLength=33)
        self.assertIs(self._answer(Subnets((0x0A000001, 33)), tooLong), Diagnosis.DIFFPREFIX)

    def test_withoutIPv4(self) -> None:
        """An interface without an IPv4 address has no IPv4 address in its subnet."""
        self.assertFalse(Subnets().holds(GID.fromIP("10.0.0.1")))

    def test_prefixZeroMatchesAll(self) -> None:
        self.assertIsInstance(self._answer(Subnets((0, 0)), replace(self.proposal, prefixLength=0)), Choice)

    def test_commonIPv6Prefix(self) -> None:
        shared = bytes.fromhex("20010db8") + bytes(12)
        local = bytes.fromhex("fe80") + bytes(14)
        other = bytes.fromhex("20010db9") + bytes(12)
        prefixes = tuple(IPv6Prefix(prefix=each, length=64) for each in (local, shared))
        one = replace(self.proposal, subnet=0, prefixLength=0, ipv6Prefixes=prefixes)
        self.assertIsInstance(self._answer(Subnets(ipv6=((other, 64), (shared, 64))), one), Choice)
        for ours in (((local, 64),), ((other, 64),), ((shared, 48),), ((shared, 0),), ()):
            self.assertIs(self._answer(Subnets((0, 0), ours), one), Diagnosis.DIFFPREFIX)

    def test_linkLocal(self) -> None:
        """A link-local TCP connection has both ends on one link, as have their link-local GIDs."""
        subnets = Subnets((0x0A000000, 24), interface="eth0")
        client, server = (candidate(f"fe80::{each}", subnets=subnets) for each in (1, 2))
        one = offered(OLD, client, "fe80::1%eth0").proposal
        self.assertIsInstance(choose(one, (server,), BOTH, "fe80::2%eth0"), Choice)
        elsewhere, unnamed = candidate("2001:db8::2", subnets=subnets), replace(subnets, interface="")
        for proposal, port, address in (
            (one, server, "fe80::2%eth1"),
            (one, server, "2001:db8::2"),
            (one, replace(server, subnets=unnamed), "2001:db8::2"),
            (one, elsewhere, "fe80::2%eth0"),
            (replace(one, gid=GID.fromIP("2001:db8::1")), server, "fe80::2%eth0"),
        ):
            self.assertIs(choose(proposal, (port,), BOTH, address), Diagnosis.DIFFPREFIX)


LIES: tuple[dict[str, Any], ...] = (
    {"index": 0},
    {"token": 0},
    {"qpn": QPN(0)},
    {"mtu": 0},
    {"mtu": 6},
    {"address": (1 << 64) - 65535},
    {"address": (1 << 64) - 65536 * 3, "index": 4},
)
"""Invalid ends of connections."""


class AcceptTests(SynchronousTestCase):
    """A client's check of an Accept."""

    def test_kernelsAnswers(self) -> None:
        asking = replace(NEW, features=1, maxLinks=2)
        found = 0
        for name in names():
            if name.startswith("smc-ours"):
                continue  # one end is txrdma, with other features
            for client, server, content in streams(name):
                if content[4:5] != b"\1":
                    continue
                proposal, confirm, *_ = _messages(content) + [None, None]
                accept, *_ = _messages(
                    next(each for a, b, each in streams(name) if (a, b) == (server, client))
                )
                if not isinstance(accept, Accept):
                    continue
                assert isinstance(proposal, Proposal) and isinstance(confirm, Confirm)
                offer = Offer(proposal, asking, None, candidate(client[0]))
                agreement = check(accept, offer)
                if accept.firstContact:
                    self.assertEqual(agreement, Agreement(2, UEID, True, 1, 255, 2, 1))
                else:
                    self.assertEqual(agreement, Agreement(2, UEID))
                self.assertIsNone(checkConfirm(confirm, accept, proposal))
                found += 1
        self.assertGreater(found, 5)

    def test_reasons(self) -> None:
        agreement = chosen().agreement
        near = candidate(subnets=Subnets((0x0A4D0000, 24)))
        lonely = candidate(subnets=Subnets((0x0A090000, 24)), isRouted=False)
        cases: tuple[tuple[Agreement, Offer, Diagnosis], ...] = (
            (VERSION_1, offered(NEW), Diagnosis.VERSMISMAT),
            (agreement, offered(OLD), Diagnosis.VERSMISMAT),
            (replace(agreement, eid=OTHER), offered(), Diagnosis.NOUEID),
            (replace(agreement, release=2), offered(), Diagnosis.RELEASEERR),
            (agreement, offered(replace(BOTH, release=0)), Diagnosis.RELEASEERR),
            (replace(agreement, maxConnections=15), offered(), Diagnosis.MAXCONNERR),
            (agreement, offered(replace(BOTH, maxConnections=254)), Diagnosis.MAXCONNERR),
            (replace(agreement, maxLinks=0), offered(), Diagnosis.MAXLINKERR),
            (replace(agreement, maxLinks=2), offered(), Diagnosis.MAXLINKERR),
            (replace(agreement, isDirect=False), offered(one=near), Diagnosis.NOINDIRECT),
            (replace(agreement, isDirect=False), offered(one=lonely), Diagnosis.NOROUTE),
        )
        for wrong, offer, reason in cases:
            self.assertIs(check(answer(Accept, SERVER, wrong), offer), reason, wrong)
        for lie in LIES:
            for right in (VERSION_1, agreement):
                self.assertIs(check(answer(Accept, SERVER, right, **lie), offered()), Diagnosis.CNFERR)
        noIPv4 = answer(Accept, SERVER, agreement, gid=GID.fromIP("2001:db8::1"))
        self.assertIs(check(noIPv4, offered()), Diagnosis.NOROUTE)

    def test_routedPathWithRouter(self) -> None:
        agreement = replace(chosen().agreement, isDirect=False)
        far = candidate(subnets=Subnets((0x0A090000, 24)))
        for one in (far, CLIENT):
            self.assertEqual(check(answer(Accept, SERVER, agreement), offered(one=one)), agreement)

    def test_shortExtensionIsRelease0(self) -> None:
        accept = answer(Accept, SERVER, Agreement(2, UEID))
        contact = replace(accept.v2.firstContact, v21=None)
        short = decode(replace(accept, v2=replace(accept.v2, firstContact=contact)).encode())
        assert isinstance(short, Accept)
        self.assertEqual(len(short.encode()), 108 + 36)
        self.assertEqual(check(short, offered()), Agreement(2, UEID))
        contact = replace(contact, release=1)
        self.assertIs(
            check(replace(accept, v2=replace(accept.v2, firstContact=contact)), offered()),
            Diagnosis.RELEASEERR,
        )

    def test_lastElementAtEndOfAddresses(self) -> None:
        last = answer(Accept, SERVER, VERSION_1, address=(1 << 64) - 65536)
        self.assertEqual(check(last, offered()), VERSION_1)

    def test_unofferedFeaturesAreNotUsed(self) -> None:
        agreement = replace(chosen().agreement, features=0b111)
        offer = offered(replace(BOTH, features=0b010))
        self.assertEqual(check(answer(Accept, SERVER, agreement), offer), replace(agreement, features=0b010))


def _messages(content: bytes) -> list[Any]:
    """Return the CLC messages at the beginning of a stream."""
    found = []
    while content[:3] == b"\xe2\xd4\xc3":
        size = int.from_bytes(content[5:7], "big")
        found.append(decode(content[:size]))
        content = content[size:]
    return found


class ConfirmTests(SynchronousTestCase):
    """A server's check of a Confirm."""

    def test_confirmRepeatsAccept(self) -> None:
        for agreement in (VERSION_1, chosen().agreement, Agreement(2, UEID)):
            for first in (True, False):
                accept = answer(Accept, SERVER, agreement, first)
                confirm = answer(Confirm, CLIENT, agreement, first)
                self.assertIsNone(checkConfirm(confirm, accept, offered().proposal))

    def test_reasons(self) -> None:
        agreement, proposal = chosen().agreement, offered().proposal
        cases: tuple[tuple[Any, Agreement, Diagnosis], ...] = (
            (answer(Confirm, CLIENT, VERSION_1), agreement, Diagnosis.VERSMISMAT),
            (answer(Confirm, CLIENT, agreement), VERSION_1, Diagnosis.VERSMISMAT),
            (answer(Confirm, CLIENT, agreement, False), agreement, Diagnosis.SYNCERR),
            (answer(Confirm, CLIENT, VERSION_1, False), VERSION_1, Diagnosis.SYNCERR),
            (answer(Confirm, SERVER, VERSION_1), VERSION_1, Diagnosis.CNFERR),
            (answer(Confirm, CLIENT, replace(agreement, eid=OTHER)), agreement, Diagnosis.NOUEID),
            (answer(Confirm, CLIENT, replace(agreement, release=0)), agreement, Diagnosis.RELEASEERR),
            (answer(Confirm, CLIENT, replace(agreement, maxConnections=99)), agreement, Diagnosis.MAXCONNERR),
            (answer(Confirm, CLIENT, replace(agreement, maxLinks=2)), agreement, Diagnosis.MAXLINKERR),
            *((answer(Confirm, CLIENT, VERSION_1, **lie), VERSION_1, Diagnosis.CNFERR) for lie in LIES),
        )
        for confirm, right, reason in cases:
            self.assertIs(checkConfirm(confirm, answer(Accept, SERVER, right), proposal), reason, confirm)

    def test_peerIDFromConfirm(self) -> None:
        proposal = replace(offered(NEW).proposal, peerID=bytes(8))
        agreement = chosen().agreement
        accept, confirm = answer(Accept, SERVER, agreement), answer(Confirm, CLIENT, agreement)
        self.assertIsNone(checkConfirm(confirm, accept, proposal))

    def test_shortExtension(self) -> None:
        agreement = Agreement(2, UEID)
        accept, confirm = answer(Accept, SERVER, agreement), answer(Confirm, CLIENT, agreement)
        self.assertEqual(len(confirm.encode()), 108 + 36 + 16 + 4 + 16)
        self.assertIsNone(checkConfirm(confirm, accept, offered().proposal))


ueids = st.lists(st.sampled_from([enterpriseID(name) for name in "ABCDEF"]), max_size=4, unique=True)
abilities = st.builds(
    Abilities,
    st.sampled_from([frozenset((1,)), frozenset((2,)), frozenset((1, 2))]),
    ueids.map(tuple),
    st.integers(0, 1),
    st.integers(0, 3),
    st.integers(16, 255),
    st.integers(1, 2),
)


@st.composite
def candidates(draw: st.DrawFn, client: bool) -> tuple[Candidate, ...]:
    """Generate up to three ports of one host, some of which version 2 cannot use."""
    found = []
    for _ in range(draw(st.integers(0, 3))):
        net = draw(st.integers(0, 2))
        address = draw(st.sampled_from((f"10.77.{net}.{1 + client}", f"2001:db8::{net}:{1 + client}")))
        subnets = draw(st.sampled_from((None, Subnets((0x0A4D0000 + 256 * net, 24)))))
        found.append(
            candidate(
                address,
                peerID=b"client00" if client else b"server00",
                type=draw(st.sampled_from((GIDType.ROCE_V2, GIDType.ROCE_V2, GIDType.ROCE_V1))),
                subnets=subnets,
                isRouted=draw(st.booleans()),
            )
        )
    return tuple(found)


class TwoEndsTests(SynchronousTestCase):
    @given(abilities, abilities, candidates(True), candidates(False), st.booleans())
    def test_twoEndsAgreeOrNameReason(
        self,
        asking: Abilities,
        serving: Abilities,
        ours: tuple[Candidate, ...],
        remote: tuple[Candidate, ...],
        first: bool,
    ) -> None:
        offer = propose(ours, asking, "10.77.0.2")
        if isinstance(offer, Diagnosis):
            self.assertIn(offer, (Diagnosis.NOSMCRDEV, Diagnosis.NOUEID))
            return
        proposal = decode(offer.proposal.encode())
        assert isinstance(proposal, Proposal)
        choice = choose(proposal, remote, serving, "10.77.0.1")
        if isinstance(choice, Diagnosis):
            isV1Possible = 1 in asking.versions & serving.versions and offer.v1 is not None
            if isV1Possible and any(each.subnets is None for each in remote):
                self.fail(f"no version 1, because of {choice}")
            return
        settled = choice.agreement
        self.assertIn(settled.version, asking.versions & serving.versions)
        accept = answer(Accept, choice.candidate, settled, first)
        agreement = check(accept, offer)
        if isinstance(agreement, Diagnosis):
            self.assertEqual(settled.version, 2)
            self.assertIn(agreement, (Diagnosis.NOROUTE, Diagnosis.NOINDIRECT))
            return
        if first:
            if not settled.release:  # otherwise each end chooses, and announces it in CONFIRM LINK
                agreement = replace(agreement, maxLinks=settled.maxLinks)
            self.assertEqual(agreement, settled)
            if settled.release:
                self.assertLessEqual(settled.maxLinks, min(asking.maxLinks, serving.maxLinks))
                limit = min(asking.maxConnections, serving.maxConnections)
                self.assertLessEqual(settled.maxConnections, limit)
        self.assertEqual((agreement.version, agreement.eid), (settled.version, settled.eid))
        if agreement.version == 2:
            self.assertTrue(agreement.eid in asking.ueids and agreement.eid in serving.ueids)
        named = offer.candidate(agreement.version)
        assert named is not None
        self.assertEqual(named.gid, choice.gid)
        confirm = answer(Confirm, named, agreement, first)
        self.assertIsNone(checkConfirm(confirm, accept, proposal))

    @given(st.binary(max_size=200), st.sampled_from((0x20, 0x22, 0x28, 0x10, 0x2C, 0x23)))
    def test_arbitraryProposals(self, junk: bytes, last: int) -> None:
        eids = tuple(junk[at : at + 32].ljust(32) for at in range(0, len(junk), 32))
        gid = GID(junk[:16].ljust(16, b"\0"))
        v2 = ProposalV2(gid, eids, len(junk) & 3, maxConnections=len(junk)) if len(junk) < 100 else None
        v1, v2Kind = SMCKind(last & 3), SMCKind(last >> 2 & 3)
        mac = MACAddress(bytes(6))
        one = Proposal(junk[:8].ljust(8), gid, mac, 0, 0, (), last >> 4, v1, v2Kind, SMCDArea(), v2)
        self.assertIsInstance(choose(one, (SERVER,), BOTH), (Choice, Diagnosis))


class VectorTests(SynchronousTestCase):
    """Messages of other implementations."""

    def test_smcGo(self) -> None:
        proposal, accept = decode(SMC_GO["proposal"]), decode(SMC_GO["accept"])
        assert isinstance(proposal, Proposal) and isinstance(accept, Accept)
        choice = choose(proposal, (candidate(subnets=Subnets((0x7F000001, 8))),), BOTH)
        assert isinstance(choice, Choice)
        self.assertEqual(choice.agreement, VERSION_1)
        self.assertEqual(check(accept, offered()), VERSION_1)

    def test_kernelsExtensions(self) -> None:
        for _, _, content in streams("smc-first"):
            for message in _messages(content):
                if isinstance(message, (Accept, Confirm)):
                    agreement = Agreement(2, UEID, True, 1, 255, 2, 1)
                    gids = (message.gid,) if isinstance(message, Confirm) else None
                    made = replace(message, v2=agreement.extension(True, b"lab", gids))
                    assert isinstance(made.v2, AnswerV2)
                    self.assertEqual(made.encode(), message.encode())
