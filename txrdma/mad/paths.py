"""
Ways to ports, from what people call them.

Follows InfiniBand Architecture vol. 1, 15.2.5.16 (PathRecord) and annex A17 (addresses on RoCE v2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Union

from zope.interface import implementer

from twisted.internet.defer import Deferred, fail, succeed

from txrdma.error import DeviceUnavailable
from txrdma.iba.path import GMP_QKEY, IBDRPath, IBPath, MADEndPort
from txrdma.iba.types import GID, GUID, LID, MTU, PKey, QPN
from txrdma.interfaces import IPathResolver
from txrdma.mad.rpcs import RPCs
from txrdma.mad.sa import PathRecord

Target = Union[int, GID, GUID, IBPath, str]
"""What leads to a port: a LID, a GID, a port GUID, a path, or text of one of these."""

_LINK_LOCAL: Final = 0xFE80 << 48
_GUID: Final = re.compile(r"0x[0-9a-fA-F]{9,16}|[0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4}){3}")
_HIGHEST_LID: Final = 0xFFFE


def parseTarget(text: str) -> LID | GID | GUID | IBPath:
    """
    Read what people type: C{"7"}, C{"lid 7"}, C{"fe80::2:c903:1:2"}, C{"0x0002c90300010002"}, C{"DR 0,1,3"},
    or a path's own text.

    @raise ValueError: it is none of these.
    """
    said = text.strip()
    if said.startswith("DR") or re.fullmatch(r"0(,\d+)+,?", said):
        return IBDRPath.fromString(said)
    if _GUID.fullmatch(said):
        return GUID.fromString(said)
    if (match := re.fullmatch(r"(?:lid\s+)?(0x[0-9a-fA-F]{1,4}|\d+)", said, re.IGNORECASE)) is not None:
        lid = int(match[1], 0)
        if not 0 < lid <= _HIGHEST_LID:
            raise ValueError(f"LIDs are from 1 to {_HIGHEST_LID}, not {lid}")
        return LID(lid)
    if " " in said:
        return IBPath.fromString(said)
    try:
        return GID.fromString(said)
    except ValueError:
        raise ValueError(
            f"{text!r} names no port: a LID (7), a GID (fe80::...), a port GUID (0x...) or a route (DR 0,1)"
        ) from None


def toLID(endPort: MADEndPort, lid: int, serviceLevel: int = 0) -> IBPath:
    """The way to a LID for datagrams of management, from our own port."""
    return IBPath(
        slid=endPort.lid, dlid=LID(lid), serviceLevel=serviceLevel, dqpn=QPN(1), sqpn=QPN(1), qkey=GMP_QKEY
    )


def toAdministration(endPort: MADEndPort) -> IBPath:
    """The way to the subnet's administration (IBA 15.4.2): it is where the subnet's manager is."""
    return toLID(endPort, endPort.smLID, endPort.smServiceLevel)


@implementer(IPathResolver)
class SAPathResolver:
    """Asks the subnet's administration. What names its way itself, a LID or a route, needs no question."""

    def __init__(self, agent: RPCs, endPort: MADEndPort) -> None:
        self._agent = agent
        self._endPort = endPort

    def resolve(self, target: object) -> Deferred[IBPath]:
        """The path to a port."""
        try:
            known = _read(target)
        except ValueError as error:
            return fail(error)
        if isinstance(known, IBPath):
            return succeed(known)
        if isinstance(known, int):
            return succeed(toLID(self._endPort, known))
        if isinstance(known, GUID):
            ours = self._endPort.gids[0].prefix if self._endPort.gids else _LINK_LOCAL
            known = GID.fromParts(ours, known)
        if not self._endPort.smLID or not self._endPort.gids:
            return fail(DeviceUnavailable("no subnet manager is known to our port, so none can be asked"))
        query = PathRecord.query(sgid=self._endPort.gids[0], dgid=known, reversible=True, numbPath=1)
        answer = self._agent.SubnAdmGet(query, toAdministration(self._endPort))
        return answer.addCallback(pathOf)


@implementer(IPathResolver)
class StaticPathResolver:
    """Knows what it was told."""

    def __init__(self, table: Mapping[object, IBPath]) -> None:
        """
        @param table: paths by target, as they will be asked for: C{LID}, C{GID} or C{GUID}, or text.
        """
        self._table = dict(table)

    def resolve(self, target: object) -> Deferred[IBPath]:
        """The path to a port."""
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
    """On RoCE v2 an IP address is a GID (annex A17), and that is all there is to know."""

    def __init__(self, endPort: MADEndPort, hopLimit: int = 64) -> None:
        self._endPort = endPort
        self._hopLimit = hopLimit

    def resolve(self, target: object) -> Deferred[IBPath]:
        """The path to an IP address, or to a GID that is one."""
        try:
            gid = target if isinstance(target, GID) else GID.fromIP(str(target))
        except ValueError:
            return fail(ValueError(f"{target} is no IP address"))
        ours = [own for own in self._endPort.gids if own.isMapped == gid.isMapped and any(own.raw)]
        if not ours:
            return fail(DeviceUnavailable(f"our port has no address from which {target} could be reached"))
        return succeed(
            IBPath(sgid=ours[0], dgid=gid, hopLimit=self._hopLimit, dqpn=QPN(1), sqpn=QPN(1), qkey=GMP_QKEY)
        )


def pathOf(record: PathRecord) -> IBPath:
    """The path that a record describes, for datagrams of management."""
    isGlobal = record.hopLimit > 1
    return IBPath(
        slid=record.slid,
        dlid=record.dlid,
        serviceLevel=record.serviceLevel,
        sgid=record.sgid if isGlobal else None,
        dgid=record.dgid if isGlobal else None,
        trafficClass=record.trafficClass,
        flowLabel=record.flowLabel,
        hopLimit=record.hopLimit,
        pkey=PKey(record.pkey),
        dqpn=QPN(1),
        sqpn=QPN(1),
        qkey=GMP_QKEY,
        mtu=MTU(record.mtu) if int(record.mtu) in tuple(map(int, MTU)) else None,
        packetLifeTime=record.packetLifeTime or None,
        reversible=record.reversible,
    )


def _read(target: object) -> LID | GID | GUID | IBPath:
    if isinstance(target, (GID, GUID, IBPath)):
        return target
    return LID(target) if isinstance(target, int) else parseTarget(str(target))
