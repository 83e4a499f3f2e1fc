"""
Files for other programs: Slurm's C{topology.conf}, hosts that should not be used, a node-name map.

A file is written when its content has changed, or somebody has deleted it: to a temporary file which then
replaces it, so that readers never see part of it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from txrdma.fabric.advice import Severity
from txrdma.fabric.health import Finding
from txrdma.fabric.model import Fabric, Node, PortKey, UNNAMED
from txrdma.fabric.nodenames import NodeNames, nodeNamesText
from txrdma.fabric.slurm import AGGREGATION, hostName, isHost, slurmText, slurmYAML
from txrdma.kit.logs import reasonText
from txrdma.kit.values import frozen
from txrdma.monitor.diagnosis.fabricstate import Link
from txrdma.monitor.diagnosis.findinglog import Entry
from txrdma.monitor.diagnosis.topologywatch import TopologyWatch
from txrdma.monitor.reading.poller import FabricPoller

_log = Logger()

_ABSENT: Final = ("node-gone", "node-silent")
"""Kinds of findings about a host that is not in the fabric."""

_FIT: Final = frozenset(("duplicate-name", "firmware", "remote-errors", "unbalanced"))
"""Kinds of findings at a host, or at the port that leads to it, which do not make the host unfit."""

_PIECE: Final = 50
"""Number of lines that are made between two pauses."""


_NODES: Final = 1000
"""Number of nodes that are examined between two pauses."""


@frozen
class FileSettings:
    """
    Paths of the files to write; C{""} for those that are not written.

    @ivar slurm: Slurm's C{topology.conf}, or C{topology.yaml} by its suffix.
    @ivar unfit: hosts not to be used; C{nodeNames}: the node-name map.
    """

    slurm: str = ""
    unfit: str = ""
    nodeNames: str = ""


Adapters = dict[str, list[str]]
"""Names of the adapters of each host, by the name of the host."""


def addAdapters(adapters: Adapters, nodes: Iterable[Node]) -> None:
    """Add the hosts among nodes."""
    for node in nodes:
        if isHost(node):
            adapters.setdefault(hostName(node.description), []).append(_adapter(node.description))


def unfitHosts(
    fabric: Fabric, entries: Iterable[Entry], adapters: Adapters, watch: TopologyWatch
) -> dict[str, str]:
    """
    Return the hosts that should get no jobs, by name, with the reason: those that have findings of severity
    warning or above, themselves or at their switch port.

    Nodes choose their descriptions, so a faulty host can claim the name of another one. A name is omitted if
    several hosts claim it, unless their descriptions are those of adapters of one host.

    @param adapters: the adapters of all hosts of the fabric.
    @param watch: knows the missing nodes, and since when a host is at its port: what was found there before
        is about another one.
    """
    unfit: dict[str, str] = {}
    missing = watch.missingAt()
    for entry in entries:
        found = entry.finding
        if entry.severity < Severity.WARNING or found.kind in _FIT or found.guid is None:
            continue
        node = fabric.nodes.get(found.guid)
        if node is not None:
            host = node if not node.isSwitch else _linkedTo(fabric, node, entry, watch, missing)
            description = host.description if host is not None and isHost(host) else ""
        elif found.kind in _ABSENT and AGGREGATION not in found.where and watch.isAdapter(found.guid):
            known = found.where.rpartition(" (")[0]
            description = "" if known == UNNAMED else known
        else:
            continue
        name = hostName(description)
        claims = [*adapters.get(name, ()), *([_adapter(description)] * (node is None))]
        if name and (len(claims) == 1 or ("" not in claims and len(set(claims)) == len(claims))):
            unfit.setdefault(name, f"{found.kind}: {found.text}")
    return dict(sorted(unfit.items()))


def _adapter(description: str) -> str:
    """Return the name of a host's adapter, which follows the host's name; C{""} without one."""
    return description.strip().partition(" ")[2]


def _linkedTo(
    fabric: Fabric, switch: Node, entry: Entry, watch: TopologyWatch, missing: Mapping[PortKey, Link]
) -> Node | None:
    """Return the node that was linked to a switch's port when a finding was seen there; None without one."""
    number = entry.finding.port
    if number is None:
        return None
    port = switch.known(number)
    if port is not None and port.peer is not None:
        isSame = entry.lastSeen >= watch.linkedSince(port, port.peer)
        return port.peer.node if isSame else None
    guids = [guid for guid, _number in missing.get((switch.guid, number), ()) if guid != switch.guid]
    return fabric.nodes.get(guids[0]) if guids else None


class MaintainedFiles:
    """
    Writes the files and updates them.

    @ivar problems: reasons for which files could not be written, by their paths.
    """

    def __init__(self, reactor: IReactorTime, settings: FileSettings) -> None:
        self._reactor = reactor
        self.problems: dict[str, str] = {}
        self._settings = settings
        self._written: dict[str, str] = {}
        self._version = -1
        self._adapters: tuple[int, Adapters] = (-1, {})

    def change(self, settings: FileSettings) -> None:
        """Use other paths from now on."""
        self._settings = settings
        self.problems.clear()
        self._written.clear()
        self._version = -1

    async def update(self, poller: FabricPoller) -> None:
        """Write the files whose content has changed; the content is made in pieces of some milliseconds."""
        # A sweep may replace the fabric, and a reload the settings, during each of the pauses below.
        fabric, version, settings = poller.fabric, poller.version, self._settings
        if fabric is None or fabric.isLocalOnly:  # the local link is not up yet
            return
        self._forgetDeleted()
        if settings.unfit:
            adapters = await self._adaptersOf(fabric, version)
            opened = poller.findings.log.open.values()
            unfit = unfitHosts(fabric, opened, adapters, poller.topologyWatch)
            await self._write(settings.unfit, (f"{name}\t{why}" for name, why in unfit.items()))
        if version != self._version and settings is self._settings:
            self._version = version
            try:
                if len(fabric.nodes) > _PIECE:
                    await deferLater(self._reactor, 0.0)
                if settings.slurm:
                    text = slurmYAML if settings.slurm.endswith(".yaml") else slurmText
                    await self._write(settings.slurm, text(fabric, NodeNames()))
                if settings.nodeNames:
                    await self._write(settings.nodeNames, nodeNamesText(fabric))
            except Exception:
                self._version = -1  # try again in the next round
                raise

    def findings(self) -> list[Finding]:
        """Return findings about files that could not be written."""
        return [Finding("file-failed", path, why) for path, why in self.problems.items()]

    def _forgetDeleted(self) -> None:
        """Let files that somebody has deleted be written again."""
        for path in [path for path in self._written if not os.path.lexists(path)]:
            del self._written[path]
            self._version = -1

    async def _adaptersOf(self, fabric: Fabric, version: int) -> Adapters:
        """Return the adapters of all hosts, which are found in pieces after each change of the fabric."""
        if self._adapters[0] != version:
            adapters: Adapters = {}
            left = iter(list(fabric.nodes.values()))
            while some := list(islice(left, _NODES)):
                addAdapters(adapters, some)
                if len(some) == _NODES:
                    await deferLater(self._reactor, 0.0)
            self._adapters = version, adapters
        return self._adapters[1]

    async def _write(self, path: str, lines: Iterable[str]) -> None:
        """Write a file if its content has changed, with the group and the mode of the former one."""
        left, text = iter(lines), ""
        while piece := list(islice(left, _PIECE)):
            text += "".join(f"{line}\n" for line in piece)
            if len(piece) == _PIECE:
                await deferLater(self._reactor, 0.0)
        settings = self._settings  # which may have changed meanwhile
        isWanted = path in (settings.slurm, settings.unfit, settings.nodeNames)
        if not isWanted or self._written.get(path) == text:
            return
        beside = Path(f"{path}.new")
        try:
            beside.unlink(missing_ok=True)
            with beside.open("x", encoding="utf-8", errors="replace") as file:  # which follows no link
                with suppress(FileNotFoundError):
                    former = os.lstat(path)
                    if stat.S_ISREG(former.st_mode):
                        with suppress(PermissionError):  # this process is not a member of the group
                            os.fchown(file.fileno(), -1, former.st_gid)
                        os.fchmod(file.fileno(), stat.S_IMODE(former.st_mode))
                file.write(text)
            os.replace(beside, path)
            self._written[path] = text
            self.problems.pop(path, None)
        except OSError as error:
            with suppress(OSError):
                beside.unlink()
            self.problems[path] = reasonText(error)
            self._version = -1  # try again in the next round
