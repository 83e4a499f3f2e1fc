"""
C{txrdma portstate}: shows and changes the state of ports.

Follows InfiniBand Architecture vol. 1, 14.2.5.6 (PortInfo), and 7.2.7 (the states of a link).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from twisted.internet.defer import CancelledError
from twisted.internet.task import deferLater
from twisted.python import usage

from txrdma.commands.common.attributefields import assigned, attributeDict, forSetting
from txrdma.commands.common.options import columns
from txrdma.commands.common.portchanges import (
    FDR10,
    isSwitchedOn,
    newKey,
    OPERATIONS,
    parsed,
    PortChange,
    STATES,
)
from txrdma.commands.common.progress import ProgressBar
from txrdma.commands.common.rows import printJSON
from txrdma.commands.common.session import confirmed, FabricOptions, opened, Session, TARGETS, where
from txrdma.commands.common.values import portNumbers
from txrdma.error import InvalidRequest, RDMAError
from txrdma.fabric.model import described, Fabric, Node, Port
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.verbs import NodeType, PhysicalState, PortState
from txrdma.mad.core.frames import Keys
from txrdma.mad.errors import MADFailure, MADTimeoutError
from txrdma.mad.layouts.smp import ExtendedPortInfo, NodeInfo, PortInfo

_SHOWN: Final = (
    "portState portPhysicalState lid masterSMLID lmc linkWidthSupported linkWidthEnabled linkWidthActive "
    "linkSpeedSupported linkSpeedEnabled linkSpeedActive linkSpeedExtSupported linkSpeedExtEnabled "
    "linkSpeedExtActive linkSpeedExtSupported2 linkSpeedExtEnabled2 linkSpeedExtActive2 "
    "neighborMTU operationalVLs mkeyLeasePeriod mkeyProtectBits"
).split()

_TRIES: Final = 10
_PAUSE_SECONDS: Final = 0.1
"""Most reads of a port until it has the state that was set, and the pause between two of them."""

_REACHED: Final = {
    "ARMED": (PortState.ARMED, PortState.ACTIVE),  # an SM may activate it at once
    "ACTIVE": (PortState.ACTIVE,),
}
"""
The states in which a port has reached the state that was set. There are none for DOWN: the link is trained
again at once.
"""

_RARE: Final = ("linkSpeedExtSupported2", "linkSpeedExtEnabled2", "linkSpeedExtActive2")
"""Fields of PortInfo that are printed only for ports that support XDR."""


class CommandOptions(FabricOptions):
    """Options of C{txrdma portstate}: ports, and operations on them."""

    synopsis = "[options] TARGET PORTS [query | OPERATION [VALUE] ...]"
    longdesc = (
        "Show the state of a port and of the other end of its link, or change it by one or several "
        "operations, as in 0,1,3 1 lid 7 arm. PORTS are numbers, as 1,4-7. A port on the path to the "
        "target is not brought down without --force. --everywhere means all linked ports of the fabric, "
        "instead of TARGET PORTS: links are brought down from the farthest to the nearest, so that down "
        "makes all of them INIT. The exit status is 1 if an operation failed. " + TARGETS
    )
    appendix = (
        "Operations:",
        "",
        *columns(
            ("query", "Show the state; the default."),
            ("enable, disable", "Let the link come up, or take it down permanently."),
            ("on, off", "As enable and disable; on does nothing if the port is not disabled."),
            ("reset", "Disable, then enable the port."),
            ("down, arm, active", "Set the state of the link; after down it is trained again."),
            ("speed VALUE", "Enabled speeds from the next training on: SDR,DDR,QDR; all for all supported."),
            ("espeed VALUE", "Enabled extended speeds: FDR,EDR,HDR,NDR; all, none."),
            ("espeed2 VALUE", "Enabled extended speeds 2: XDR; all."),
            ("fdr10 on|off", "Enable or disable Mellanox's FDR10."),
            ("width VALUE", "Enabled widths: 1x,2x,4x,8x,12x; all."),
            ("vls VALUE", "Operational virtual lanes: VL0, VL0-1, VL0-3, VL0-7, VL0-14, or 1 to 5."),
            ("mtu VALUE", "Neighbor MTU: 256 to 4096, or 1 to 5."),
            ("lid, smlid, lmc VALUE", "LID, LID of the subnet manager, and LMC (ports with a LID)."),
            ("mkey VALUE", "M_Key; x prompts for it, to keep it out of the shell's history."),
            ("mkeylease, mkeyprot VALUE", "M_Key lease period in seconds, and M_Key protection bits."),
        ),
    )
    optFlags = [
        ["yes", "y", "Do not ask for confirmation before ports are changed."],
        ["force", "f", "Bring down even ports on the path to the target."],
        ["everywhere", None, "All linked ports of the fabric, instead of TARGET PORTS."],
    ]

    def parseArgs(self, *arguments: str) -> None:
        self["arguments"] = arguments

    def postOptions(self) -> None:
        arguments: Sequence[str] = self["arguments"]
        self["target"], self["ports"] = "", []
        if not self["everywhere"]:
            if len(arguments) < 2:
                raise usage.UsageError("expected TARGET and PORT, as 9 1")
            self["target"], ports, *arguments = arguments
            self["ports"] = portNumbers(ports)
            if not self["ports"] or max(self["ports"]) > 254:
                raise usage.UsageError(f"PORTS {ports!r}: expected numbers from 0 to 254")
        changes = parsed(arguments or ["query"])
        isQuery = any(change.operation == "query" for change in changes)
        if isQuery and (len(changes) > 1 or self["everywhere"]):
            raise usage.UsageError(f"query excludes other operations; operations: {', '.join(OPERATIONS)}")
        if self["everywhere"] and any(change.isOfEnd for change in changes):
            raise usage.UsageError("--everywhere: not possible for LIDs and M_Keys")
        self["changes"] = [] if isQuery else changes


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma portstate}: print or change the state of ports, exit with 1 after an error."""
    with opened(reactor, options) as session:
        results = await (_everywhere if options["everywhere"] else _ofOne)(session)
    if options["json"]:
        printJSON(results if options["everywhere"] or len(results) != 1 else results[0])
    if any(each["error"] for each in results):
        raise SystemExit(1)


# One node.


async def _ofOne(session: Session) -> list[dict[str, Any]]:
    options = session.options
    changes: list[PortChange] = options["changes"]
    path = await session.toManagement(options["target"])
    rpcs = session.agent if changes else session.rpcs
    node = await rpcs.SubnGet(NodeInfo, path)
    ofEnd = [change for change in changes if change.isOfEnd]
    if node.nodeType is not NodeType.SWITCH:  # PortInfo of port 0 is that of the port that is reached
        options["ports"] = list(dict.fromkeys(port or node.localPortNum for port in options["ports"]))
    for port in options["ports"]:
        if port > node.numPorts:
            raise InvalidRequest(f"{where(path)} has {node.numPorts} ports, and no port {port}")
        if port and node.nodeType is NodeType.SWITCH and ofEnd:
            raise InvalidRequest(f"{ofEnd[0]}: on a switch this is possible only for port 0, not port {port}")
    own = [port for port in options["ports"] if port == node.localPortNum and _cuts(changes)]
    if own and not options["force"]:
        raise InvalidRequest(
            f"port {own[0]} of {where(path)} is on the path to it and would go down; use --force to do this"
        )
    ports = [port for port in options["ports"] if port not in own] + own
    if changes:
        description = ", ".join(map(str, changes))
        cut = ", which interrupts the path to it" if own else ""
        numbers = ",".join(map(str, options["ports"]))
        await session.confirmed(f"{description} port {numbers} of {where(path)}{cut}", path)
    results: list[dict[str, Any]] = []
    for port in ports:
        try:
            results.append(await _done(session, path, node, port, changes, port in own))
        except RDMAError as error:
            if not (changes and results):
                raise
            print(f"port {port}: {error}; ports after it were not changed", file=sys.stderr)
            results.append(_entryOf(path, node, port, None, None, [], str(error)))
            break
    return results


def _cuts(changes: Sequence[PortChange]) -> bool:
    return any(change.isCutting for change in changes)


async def _done(
    session: Session, path: IBPath, node: NodeInfo, port: int, changes: Sequence[PortChange], isEntry: bool
) -> dict[str, Any]:
    """Change a port if requested, print it, and return its entry for JSON."""
    info = await (session.agent if changes else session.rpcs).SubnGet(PortInfo, path, port)
    peer, error, warnings = None, "", []
    if not changes:
        if _hasPeer(path, port, node, info):
            peer = await _peer(session, path, port)
            warnings = ["the other end of the link did not answer"] if peer is None else _warnings(info, peer)
    else:
        try:
            info = await _changed(session, path, port, info, changes, isEntry)
        except MADTimeoutError as failure:
            if not isEntry:
                raise
            error = f"no answer after {', '.join(map(str, changes))}: {failure}"
    if not session.options["json"]:
        name = "" if error else await session.nameAt(path)
        print(f"{node.nodeType.name} PortInfo: {where(path)} port {port}{f' ({name})' if name else ''}")
        _showFields(info)
        if peer is not None:
            print(f"Peer PortInfo: port {peer.localPortNum}")
            _showFields(peer)
        for line in [*warnings, *([error] if error else [])]:
            print(line)
    return _entryOf(path, node, port, info, peer, warnings, error)


def _entryOf(
    path: IBPath,
    node: NodeInfo,
    port: int,
    info: PortInfo | None,
    peer: PortInfo | None,
    warnings: list[str],
    error: str,
) -> dict[str, Any]:
    """Return the entry of a port for JSON."""
    return {
        "path": where(path),
        "port": port,
        "nodeType": node.nodeType.name,
        "portInfo": None if info is None else attributeDict(info),
        "peer": None if peer is None else attributeDict(peer),
        "warnings": warnings,
        "error": error or None,
    }


def _showFields(info: PortInfo) -> None:
    lines = {line.partition(":")[0]: line for line in str(info).splitlines()}
    names = [name for name in _SHOWN if name not in _RARE or info.linkSpeedExtSupported2]
    print("\n".join(lines[name] for name in names))


# Changing.


async def _changed(
    session: Session, path: IBPath, port: int, info: PortInfo, changes: Sequence[PortChange], isEntry: bool
) -> PortInfo:
    """
    Change fields of a port, and return its new PortInfo. A reset that fails halfway enables the port.

    @raise RDMAError: the port did not reach the state, or its response was lost and it looks unchanged.
    """
    fields: dict[str, str] = {}
    for change in changes:
        if change.operation != FDR10:
            fields.update(change.fields(info))
    for change in changes:
        if change.operation == FDR10:
            await _setFDR10(session, path, port, isSwitchedOn(change.value))
    isReset = any(change.operation == "reset" for change in changes)
    if isReset and isEntry and path != IBDRPath():
        fields.update(STATES["enable"])  # POLLING also takes the link down; a second Set could not arrive
        isReset = False
    key = newKey(changes)
    keys = None if key is None else Keys(mkey=key)
    enabled = assigned(PortInfo, {**fields, **STATES["enable"]}.items(), forSetting(info))
    before = info
    try:
        if fields:
            wanted = assigned(PortInfo, fields.items(), forSetting(info))
            isLost = False
            try:
                await session.agent.SubnSet(wanted, path, port)
            except MADTimeoutError:
                if not isEntry:
                    raise  # otherwise the response may have been lost with the link
                isLost = True
            info = await _settled(session, path, port, keys, fields)
            compared = {"portState", "portPhysicalState", *fields}
            if isLost and all(getattr(info, name) == getattr(before, name) for name in compared):
                raise RDMAError("no response, and nothing has changed: whether it was done is unknown")
    except CancelledError:
        if isReset:  # the port may be disabled: enable it, without waiting for the answer
            session.agent.call("SubnSet", enabled, path, port, keys=keys).addErrback(lambda _: None)
        raise
    except RDMAError:
        if isReset:
            with suppress(MADFailure):
                await session.agent.call("SubnSet", enabled, path, port, keys=keys)
        raise
    if isReset:
        again = assigned(PortInfo, STATES["enable"].items(), forSetting(info))
        await session.agent.call("SubnSet", again, path, port, keys=keys)
        info = await _settled(session, path, port, keys, STATES["enable"])
    return info


async def _settled(
    session: Session, path: IBPath, port: int, keys: Keys | None, fields: Mapping[str, str]
) -> PortInfo:
    """
    Return the PortInfo of a port when it has reached the state that was set.

    @raise RDMAError: it has another state after all tries.
    """
    for _try in range(_TRIES):
        info: PortInfo = await session.agent.call("SubnGet", PortInfo, path, port, keys=keys)
        if _isReached(info, fields):
            return info
        await deferLater(session.reactor, _PAUSE_SECONDS)
    state = f"{info.portState.name}, {info.portPhysicalState.name}"
    raise RDMAError(f"port {port} of {where(path)} did not reach the state, and is {state}")


def _isReached(info: PortInfo, fields: Mapping[str, str]) -> bool:
    physical, state = fields.get("portPhysicalState"), fields.get("portState", "")
    isDisabled = info.portPhysicalState is PhysicalState.DISABLED
    isThere = physical is None or isDisabled == (physical == "DISABLED")
    return isThere and (state not in _REACHED or info.portState in _REACHED[state])


async def _setFDR10(session: Session, path: IBPath, port: int, isOn: bool) -> None:
    """Switch FDR10 on or off by ExtendedPortInfo; nodes without this attribute return an error status."""
    results = await session.agent.SubnGet(ExtendedPortInfo, path, port)
    if isOn and not results.linkSpeedSupported & 1:
        raise InvalidRequest(f"fdr10 on: port {port} of {where(path)} does not support it")
    fields = {"stateChangeEnable": "1", "linkSpeedEnabled": str(int(isOn))}
    await session.agent.SubnSet(assigned(ExtendedPortInfo, fields.items(), results), path, port)


# All ports of a fabric.


async def _everywhere(session: Session) -> list[dict[str, Any]]:
    """Change all ports that have links; bring links down from the farthest to the nearest."""
    from txrdma.fabric.discovery import Sweep
    from txrdma.fabric.health import isolation

    options = session.options
    changes: list[PortChange] = options["changes"]
    with ProgressBar("asking") as progress:
        fabric = await Sweep(session.agent, progress=progress).run()
    fabric.problems += isolation(fabric)
    ports = [port for port in linkedPorts(fabric) if _isFor(port, changes)]
    if _cuts(changes):
        ports = farthestFirst(ports, isWhole=options["force"])
    description = f"{', '.join(map(str, changes))} {len(ports)} ports of {len(fabric.nodes)} nodes"
    confirmed(description, options["yes"])
    results = []
    with ProgressBar("changing") as progress:
        for port in ports:
            results.append(await _oneOfMany(session, port, changes))
            progress(len(results), len(ports))
    if not options["json"]:
        print(f"{description}: {sum(not each['error'] for each in results)} done")
    for each in results:
        if each["error"]:
            print(f"{each['name']} port {each['port']}: {each['error']}", file=sys.stderr)
    for problem in described(fabric.problems):
        print(problem, file=sys.stderr)
    return results + [
        {"path": problem.where, "port": None, "name": None, "error": f"{problem.kind}: {problem.text}"}
        for problem in fabric.problems
    ]


async def _oneOfMany(session: Session, port: Port, changes: Sequence[PortChange]) -> dict[str, Any]:
    node = port.node
    assert node.route is not None  # the sweep used directed routes
    isEntry = port.number == _entry(node)
    error = ""
    try:
        if (await session.agent.SubnGet(NodeInfo, node.route)).nodeGUID != node.guid:
            raise InvalidRequest(f"another node is at {where(node.route)} now")
        info = await session.agent.SubnGet(PortInfo, node.route, port.number)
        await _changed(session, node.route, port.number, info, changes, isEntry)
    except RDMAError as failure:
        error = str(failure)
    return {
        "path": where(node.route),
        "port": port.number,
        "name": session.names.name(node.guid, node.description),
        "error": error or None,
    }


def linkedPorts(fabric: Fabric) -> list[Port]:
    """Return the ports at both ends of all links."""
    return [port for node in fabric.nodes.values() for port in node.ports.values() if port.peer is not None]


def farthestFirst(ports: Sequence[Port], isWhole: bool = False) -> list[Port]:
    """
    Return one end of each link, in an order in which each is still reachable when it is changed.

    It is the end that is reached without the link: not the port by which the route enters its node.

    @param isWhole: include the link of the local port, as the last one.
    """
    chosen: list[Port] = []
    seen: set[frozenset[tuple[bytes, int]]] = set()
    for port in sorted(ports, key=lambda port: -_depth(port.node)):
        peer = port.peer
        assert peer is not None
        link = frozenset(((port.node.guid.raw, port.number), (peer.node.guid.raw, peer.number)))
        if link in seen or not port.node.isSwitch or port.number == _entry(port.node):
            continue
        seen.add(link)
        chosen.append(port)
    if isWhole:
        chosen += [port for port in ports if not _depth(port.node) and port.number == _entry(port.node)]
    return chosen


def _isFor(port: Port, changes: Sequence[PortChange]) -> bool:
    """Return whether the changes apply to a port: arm only to state INIT, active only to ARMED."""
    wanted = {"arm": PortState.INIT, "active": PortState.ARMED}
    return all(port.state is wanted.get(change.operation, port.state) for change in changes)


def _depth(node: Node) -> int:
    return 0 if node.route is None else len(node.route.drPath)


def _entry(node: Node) -> int:
    """Return the port by which a directed route enters the node; on the local node, the local port."""
    return node.info.localPortNum


# Output.


def _hasPeer(path: IBPath, port: int, node: NodeInfo, info: PortInfo) -> bool:
    """Return whether a link can be followed: of a switch's port, or of the local port."""
    isLocal = path == IBDRPath() and port == node.localPortNum
    isReachable = bool(port) if node.nodeType is NodeType.SWITCH else isLocal
    return isReachable and info.portPhysicalState is PhysicalState.LINK_UP


async def _peer(session: Session, path: IBPath, port: int) -> PortInfo | None:
    """Return the PortInfo of the other end of a link; None without an answer."""
    beyond = _beyond(session, path, port)
    try:
        there = await session.agent.SubnGet(NodeInfo, beyond)
        results: PortInfo = await session.agent.SubnGet(PortInfo, beyond, there.localPortNum)
    except RDMAError:
        return None
    return results


def _beyond(session: Session, path: IBPath, port: int) -> IBDRPath:
    """Return a directed route with one more hop; after a path by LID, it begins at that LID (IBA 14.2.2)."""
    if isinstance(path, IBDRPath):
        return path.then(port)
    return IBDRPath(slid=session.endPort.lid, dlid=path.dlid, drSLID=session.endPort.lid, drPath=(port,))


def _warnings(info: PortInfo, peer: PortInfo) -> list[str]:
    """Return warnings if a link has less width or speed than both ends have enabled."""
    found = []
    for what, active, enabled, ranks in _COMPARED:
        if info.linkSpeedExtActive2 and active == "linkSpeedExtActive":
            continue  # XDR has separate fields
        both, now = getattr(info, enabled) & getattr(peer, enabled), getattr(info, active)
        best = max((rank for rank, bit in enumerate(ranks) if both & bit), default=-1)
        if best > (ranks.index(now) if now in ranks else -1):
            found.append(f"the link's {what} is below what both ends have enabled")
    return found


_SPEEDS: Final = (1, 2, 4, 8)
_COMPARED: Final = (
    ("width", "linkWidthActive", "linkWidthEnabled", (1, 16, 2, 4, 8)),
    ("speed", "linkSpeedActive", "linkSpeedEnabled", _SPEEDS),
    ("extended speed", "linkSpeedExtActive", "linkSpeedExtEnabled", _SPEEDS),
    ("second extended speed", "linkSpeedExtActive2", "linkSpeedExtEnabled2", _SPEEDS),
)
"""Properties that may be below their best, their fields of PortInfo, and the bits of both, the best last."""
