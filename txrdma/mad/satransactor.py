"""
A transactor that queries subnet administration instead of the nodes.

Follows InfiniBand Architecture vol. 1, 15.2.5: most attributes of subnet management have a record with the
same content. Nodes may protect theirs by an M_Key; the SA returns them to every requester.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from typing_extensions import Unpack

from twisted.internet.defer import Deferred

from txrdma.iba.path import IBDRPath, IBPath, PERMISSIVE_LID
from txrdma.iba.types import LID
from txrdma.iba.verbs import NodeType
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.layouts import sa, smp
from txrdma.mad.layouts.attributes import Attribute
from txrdma.mad.paths import current, EndPort
from txrdma.mad.rpcs import CallOptions, RPCs

_K = TypeVar("_K")
_R = TypeVar("_R", bound=sa.Record)
_V = TypeVar("_V")


class _Recoding(NamedTuple):
    """
    Record that has an attribute, and the query for it.

    @ivar record: type of the record; it has the attribute in C{field}.
    @ivar components: components for the attribute's modifier, at any node.
    @ivar ports: components for the modifier at a switch; other nodes have one such table for each LID, and
        ignore ports.
    """

    record: type[sa.Record]
    field: str
    components: Callable[[int], dict[str, int]] = lambda modifier: {}
    ports: Callable[[int], dict[str, int]] | None = None


def _block(modifier: int) -> dict[str, int]:
    return {"blockNum": modifier}


def _named(*names: str, of: Callable[[int], tuple[int, ...]]) -> Callable[[int], dict[str, int]]:
    """Return the parts of a modifier by their components in a record, C{""} for none."""
    return lambda modifier: {name: part for name, part in zip(names, of(modifier), strict=False) if name}


_RECODED: Final[dict[type[Attribute], _Recoding]] = {
    smp.NodeInfo: _Recoding(sa.NodeRecord, "nodeInfo"),
    smp.NodeDescription: _Recoding(sa.NodeRecord, "nodeDescription"),
    smp.PortInfo: _Recoding(sa.PortInfoRecord, "portInfo", _named("portNum", of=smp.PortInfo.partsOf)),
    smp.SwitchInfo: _Recoding(sa.SwitchInfoRecord, "switchInfo"),
    smp.SMInfo: _Recoding(sa.SMInfoRecord, "smInfo"),
    smp.GUIDInfo: _Recoding(sa.GUIDInfoRecord, "guidInfo", _block),
    smp.LinearForwardingTable: _Recoding(sa.LinearForwardingTableRecord, "table", _block),
    smp.RandomForwardingTable: _Recoding(sa.RandomForwardingTableRecord, "table", _block),
    smp.MulticastForwardingTable: _Recoding(
        sa.MulticastForwardingTableRecord,
        "table",
        _named("blockNum", "position", of=smp.MulticastForwardingTable.partsOf),
    ),
    smp.PKeyTable: _Recoding(
        sa.PKeyTableRecord,
        "table",
        _named("blockNum", of=smp.PKeyTable.partsOf),
        _named("", "portNum", of=smp.PKeyTable.partsOf),
    ),
    smp.SLtoVLMappingTable: _Recoding(
        sa.SLtoVLMappingTableRecord,
        "table",
        ports=_named("inputPortNum", "outputPortNum", of=smp.SLtoVLMappingTable.partsOf),
    ),
    smp.VLArbitrationTable: _Recoding(
        sa.VLArbitrationTableRecord,
        "table",
        _named("", "blockNum", of=smp.VLArbitrationTable.partsOf),
        _named("outputPortNum", of=smp.VLArbitrationTable.partsOf),
    ),
}

_Route = tuple[LID, tuple[int, ...]]
"""LID at which a directed route begins, and its hops."""


class SATransactor(RPCs):
    """
    Converts C{SubnGet} into C{SubnAdmGet} of the record with the same content; passes all other calls on.

    A directed route is followed link by link, by the SA's records. LIDs and nodes found on the way are
    remembered; when a call that used them fails, they are found again, and if they have changed, the call is
    made once more.

    Errors are those of C{SubnAdmGet}: for an attribute that no node has, the SA returns no records.
    """

    def __init__(self, agent: RPCs, endPort: EndPort) -> None:
        """
        @param agent: sends the queries; it is not closed.
        @param endPort: end port of the agent's port, or a function that returns it.
        """
        self._agent = agent
        self._endPort = endPort
        self._lids: dict[_Route, LID] = {}
        self._nodes: dict[LID, smp.NodeInfo] = {}

    def forget(self) -> None:
        """Clear the cache of nodes and LIDs, for example after a change of the fabric."""
        self._lids.clear()
        self._nodes.clear()

    def call(
        self,
        rpc: str,
        payload: Any,
        path: IBPath | None = None,
        attributeModifier: int = 0,
        **options: Unpack[CallOptions],
    ) -> Deferred[Any]:
        kind = payload if isinstance(payload, type) else type(payload)
        if rpc != "SubnGet" or kind not in _RECODED or path is None:
            return self._agent.call(rpc, payload, path, attributeModifier, **options)
        options.pop("componentMask", None)
        options.pop("transactionID", None)  # it takes several calls
        return Deferred.fromCoroutine(
            self._translate(_Translation(kind, path, attributeModifier, options, []))
        )

    async def _translate(self, translation: _Translation) -> Attribute:
        """Query the SA, and again if that failed because of cached facts or another port number."""
        try:
            query = await self._queryFor(translation)
        except MADFailure:
            if not translation.forget():
                raise
            query = await self._queryFor(translation)
        try:
            return await self._attributeFrom(translation, query)
        except MADError:
            other = await self._secondQueryFor(translation, query)
            if other is None:
                raise
        except MADFailure:
            translation.forget()
            raise
        return await self._attributeFrom(translation, other)

    def _querySA(self, query: sa.Query[_R], translation: _Translation) -> Deferred[_R]:
        """Send a query to the SA, with the options of the call."""
        return self._agent.SubnAdmGet(query, **translation.options)

    async def _attributeFrom(self, translation: _Translation, query: sa.Query[sa.Record]) -> Attribute:
        """Return the attribute in the record that the SA returns."""
        record = await self._querySA(query, translation)
        content: Attribute = getattr(record, _RECODED[translation.kind].field)
        return content

    async def _queryFor(self, translation: _Translation) -> sa.Query[sa.Record]:
        """Make the query for the record with the attribute of a call."""
        recoding, modifier = _RECODED[translation.kind], translation.modifier
        lid = await self._lidOf(translation)
        if translation.kind is smp.PortInfo:
            number = smp.PortInfo.partsOf(modifier)[0] or _numberOf(await self._nodeAt(lid, translation))
            return recoding.record.query(endPortLID=lid, portNum=number)
        components = recoding.components(modifier)
        if recoding.ports is not None:
            node = await self._nodeAt(lid, translation)
            if node.nodeType is NodeType.SWITCH:
                components |= recoding.ports(modifier)
        return recoding.record.query(lid=lid, **components)

    async def _secondQueryFor(
        self, translation: _Translation, query: sa.Query[sa.Record]
    ) -> sa.Query[sa.Record] | None:
        """Second query, after the SA had no record for the first; None if there is none."""
        if translation.forget():
            again = await self._queryFor(translation)
            if again != query:
                return again
        number = smp.PortInfo.partsOf(translation.modifier)[0]
        if translation.kind is not smp.PortInfo or not number:
            return None
        node = await self._nodeAt(await self._lidOf(translation), translation)
        if node.nodeType is NodeType.SWITCH or number in (0, node.localPortNum) or number > node.numPorts:
            return None
        sibling = sa.NodeRecord.query(nodeGUID=node.nodeGUID, localPortNum=number)
        lid = (await self._querySA(sibling, translation)).lid
        return _RECODED[smp.PortInfo].record.query(endPortLID=lid, portNum=number)

    async def _nodeAt(self, lid: LID, translation: _Translation) -> smp.NodeInfo:
        """NodeInfo of the node at a LID, remembered or from the SA."""
        node = translation.remembered(self._nodes, lid)
        if node is None:
            record = await self._querySA(sa.NodeRecord.query(lid=lid), translation)
            node = self._nodes[lid] = record.nodeInfo
        return node

    async def _lidOf(self, translation: _Translation) -> LID:
        """LID at the end of a path; parts before and after a directed route may have LIDs (IBA 14.2.2)."""
        path = translation.path
        if not isinstance(path, IBDRPath):
            return path.dlid
        if path.drDLID != PERMISSIVE_LID:
            return path.drDLID
        start = current(self._endPort).lid if path.drSLID == PERMISSIVE_LID else path.dlid
        lid = start
        for length, port in enumerate(path.drPath, 1):
            route = (start, path.drPath[:length])
            known = translation.remembered(self._lids, route)
            if known is None:
                link = await self._querySA(sa.LinkRecord.query(fromLID=lid, fromPort=port), translation)
                known = self._lids[route] = link.toLID
            lid = known
        return lid


class _Translation(NamedTuple):
    """
    A Get call: attribute, path and modifier.

    @ivar used: cached facts that have led to the query: tables, and keys in them.
    """

    kind: type[Attribute]
    path: IBPath
    modifier: int
    options: CallOptions
    used: list[tuple[dict[Any, Any], object]]

    def remembered(self, table: dict[_K, _V], key: _K) -> _V | None:
        """Return a cached value of a table, and record its use."""
        value = table.get(key)
        if value is not None:
            self.used.append((table, key))
        return value

    def forget(self) -> bool:
        """Remove the cached facts that a query has used; False if there were none."""
        hadAny = bool(self.used)
        for table, key in self.used:
            table.pop(key, None)
        self.used.clear()
        return hadAny


def _numberOf(node: smp.NodeInfo) -> int:
    """Port number of a LID in records, where a Get of a node has 0."""
    return 0 if node.nodeType is NodeType.SWITCH else node.localPortNum
