"""
Resolvers, which find the path to a port by its LID, GID, GUID or address.

Follows InfiniBand Architecture vol. 1, 15.2.5.16 (PathRecord) and annex A17 (addresses on RoCE v2).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from zope.interface import implementer

from twisted.internet.defer import Deferred, fail, succeed

from txrdma.error import DeviceUnavailable
from txrdma.iba.path import GMP_QKEY, IBPath, MADEndPort
from txrdma.iba.types import GID, GUID, LID, QPN
from txrdma.interfaces import IPathResolver
from txrdma.mad.layouts.sa import NodeRecord, PathRecord, Query
from txrdma.mad.paths import checkedLID, current, EndPort, parseGID, parseTarget, pathOf, toLID
from txrdma.mad.rpcs import RPCs

_LINK_LOCAL: Final = 0xFE80 << 48
_DISCARD: Final = 9

_ALL_PATHS: Final = 127
"""The largest NumbPath of a query, a field of 7 bits."""


def sourceAddress(target: str) -> str | None:
    """Return the source address that the kernel selects for packets to an address; None without a route."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(
            target, _DISCARD, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST
        )[0]
        with socket.socket(family, kind) as sock:
            sock.connect(where)
            address: str = sock.getsockname()[0]
            return address
    except OSError:
        return None


def sourceGID(
    gids: Iterable[GID],
    destination: GID,
    scope: str = "",
    sourceAddress: Callable[[str], str | None] = sourceAddress,
) -> GID | None:
    """
    Choose the source GID of packets to a destination.

    It is the address that the host's routes prefer, if it is among the GIDs; otherwise the one that has
    most leading bits in common with the destination (RFC 6724, rule 8). IPv4 and IPv6 are not mixed.

    @param scope: C{%} and the network interface of a link-local address.
    @return: None if no GID has the destination's kind of address.
    """
    alike = [gid for gid in gids if gid.isMapped == destination.isMapped and any(gid.raw)]
    if len(alike) < 2:
        return alike[0] if alike else None
    source = sourceAddress(f"{destination.ip}{scope}")
    if source is not None and (known := GID.fromIP(source)) in alike:
        return known
    wanted = int.from_bytes(destination.raw, "big")
    return min(alike, key=lambda gid: (int.from_bytes(gid.raw, "big") ^ wanted).bit_length())


@implementer(IPathResolver)
class SAPathResolver:
    """
    Resolver that queries the subnet administration (SA).

    A LID or a directed route is already a path, and needs no query. But such a path has no MTU, service level
    or lifetime: with C{asksForLIDs} the SA is queried for these. For a name it is queried for all nodes.
    """

    def __init__(
        self, agent: RPCs, endPort: EndPort, asksForLIDs: bool = False, keepsGIDs: bool = False
    ) -> None:
        """
        @param agent: sends the queries; it is not closed.
        @param endPort: end port of the agent's port, or a function that returns it.
        @param keepsGIDs: paths within the subnet have GIDs, too, which connection management needs.
        """
        self._agent = agent
        self._endPort = endPort
        self._asksForLIDs, self._keepsGIDs = asksForLIDs, keepsGIDs

    def resolve(self, target: object) -> Deferred[IBPath]:
        """
        Return the path to a port.

        @param target: a port, or the name of a node: its description, or the first word of it.
        @return: fails with L{txrdma.mad.errors.MADError} if the SA has none, with C{ValueError} if the target
            names no port.
        """
        end = current(self._endPort)
        try:
            known = _read(target, end)
        except ValueError as error:
            if isinstance(target, str):
                return Deferred.fromCoroutine(self._resolveName(target.strip(), error))
            return fail(error)
        if isinstance(known, IBPath):
            return succeed(known)
        if isinstance(known, int):
            if not self._asksForLIDs:
                return succeed(toLID(end, known))
            return self._ask(PathRecord.query(slid=end.lid, dlid=known, reversible=True, numbPath=1))
        if not end.gids:
            return fail(DeviceUnavailable("the local port has no GID"))
        if isinstance(known, GUID):
            known = GID.fromParts(end.gids[0].prefix or _LINK_LOCAL, known)
        return self._ask(PathRecord.query(sgid=end.gids[0], dgid=known, reversible=True, numbPath=1))

    async def _resolveName(self, name: str, error: ValueError) -> IBPath:
        """Return the path to the first port of a node, or raise the error if no node has the name."""
        ports: dict[str, GUID] = {}
        for record in await self._agent.SubnAdmGetTable(NodeRecord.query()):
            description = record.nodeDescription.text
            for each in (description, description.partition(" ")[0]):
                ports.setdefault(each, record.nodeInfo.portGUID)
        if name not in ports:
            raise error
        return await self.resolve(ports[name])

    async def findOther(self, path: IBPath, destination: GID, sources: Iterable[GID]) -> IBPath | None:
        """
        Find another path to the destination of a path, in its partition. Of several, as between ports with
        several LIDs (LMC), one with two other LIDs is preferred: both directions then take another route.

        @param destination: its destination GID.
        @param sources: the GIDs of the local ports from which it may begin, preferred ones first.
        @return: None if the SA has none.
        """
        for source in sources:
            query = PathRecord.query(
                sgid=source, dgid=destination, pkey=path.pkey, reversible=True, numbPath=_ALL_PATHS
            )
            found = [
                ((record.slid != path.slid) + (record.dlid != path.dlid), -number, record)
                for number, record in enumerate(await self._agent.SubnAdmGetTable(query))
            ]
            others, _, record = max(found, default=(0, 0, None))
            if record is not None and others:
                return self._pathOf(record)
        return None

    def _ask(self, query: Query[PathRecord]) -> Deferred[IBPath]:
        return self._agent.SubnAdmGet(query).addCallback(self._pathOf)

    def _pathOf(self, record: PathRecord) -> IBPath:
        path = pathOf(record)
        return replace(path, sgid=record.sgid, dgid=record.dgid) if self._keepsGIDs else path


@implementer(IPathResolver)
class StaticPathResolver:
    """A resolver with a fixed table of paths."""

    def __init__(self, table: Mapping[object, IBPath]) -> None:
        """@param table: paths by target: C{LID}, C{GID} or C{GUID}, or text."""
        self._table = dict(table)

    def resolve(self, target: object) -> Deferred[IBPath]:
        """Return the path to a port; fails with C{ValueError} if the table has none."""
        path = self._table.get(target)
        if path is None:
            try:
                known = _read(target)
            except ValueError as error:
                return fail(error)
            path = known if isinstance(known, IBPath) else self._table.get(known)
        if path is None:
            return fail(ValueError(f"no path to {target} is in the table"))
        return succeed(path)


@implementer(IPathResolver)
class IPPathResolver:
    """
    Resolver for RoCE v2, where an IP address is a GID (annex A17).

    The kernel resolves the neighbour's MAC address: when an address handle is created on rxe and hardware,
    and when the software device sends a UDP datagram. The resolver only chooses the source GID: see
    L{sourceGID}.
    """

    def __init__(
        self, endPort: EndPort, hopLimit: int = 64, sourceAddress: Callable[[str], str | None] = sourceAddress
    ) -> None:
        """
        @param endPort: end port to send from, or a function that returns it.
        @param sourceAddress: returns the source address of this host for packets to an address.
        """
        self._endPort = endPort
        self._hopLimit = hopLimit
        self._sourceAddress = sourceAddress

    def resolve(self, target: object) -> Deferred[IBPath]:
        """
        Return the path to an IP address, with or without a scope, or to a GID that is one.

        It fails with C{ValueError} if the text is not an address, and with C{DeviceUnavailable} if the local
        port has no address of the same kind.
        """
        try:
            gid = target if isinstance(target, GID) else parseGID(str(target), str(target).strip(), None)
        except ValueError:
            return fail(ValueError(f"{target} is not an IP address"))
        _, percent, scope = str(target).partition("%")
        source = sourceGID(current(self._endPort).gids, gid, percent + scope, self._sourceAddress)
        if source is None:
            return fail(DeviceUnavailable(f"the local port has no address that reaches {target}"))
        return succeed(
            IBPath(sgid=source, dgid=gid, hopLimit=self._hopLimit, dqpn=QPN(1), sqpn=QPN(1), qkey=GMP_QKEY)
        )


def _read(target: object, endPort: MADEndPort | None = None) -> LID | GID | GUID | IBPath:
    if isinstance(target, (GID, GUID, IBPath)):
        return target
    return checkedLID(target) if isinstance(target, int) else parseTarget(str(target), endPort)
