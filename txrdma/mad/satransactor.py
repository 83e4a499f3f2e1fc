"""
An agent that asks the subnet's administration instead of the nodes themselves.

Follows InfiniBand Architecture vol. 1, 15.2.5: most attributes of subnet management have a record with the
same content. Nodes may keep theirs behind an M_Key; the administration tells them to anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred

from txrdma.error import InvalidRequest
from txrdma.iba.path import IBDRPath, IBPath, MADEndPort, PERMISSIVE_LID
from txrdma.iba.types import LID
from txrdma.iba.verbs import NodeType
from txrdma.mad._frames import Keys
from txrdma.mad.attributes import Attribute
from txrdma.mad.paths import toAdministration
from txrdma.mad.rpcs import RPCs
from txrdma.mad.sa import (
    GUIDInfoRecord,
    LinearForwardingTableRecord,
    LinkRecord,
    MulticastForwardingTableRecord,
    NodeRecord,
    PKeyTableRecord,
    PortInfoRecord,
    Query,
    RandomForwardingTableRecord,
    Record,
    SLtoVLMappingTableRecord,
    SMInfoRecord,
    SwitchInfoRecord,
    VLArbitrationTableRecord,
)
from txrdma.mad.smp import (
    GUIDInfo,
    LinearForwardingTable,
    MulticastForwardingTable,
    NodeDescription,
    NodeInfo,
    PKeyTable,
    PortInfo,
    RandomForwardingTable,
    SLtoVLMappingTable,
    SMInfo,
    SwitchInfo,
    VLArbitrationTable,
)

_Recoding = tuple[type[Record], str, Callable[[int], dict[str, int]]]

# The record that holds an attribute, its field, and the components that the modifier of the attribute means.
_RECODED: Final[dict[type[Attribute], _Recoding]] = {
    NodeInfo: (NodeRecord, "nodeInfo", lambda modifier: {}),
    NodeDescription: (NodeRecord, "nodeDescription", lambda modifier: {}),
    PortInfo: (PortInfoRecord, "portInfo", lambda modifier: {"portNum": modifier & 0xFF}),
    SwitchInfo: (SwitchInfoRecord, "switchInfo", lambda modifier: {}),
    SMInfo: (SMInfoRecord, "smInfo", lambda modifier: {}),
    GUIDInfo: (GUIDInfoRecord, "guidInfo", lambda modifier: {"blockNum": modifier}),
    PKeyTable: (
        PKeyTableRecord,
        "table",
        lambda modifier: {"blockNum": modifier & 0xFFFF, "portNum": modifier >> 16},
    ),
    SLtoVLMappingTable: (
        SLtoVLMappingTableRecord,
        "table",
        lambda modifier: {"inputPortNum": modifier >> 8 & 0xFF, "outputPortNum": modifier & 0xFF},
    ),
    VLArbitrationTable: (
        VLArbitrationTableRecord,
        "table",
        lambda modifier: {"blockNum": modifier >> 16, "outputPortNum": modifier & 0xFFFF},
    ),
    LinearForwardingTable: (LinearForwardingTableRecord, "table", lambda modifier: {"blockNum": modifier}),
    RandomForwardingTable: (RandomForwardingTableRecord, "table", lambda modifier: {"blockNum": modifier}),
    MulticastForwardingTable: (
        MulticastForwardingTableRecord,
        "table",
        lambda modifier: {"blockNum": modifier & 0x1FF, "position": modifier >> 28},
    ),
}


class SATransactor(RPCs):
    """
    Turns C{SubnGet} into C{SubnAdmGet}; all other calls pass as they are.

    A directed route is followed link by link, by what the administration knows; LIDs that were found once are
    remembered.
    """

    def __init__(self, agent: RPCs, endPort: MADEndPort) -> None:
        """
        @param agent: remains its owner's.
        @param endPort: of the port that it goes through.
        """
        self._agent = agent
        self._endPort = endPort
        self._administration = toAdministration(endPort)
        self._lids: dict[tuple[int, ...], LID] = {(): endPort.lid}

    def call(
        self,
        rpc: str,
        payload: Any,
        path: IBPath,
        attributeModifier: int = 0,
        *,
        timeoutSeconds: float | None = None,
        retries: int | None = None,
        keys: Keys | None = None,
        componentMask: int = 0,
    ) -> Deferred[Any]:
        """Make a call: see L{RPCs.call}."""
        kind = payload if isinstance(payload, type) else type(payload)
        if rpc != "SubnGet" or kind not in _RECODED:
            return self._agent.call(
                *(rpc, payload, path, attributeModifier),
                timeoutSeconds=timeoutSeconds,
                retries=retries,
                keys=keys,
                componentMask=componentMask,
            )
        options = {"timeoutSeconds": timeoutSeconds, "retries": retries, "keys": keys}
        return Deferred.fromCoroutine(self._ask(kind, path, attributeModifier, options))

    async def _ask(
        self, kind: type[Attribute], path: IBPath, modifier: int, options: dict[str, Any]
    ) -> Attribute:
        record, field, components = _RECODED[kind]
        lid = await self._lidOf(path)
        where = "endPortLID" if record is PortInfoRecord else "lid"
        if record is PortInfoRecord and not modifier & 0xFF:
            modifier = await self._ownPort(lid, options)
        query: Query[Record] = record.query(**{where: lid}, **components(modifier))
        answer = await self._agent.SubnAdmGet(query, self._administration, **options)
        content: Attribute = getattr(answer, field)
        return content

    async def _ownPort(self, lid: LID, options: dict[str, Any]) -> int:
        """Which port of a node the LID is of: 0 asks a node for it, but in a record the number stands."""
        query = NodeRecord.query(lid=lid)
        info = (await self._agent.SubnAdmGet(query, self._administration, **options)).nodeInfo
        return 0 if info.nodeType is NodeType.SWITCH else info.localPortNum

    async def _lidOf(self, path: IBPath) -> LID:
        """
        Where a path ends.

        @raise InvalidRequest: a directed route begins or ends with LID-routed parts.
        """
        if not isinstance(path, IBDRPath):
            return path.dlid
        if path.drSLID != PERMISSIVE_LID or path.drDLID != PERMISSIVE_LID:
            raise InvalidRequest("the administration is asked about plain directed routes only")
        route = path.drPath
        known = next(length for length in range(len(route), -1, -1) if route[:length] in self._lids)
        for length in range(known, len(route)):
            self._lids[route[: length + 1]] = await self._nextOf(self._lids[route[:length]], route[length])
        return self._lids[route]

    async def _nextOf(self, lid: LID, port: int) -> LID:
        link = await self._agent.SubnAdmGet(
            LinkRecord.query(fromLID=lid, fromPort=port), self._administration
        )
        return link.toLID
