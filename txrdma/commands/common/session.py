"""
Sessions of commands for InfiniBand fabrics: their options, and an agent on a management port.

Example of a command::

    with opened(reactor, options) as session:
        info = await session.rpcs.SubnGet(NodeInfo, await session.toManagement("DR 0,1"))
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TYPE_CHECKING

from twisted.internet.abstract import isIPAddress

from txrdma.commands.common.interruption import endedBySignals
from txrdma.commands.common.options import CommandOptions
from txrdma.commands.common.showing import ShowingPort
from txrdma.commands.common.values import count, fileName, seconds, unsigned
from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError
from txrdma.fabric.nodenames import NodeNames, readNodeNames
from txrdma.fabric.targets import combined, parsedTarget
from txrdma.iba.path import IBDRPath, IBPath, lifetimeSeconds, MADEndPort
from txrdma.iba.types import GID, GUID, LID, QPN
from txrdma.iba.verbs import PortState
from txrdma.interfaces import IMADPort
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.frames import Keys
from txrdma.mad.core.timeouts import RETRIES
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.layouts.messages import MADStatus
from txrdma.mad.layouts.values import SAStatus
from txrdma.mad.paths import toLID, toSA
from txrdma.mad.ports import openMADPort
from txrdma.mad.resolvers import IPPathResolver, SAPathResolver
from txrdma.mad.rpcs import RPCs
from txrdma.mad.satransactor import SATransactor

if TYPE_CHECKING:
    from txrdma.fabric.recording import Recording

TARGET: Final = (
    "TARGET is a LID (7), a GID, a port GUID (0x...), a directed route (DR 0,1,3 or 0,1,3), a LID and a "
    "directed route from there on ('7 0,3'), a path's words (lid 7 sl 1), a node's name, or on RoCE an IP "
    "address"
)
TARGETS: Final = f"{TARGET}; the default is the local port."

_AT_QUEUE_PAIR: Final = re.compile(r"(\S+)\s+dqpn\s+(\d+|0x[0-9a-fA-F]+)")
"""A target whose queue pair is not 1, as on RoCE without the kernel: C{"7 dqpn 0x12"}."""

_FIELD_STATUS: Final = 0x1C
_ALL_PORTS: Final = 0xFF
_LONGEST_TIMEOUT: Final = 4.0


class FabricOptions(CommandOptions):
    """Options of all commands that send management datagrams."""

    optFlags = [
        ["sa", "s", "Query the SA (subnet administration) instead of the nodes."],
        ["json", None, "JSON instead of text."],
    ]
    optParameters = [
        ["device", "d", "", "Port: umad:mlx5_0/1, ibsim:NODE, sim:fattree:128... [default: the first]"],
        ["timeout", "t", None, "Seconds until a request is sent again. [default: the subnet's]", seconds],
        ["retries", None, RETRIES, "Retransmissions of a request without an answer.", count],
        ["mkey", None, 0, "M_Key of the fabric's ports.", unsigned(64)],
        ["node-names", None, "", "Node-name map: lines of a GUID and a name in quotes.", fileName],
    ]

    def __init__(self) -> None:
        super().__init__()
        self["debug"] = 0

    def opt_debug(self) -> None:
        """Print datagrams to standard error; if given twice, also fields, and if three times, also bytes."""
        self["debug"] += 1


@dataclass
class Session:
    """
    An open management port of a command, and its properties.

    @ivar reactor: the reactor, with any interfaces that the command uses.
    @ivar agent: makes calls unchanged.
    @ivar rpcs: makes queries: the same agent, or a L{SATransactor<txrdma.mad.satransactor.SATransactor>},
        which queries the SA instead.
    @ivar endPort: LID, GIDs and SM of the local port.
    @ivar names: the node-name map.
    @ivar loaded: the snapshot whose simulation answers; None if a real fabric does.
    """

    reactor: Any
    agent: MADAgent
    rpcs: RPCs
    endPort: MADEndPort
    names: NodeNames
    options: FabricOptions
    loaded: Recording | None = None

    @property
    def readings(self) -> RPCs:
        """
        What sends queries for tables and counters. For a snapshot, its file answers, and queries fail whose
        answers it does not have.
        """
        from txrdma.fabric.recording import RecordedRPCs

        return self.rpcs if self.loaded is None else RecordedRPCs(self.loaded)

    @property
    def sa(self) -> IBPath:
        """
        The path from the local port to the SA.

        @raise DeviceUnavailable: the port knows no subnet manager.
        """
        if not self.endPort.smLID:
            raise DeviceUnavailable("the local port knows no subnet manager: start one, such as opensm")
        return toSA(self.endPort)

    async def toManagement(self, target: str = "") -> IBPath:
        """Return the path of SMPs to a target: a directed route if one is given, or for the local port."""
        if not target:
            return IBDRPath()
        if (both := combined(target)) is not None:
            return self._combined(*both)
        return await self._resolved(target)

    def _combined(self, lid: LID, route: str) -> IBDRPath:
        """Return a path by LID to a switch, and by a directed route from there (IBA 14.2.2)."""
        own = self.endPort.lid
        if not own:
            raise DeviceUnavailable("the local port has no LID, so it cannot reach LIDs")
        return replace(_directed(route), slid=own, dlid=lid, drSLID=own)

    async def toServices(self, target: str = "") -> IBPath:
        """
        Return the path to the general services of a target's port, for all calls except C{Subn...}.

        A directed route is resolved to the LID at its end; for a switch, to the LID of port 0.
        """
        if not target:
            return self._toOurselves()
        path = await self.toManagement(target)
        if isinstance(path, IBDRPath):
            return toLID(self.endPort, await self._lidAt(path))
        return path

    async def nameAt(self, path: IBPath) -> str:
        """Return the mapped name of the node at the end of a path; C{""} if there is no map."""
        from txrdma.mad.layouts.smp import NodeInfo

        if not self.names.names:
            return ""
        info = await self.rpcs.SubnGet(NodeInfo, path)
        return self.names.names.get(info.nodeGUID, "")

    async def confirmed(self, what: str, path: IBPath) -> None:
        """
        Prompt for a confirmation before a change at the end of a path, unless C{--yes} is given.

        @raise InvalidRequest: while the prompt waited, the path began to lead to another node, or to none.
        """
        if self.options["yes"]:
            return
        before = await self._guidAt(path)
        confirmed(what, False)
        if before is not None and await self._guidAt(path) != before:
            raise InvalidRequest(f"another node, or none, is at {where(path)} now; nothing was changed")

    async def _guidAt(self, path: IBPath) -> GUID | None:
        """Return the GUID of the node at the end of a path; None if it does not answer, or cannot."""
        from txrdma.mad.layouts.smp import NodeInfo

        if not self.agent.port.hasSMI:
            return None
        try:
            info: NodeInfo = await self.agent.SubnGet(NodeInfo, path)
        except MADFailure:
            return None
        return info.nodeGUID

    async def checkLink(self) -> None:
        """
        Check whether the local port has a link, after others did not answer.

        @raise DeviceUnavailable: it has none.
        """
        from txrdma.mad.layouts.smp import PortInfo

        port = self.agent.port
        if not port.hasSMI:
            return
        try:
            info = await self.agent.SubnGet(PortInfo, IBDRPath())
        except MADFailure:
            return  # its own agent says nothing
        if info.portState is PortState.DOWN:
            raise DeviceUnavailable(f"{port.name}: the link of the local port was lost; others seem silent")

    async def checkPorts(self, path: IBPath, ports: Iterable[int], error: MADError) -> None:
        """
        Check whether a port number that the node does not have is the cause of an invalid field.

        @raise InvalidRequest: the node has no such port.
        """
        from txrdma.mad.layouts.smp import NodeInfo

        highest = max((port for port in ports if port != _ALL_PORTS), default=0)
        if error.status & _FIELD_STATUS != MADStatus.INVALID_FIELD or not highest:
            return
        node = await self.agent.SubnGet(NodeInfo, path)
        if highest > node.numPorts:
            raise InvalidRequest(f"{where(path)} has {node.numPorts} ports, and no port {highest}") from error

    async def _resolved(self, target: str) -> IBPath:
        known: object
        try:
            known = parsedTarget(target, self.endPort)
            if isinstance(known, GID) and self._isDirect(known):
                return await IPPathResolver(self.endPort).resolve(known)
        except InvalidRequest as error:
            if (match := _AT_QUEUE_PAIR.fullmatch(target.strip())) is not None:
                return replace(await self._resolved(match[1]), dqpn=QPN(int(match[2], 0)))
            if isIPAddress(target):
                return await IPPathResolver(self.endPort).resolve(target)
            known = await self._lidNamed(target)
            if known is None:
                names = "no node has this name" if self.endPort.smLID else "names need a subnet manager"
                raise InvalidRequest(f"{error}, and {names}") from error
        return await SAPathResolver(self.agent, self.endPort).resolve(known)

    def _isDirect(self, gid: GID) -> bool:
        """Return whether a GID is an address on RoCE, for which the SA is not queried."""
        return not self.endPort.smLID and (gid.isMapped or not self.agent.port.hasSMI)

    async def _lidNamed(self, name: str) -> int | None:
        """Return the LID of the node with this name in the node-name map or as its description, or None."""
        from txrdma.mad.layouts.sa import NodeRecord

        encoded = name.encode(errors="surrogateescape")
        if not self.endPort.smLID or len(encoded) > 64:
            return None
        queries = [NodeRecord.query(nodeGUID=guid) for guid in self.names.guids(name)]
        records: list[NodeRecord] = []
        for query in queries or [NodeRecord.query(nodeString=encoded.ljust(64, b"\0"))]:
            try:
                records.append(await self.agent.SubnAdmGet(query))
            except MADError as error:
                refusal = SAStatus.of(error.status)
                if refusal is SAStatus.TOO_MANY:
                    records += await self.agent.SubnAdmGetTable(query)
                elif refusal is not SAStatus.NO_RECORDS:
                    raise
        if len({record.nodeInfo.nodeGUID for record in records}) > 1:
            raise InvalidRequest(f"{name!r} is ambiguous: several nodes have this name")
        return records[0].lid if records else None

    def _toOurselves(self) -> IBPath:
        if not self.endPort.lid:
            raise DeviceUnavailable("the local port has no LID: no subnet manager has assigned one")
        return toLID(self.endPort, self.endPort.lid)

    async def _lidAt(self, path: IBDRPath) -> int:
        from txrdma.iba.verbs import NodeType
        from txrdma.mad.layouts.smp import NodeInfo, PortInfo

        info = await self.agent.SubnGet(NodeInfo, path)
        number = 0 if info.nodeType is NodeType.SWITCH else info.localPortNum
        lid = (await self.agent.SubnGet(PortInfo, path, number)).lid
        if not lid:
            raise DeviceUnavailable(f"the port at {path} has no LID: no subnet manager has assigned one")
        return lid


def _directed(text: str) -> IBDRPath:
    try:
        return IBDRPath.fromString(text)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


def nodeNames(options: FabricOptions) -> NodeNames:
    """Read the node-name map of the options, by default that of the host."""
    with endedBySignals():
        return readNodeNames(options["node-names"])


@contextmanager
def opened(reactor: Any, options: FabricOptions, given: IMADPort | None = None) -> Iterator[Session]:
    """
    Open the management port of the options while the context is active.

    @param given: an open port to use instead.

    L{MADFailure} is converted to L{RDMAError} with one line, or with details if C{--debug} is given.
    """
    names = nodeNames(options)
    try:
        port = openMADPort(reactor, options["device"]) if given is None else given
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    level: int = options["debug"]
    if level:
        port = ShowingPort(port, level)
    agent = MADAgent(
        reactor,
        port,
        timeoutSeconds=_timeoutOf(options, port.endPort),
        retries=options["retries"],
        keys=Keys(mkey=options["mkey"]),
    )
    owner: IMADPort | MADAgent = agent
    try:
        rpcs = SATransactor(agent, port.endPort) if options["sa"] else agent
        session = Session(reactor, agent, rpcs, port.endPort, names, options)
        if options["sa"]:
            _ = session.sa
        yield session
    except MADFailure as error:
        raise RDMAError(error.detailed(level) if level else f"{where(error.path)}: {error}") from error
    except (GeneratorExit, KeyboardInterrupt):
        # After Ctrl-C do not close the agent, since nothing waits for the failures of calls.
        owner = port
        raise
    finally:
        owner.close()


def _timeoutOf(options: FabricOptions, endPort: MADEndPort) -> float | None:
    """Return C{--timeout} in seconds; None for the subnet's timeout, unless that is very long."""
    if options["timeout"] is None and lifetimeSeconds(endPort.subnetTimeout) > _LONGEST_TIMEOUT:
        return _LONGEST_TIMEOUT
    timeout: float | None = options["timeout"]
    return timeout


def confirmed(what: str, isConfirmed: bool) -> None:
    """Prompt for a confirmation before a change; exit if it is refused, or if there is no terminal."""
    if isConfirmed:
        return
    if not sys.stdin.isatty():
        raise SystemExit(f"{what}: this changes the fabric; use --yes")
    with endedBySignals():
        print(f"{what}? [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
    if answer.strip().lower() not in ("y", "yes"):
        raise SystemExit("nothing was changed")


def where(path: IBPath) -> str:
    """Return the short form of a path: C{"DR 0,1"}, C{"lid 7"}."""
    if isinstance(path, IBDRPath):
        return str(path)
    return f"lid {path.dlid}" if path.dlid or path.dgid is None else str(path.dgid)
