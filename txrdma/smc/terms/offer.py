"""
The terms of SMC-R: a client's offer, a server's choice, and their agreement.

Follows RFC 7609, 4.3.1 and appendix A.2, for version 1, and IBM's "SMC Version 2" for 2 and 2.1; limits are
Linux's. This module does no I/O::

    client: offer = propose(candidates, abilities, address)         then sends its Proposal
    server: choice = choose(proposal, candidates, abilities)        then sends an Accept with the choice
    client: agreement = check(accept, offer)                        then sends a Confirm that repeats it
    server: checkConfirm(confirm, accept, proposal)

Each function may return a L{Diagnosis} instead: the reason to decline.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import field
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from txrdma.iba.types import GID, MACAddress, MTU
from txrdma.iba.verbs import GIDType
from txrdma.kit.values import frozen
from txrdma.smc.wire.clc import (
    Accept,
    AnswerV2,
    Confirm,
    Diagnosis,
    FirstContact,
    FirstContactV21,
    IPv6Prefix,
    OSType,
    Proposal,
    ProposalV2,
    SMCDArea,
    SMCKind,
)

VERSIONS: Final = frozenset((1, 2))
"""The supported versions of SMC-R."""

MOST_UEIDS: Final = 4
"""Largest number of UEIDs of one end, as on Linux; a Proposal can contain twice as many."""

RELEASE: Final = 1
"""The newest supported release of version 2: 2.1."""

FEWEST_CONNECTIONS, MOST_CONNECTIONS = 16, 255
"""Bounds of the negotiated limit of connections in a link group."""

FEWEST_LINKS, MOST_LINKS = 1, 8
"""Bounds of the negotiated limit of links in a link group; Linux's limit is 2."""


class Role(Enum):
    """The local role in TCP connections: a link group serves one role (RFC 7609, 3.2)."""

    SERVER = "server"
    CLIENT = "client"

    def __init__(self, word: str) -> None:
        self.word = word  # C{value} is slower to read


@frozen
class Subnets:
    """
    The subnets of a network interface, as addresses and prefix lengths.

    @ivar interface: the name of the interface, which is the zone of its link-local addresses.
    """

    ipv4: tuple[int, int] | None = None
    ipv6: tuple[tuple[bytes, int], ...] = ()
    interface: str = ""

    def shares(self, proposal: Proposal) -> bool:
        """Return whether the client is in one of these subnets, as version 1 requires (RFC 7609, 4.3.1)."""
        if proposal.ipv6Prefixes:
            return any(
                _samePrefix(each.prefix, each.length, prefix, length)
                for each in proposal.ipv6Prefixes
                for prefix, length in self.ipv6
            )
        if self.ipv4 is None or self.ipv4[1] != proposal.prefixLength:
            return False
        return self._has(proposal.subnet)

    def holds(self, gid: GID) -> bool:
        """Return whether an IPv4 address, given as the GID of RoCE v2, is in the subnet."""
        return gid.isMapped and self._has(int.from_bytes(gid.raw[12:], "big"))

    def _has(self, address: int) -> bool:
        if self.ipv4 is None:
            return False
        network, length = self.ipv4
        return 0 <= length <= 32 and not (network ^ address) >> (32 - length)


def _samePrefix(remote: bytes, remoteLength: int, local: bytes, localLength: int) -> bool:
    """Return whether two IPv6 prefixes are equal, and not link-local."""
    if remoteLength != localLength or not 0 < localLength <= 128:
        return False
    if remote[0] == 0xFE and remote[1] & 0xC0 == 0x80:
        return False  # every host is in the link-local subnet
    return not (int.from_bytes(remote, "big") ^ int.from_bytes(local, "big")) >> (128 - localLength)


@frozen
class Candidate:
    """
    A GID of a port of an RDMA device, by which peers can reach this process.

    @ivar peerID: peer ID of this process: instance number and MAC address (RFC 7609, 3.1).
    @ivar mtu: the largest payload of the port's packets.
    @ivar device: the device's name.
    @ivar port: the port's number, from 1.
    @ivar gidIndex: the index of the GID in the port's table.
    @ivar versions: the versions of SMC-R that may use the device.
    @ivar subnets: subnets of the port's network interface; None if unknown, and not compared then.
    @ivar isRouted: whether routers lead to other subnets.
    """

    peerID: bytes
    gid: GID
    type: GIDType
    mac: MACAddress
    mtu: MTU
    device: str = ""
    port: int = 1
    gidIndex: int = 0
    versions: frozenset[int] = VERSIONS
    subnets: Subnets | None = None
    isRouted: bool = True

    def carries(self, version: int) -> bool:
        """Return whether connections of a version can use the GID; version 2 requires IPv4 over RoCE v2."""
        if version not in self.versions:
            return False
        return version == 1 or (self.type is GIDType.ROCE_V2 and self.gid.isMapped)

    def isDirectTo(self, gid: GID, version: int = 2) -> bool | None:
        """Return whether a peer's GID is in a local subnet; False: behind a router, None: unreachable."""
        if not gid.isMapped:
            return True if version == 1 else None
        if self.subnets is None or self.subnets.holds(gid):
            return True
        return False if self.isRouted and version > 1 else None


@frozen
class Abilities:
    """
    The versions, UEIDs and limits that one end is configured for.

    @ivar versions: allowed versions of SMC-R.
    @ivar ueids: user-defined enterprise IDs, of 32 bytes; version 2 requires a common one.
    @ivar release: newest release of version 2: 0 is 2.0, 1 is 2.1.
    @ivar features: the mask of version 2.1's optional features; so far, none of them concerns SMC-R.
    @ivar maxConnections: limit of connections in a link group, from 16 to 255.
    @ivar maxLinks: limit of links in a link group, from 1 to 8.
    """

    versions: frozenset[int] = VERSIONS
    ueids: tuple[bytes, ...] = ()
    release: int = RELEASE
    features: int = 0
    maxConnections: int = MOST_CONNECTIONS
    maxLinks: int = FEWEST_LINKS

    def allows(self, version: int) -> bool:
        """Return whether the configuration allows a version."""
        return version in self.versions and (version == 1 or bool(self.ueids))


@frozen
class Agreement:
    """
    The terms that the two ends of a connection have agreed on.

    Limits of a link group, release and features are negotiated only in a first contact of version 2.1.
    Otherwise they have their defaults, and C{maxLinks} is the local limit.

    @ivar eid: the common enterprise ID, of 32 bytes; empty in version 1.
    @ivar isDirect: no router is between the two ends.
    """

    version: int = 1
    eid: bytes = b""
    isDirect: bool = True
    release: int = 0
    maxConnections: int = MOST_CONNECTIONS
    maxLinks: int = FEWEST_LINKS
    features: int = 0

    def extension(
        self, isFirst: bool, hostName: bytes, gids: tuple[GID, ...] | None = None
    ) -> AnswerV2 | None:
        """
        Return the extension of an Accept or Confirm in version 2; None in version 1.

        @param hostName: the local host's name, of which at most 32 bytes are used.
        @param gids: GIDs of the client, for its Confirm.
        """
        if self.version == 1:
            return None
        if not isFirst:
            return AnswerV2(self.eid)
        limits = FirstContactV21(
            maxConnections=self.maxConnections if self.release else 0,
            maxLinks=self.maxLinks if self.release else 0,
            features=self.features,
            vendorOptions=0,
        )
        contact = FirstContact(self.isDirect, OSType.LINUX, self.release, hostName[:32], limits)
        return AnswerV2(self.eid, contact, gids)


VERSION_1: Final = Agreement()
"""The terms of version 1, which are not negotiated."""


@frozen
class Offer:
    """
    A client's offer: its Proposal, and the abilities and candidates in it.

    @ivar v1: the candidate that the Proposal names for version 1; C{v2}: for version 2.
    @ivar raw: the encoded Proposal, which many connections send.
    """

    proposal: Proposal
    abilities: Abilities
    v1: Candidate | None
    v2: Candidate | None
    raw: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "raw", self.proposal.encode())

    def candidate(self, version: int) -> Candidate | None:
        """Return the candidate that the Proposal names for a version."""
        return {1: self.v1, 2: self.v2}.get(version)


@frozen
class Choice:
    """
    A server's choice from a client's Proposal.

    @ivar candidate: the local candidate.
    @ivar gid: the client's GID for the chosen version.
    """

    candidate: Candidate
    gid: GID
    agreement: Agreement


# The client proposes


@lru_cache(64)
def propose(candidates: tuple[Candidate, ...], abilities: Abilities, address: str) -> Offer | Diagnosis:
    """
    Create the offer of a client with this TCP address.

    @param candidates: better ones first; one with the client's TCP C{address} precedes them.
    @return: the offer, or the reason not to propose.
    """
    candidates = _nearest(candidates, address)
    v1, v2 = (
        next((each for each in candidates if abilities.allows(version) and each.carries(version)), None)
        for version in (1, 2)
    )
    named = v1 or v2
    if named is None:
        return Diagnosis.NOSMCRDEV if any(map(abilities.allows, VERSIONS)) else Diagnosis.NOUEID
    values: dict[str, Any] = {"peerID": named.peerID, "gid": GID(bytes(16)), "mac": MACAddress(bytes(6))}
    if v1 is not None:
        values |= {"gid": v1.gid, "mac": v1.mac, **_area(v1, address)}
    if v2 is not None:
        extension = ProposalV2(
            v2.gid,
            abilities.ueids,
            abilities.release,
            maxConnections=abilities.maxConnections if abilities.release else 0,
            maxLinks=abilities.maxLinks if abilities.release else 0,
            features=abilities.features if abilities.release else 0,
        )
        values |= {"version": 2, "smcd": SMCDArea(), "v2": extension}
        values["typeV1"] = SMCKind.NONE if v1 is None else SMCKind.SMC_R
    return Offer(Proposal(**values), abilities, v1, v2)


def _nearest(candidates: tuple[Candidate, ...], address: str) -> tuple[Candidate, ...]:
    """Return the candidates, those with the IP address of the TCP connection first."""
    if len(candidates) < 2:
        return candidates
    near = GID.fromIP(address)
    return tuple(sorted(candidates, key=lambda each: each.gid != near))


def _area(candidate: Candidate, address: str) -> dict[str, Any]:
    """Return subnet or prefixes for version 1; if they are unknown, the address alone."""
    subnets = candidate.subnets
    host = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(host, ipaddress.IPv4Address):
        network, length = (int(host), 32) if subnets is None or subnets.ipv4 is None else subnets.ipv4
        return {"subnet": network, "prefixLength": length}
    prefixes: Iterable[tuple[bytes, int]] = () if subnets is None else subnets.ipv6[:8]
    prefixes = prefixes or ((host.packed, 128),)
    return {"ipv6Prefixes": tuple(IPv6Prefix(prefix=prefix, length=length) for prefix, length in prefixes)}


# The server chooses


def choose(
    proposal: Proposal, candidates: tuple[Candidate, ...], abilities: Abilities, address: str = ""
) -> Choice | Diagnosis:
    """
    Choose from a Proposal, version 2 first.

    @param candidates: better ones first; one with the server's TCP C{address} precedes them.
    @return: the choice, or the reason to decline.
    """
    if address:
        candidates = _nearest(candidates, address)
    second = _chooseV2(proposal, candidates, abilities)
    if isinstance(second, Choice):
        return second
    first = _chooseV1(proposal, candidates, abilities, address)
    return first if isinstance(first, Choice) or second is Diagnosis.VERSMISMAT else second


def _chooseV1(
    proposal: Proposal, candidates: tuple[Candidate, ...], abilities: Abilities, address: str
) -> Choice | Diagnosis:
    """Choose the device for SMC version 1: the first port in a subnet of the client, or on its link."""
    if not abilities.allows(1) or proposal.typeV1 == SMCKind.NONE:
        return Diagnosis.VERSMISMAT
    if not proposal.offersV1:
        return Diagnosis.MODEUNSUPP
    reason = Diagnosis.NOSMCRDEV
    for candidate in candidates:
        if candidate.carries(1):
            isNear = candidate.subnets is None or candidate.subnets.shares(proposal)
            if isNear or _isOnLink(candidate, proposal.gid, address):
                return Choice(candidate, proposal.gid, Agreement(maxLinks=abilities.maxLinks))
            reason = Diagnosis.DIFFPREFIX
    return reason


def _isOnLink(candidate: Candidate, gid: GID, address: str) -> bool:
    """Return whether the GIDs of a client and a port, and the TCP connection, are link-local on one link."""
    zone = address.partition("%")[2]
    isOfPort = candidate.subnets is not None and zone == candidate.subnets.interface
    return isOfPort and zone != "" and gid.isLinkLocal and candidate.gid.isLinkLocal


def _chooseV2(
    proposal: Proposal, candidates: tuple[Candidate, ...], abilities: Abilities
) -> Choice | Diagnosis:
    """Choose for version 2: a port with a route to the client's GID, without a router if possible."""
    if proposal.version < 2 or 2 not in abilities.versions or proposal.typeV2 == SMCKind.NONE:
        return Diagnosis.VERSMISMAT
    if proposal.typeV2 not in (SMCKind.SMC_R, SMCKind.BOTH):
        return Diagnosis.MODEUNSUPP
    offered = proposal.v2
    if offered is None:
        return Diagnosis.NOV2EXT
    eid = next((each for each in offered.eids if each in abilities.ueids), None)
    if eid is None:
        return Diagnosis.NOUEID
    usable = [(each, each.isDirectTo(offered.gid)) for each in candidates if each.carries(2)]
    if not usable:
        return Diagnosis.NOSMCRDEV
    routes = [(candidate, isDirect) for candidate, isDirect in usable if isDirect is not None]
    if not routes:
        return Diagnosis.NOROUTE
    candidate, isDirect = min(routes, key=lambda route: not route[1])
    agreement = _settle(offered, abilities, eid, isDirect)
    if isinstance(agreement, Diagnosis):
        return agreement
    return Choice(candidate, offered.gid, agreement)


def _settle(offered: ProposalV2, abilities: Abilities, eid: bytes, isDirect: bool) -> Agreement | Diagnosis:
    """Return the agreement on the lower limits of both ends, or the reason to decline."""
    release = min(offered.release, abilities.release)
    if not release:
        return Agreement(2, eid, isDirect, maxLinks=abilities.maxLinks)
    connections = min(offered.maxConnections, abilities.maxConnections)
    if connections < FEWEST_CONNECTIONS:
        return Diagnosis.MAXCONNERR
    links = min(offered.maxLinks, abilities.maxLinks)
    if links < FEWEST_LINKS:
        return Diagnosis.MAXLINKERR
    features = offered.features & abilities.features
    return Agreement(2, eid, isDirect, release, connections, links, features)


# Checks of Accept and Confirm


def check(accept: Accept, offer: Offer) -> Agreement | Diagnosis:
    """Check a server's Accept; return the agreement, or the reason to decline."""
    version = accept.version
    candidate = offer.candidate(version)
    if candidate is None:
        return Diagnosis.VERSMISMAT
    if _isContradictory(accept):
        return Diagnosis.CNFERR
    if version == 1:
        return Agreement(maxLinks=offer.abilities.maxLinks)
    if accept.v2 is None or accept.v2.eid not in offer.abilities.ueids:
        return Diagnosis.NOUEID
    contact = accept.v2.firstContact
    if contact is None:
        return Agreement(2, accept.v2.eid)
    objection = _routeObjection(candidate, accept.gid, contact.direct) or _limitObjection(contact, offer)
    if objection is not None:
        return objection
    limits = contact.v21
    if not contact.release or limits is None:
        return Agreement(2, accept.v2.eid, contact.direct, maxLinks=offer.abilities.maxLinks)
    return Agreement(
        2,
        accept.v2.eid,
        contact.direct,
        contact.release,
        limits.maxConnections,
        limits.maxLinks,
        limits.features & offer.abilities.features,
    )


def _routeObjection(candidate: Candidate, gid: GID, isServerDirect: bool) -> Diagnosis | None:
    """Return the reason to reject the server's choice of a direct or routed path, or None."""
    isDirect = candidate.isDirectTo(gid)
    if isDirect is None:
        return Diagnosis.NOROUTE
    if isDirect and not isServerDirect and candidate.subnets is not None:
        return Diagnosis.NOINDIRECT
    return None


def _limitObjection(contact: FirstContact, offer: Offer) -> Diagnosis | None:
    """Return the reason to reject the limits that a server chose from the offer, or None."""
    abilities, limits = offer.abilities, contact.v21
    if contact.release > abilities.release:
        return Diagnosis.RELEASEERR
    if not contact.release:
        return None
    if limits is None:
        return Diagnosis.RELEASEERR
    if not FEWEST_CONNECTIONS <= limits.maxConnections <= abilities.maxConnections:
        return Diagnosis.MAXCONNERR
    if not FEWEST_LINKS <= limits.maxLinks <= abilities.maxLinks:
        return Diagnosis.MAXLINKERR
    return None


def checkConfirm(confirm: Confirm, accept: Accept, proposal: Proposal) -> Diagnosis | None:
    """Check that a client's Confirm repeats the server's Accept; return the reason to decline, or None."""
    if confirm.version != accept.version:
        return Diagnosis.VERSMISMAT
    if confirm.firstContact != accept.firstContact:  # the ends disagree on whether the link group exists
        return Diagnosis.SYNCERR
    if _isContradictory(confirm):
        return Diagnosis.CNFERR
    if confirm.peerID != proposal.peerID and any(proposal.peerID):  # Linux sends none in a version 2 Proposal
        return Diagnosis.CNFERR
    if accept.v2 is None or confirm.v2 is None:
        return None
    if confirm.v2.eid != accept.v2.eid:
        return Diagnosis.NOUEID
    # Release and limits are in first contacts only; the server has chosen them, and the client repeats them.
    chosen, repeated = accept.v2.firstContact, confirm.v2.firstContact
    if chosen is None or repeated is None:
        return None
    if repeated.release != chosen.release:
        return Diagnosis.RELEASEERR
    if not chosen.release or chosen.v21 is None:
        return None
    if repeated.v21 is None:
        return Diagnosis.RELEASEERR
    if repeated.v21.maxConnections != chosen.v21.maxConnections:
        return Diagnosis.MAXCONNERR
    if repeated.v21.maxLinks != chosen.v21.maxLinks:
        return Diagnosis.MAXLINKERR
    return None


_MTUS: Final = frozenset(MTU)


def _isContradictory(answer: Accept | Confirm) -> bool:
    """Return whether an answer describes an impossible end of a connection (RFC 7609, A.2.2 and A.2.3)."""
    end = answer.address + answer.size * answer.index
    return not answer.index or not answer.token or not answer.qpn or answer.mtu not in _MTUS or end > 1 << 64
