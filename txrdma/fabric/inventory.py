"""
Inventory of a fabric: the devices with their revisions, firmware, boards, uptime and serial numbers.

NodeInfo (IBA 14.2.5.3) has the vendor, device and revision of every node. Firmware, PSID and uptime are those
of the vendor-specific agent of Mellanox and NVIDIA, serial and part numbers those of a register of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from txrdma.fabric.adaptive import MELLANOX
from txrdma.fabric.cables import Cable, Cell, readCables
from txrdma.fabric.model import Node, PortKey, Problem
from txrdma.fabric.tables import Firmware, firmwareOf, isLost
from txrdma.iba.path import MADEndPort
from txrdma.iba.types import GUID
from txrdma.mad.errors import MADFailure
from txrdma.mad.rpcs import RPCs
from txrdma.mad.schedule import MADSchedule

INVENTORY: Final = (
    *("guid", "name", "type", "systemImageGuid", "vendorId", "deviceId", "revision"),
    *("board", "firmware", "built", "hardware", "uptimeSeconds", "serial", "partNumber"),
)
"""Columns of an inventory, in order."""


async def firmwares(
    rpcs: RPCs,
    endPort: MADEndPort,
    nodes: Iterable[Node],
    maxOutstanding: int,
    problems: list[Problem] | None = None,
) -> dict[GUID, Firmware]:
    """
    Query the firmware of nodes; those that do not answer are missing in the result.

    @param problems: receives a problem for each node of which the answer was lost.
    """
    found: dict[GUID, Firmware] = {}
    schedule = MADSchedule(rpcs, maxOutstanding)

    async def read(node: Node) -> None:
        try:
            found[node.guid] = await firmwareOf(schedule, endPort, node)
        except MADFailure as error:
            if problems is not None and isLost(node, error):
                problems.append(Problem("unreachable", str(node), f"firmware: {error}"))

    await schedule.run(mqueue=(read(node) for node in nodes if node.lid and node.vendorID == MELLANOX))
    return found


async def cablesOf(
    rpcs: RPCs,
    endPort: MADEndPort,
    nodes: Iterable[Node],
    maxOutstanding: int,
    progress: Callable[[int, int], object] = lambda done, total: None,
    problems: list[Problem] | None = None,
) -> dict[PortKey, Cable]:
    """
    Query nodes for the cables at their ports; those of nodes that do not answer are missing.

    @param problems: receives a problem for each node of which an answer was lost.
    """
    found: dict[PortKey, Cable] = {}
    schedule = MADSchedule(rpcs, maxOutstanding)
    able = [node for node in nodes if node.lid and node.vendorID == MELLANOX]
    done = 0

    async def read(node: Node) -> None:
        nonlocal done
        hasAnswered = False
        try:
            if (await firmwareOf(schedule, endPort, node)).hasRegisters:
                hasAnswered = True
                await readCables(schedule, endPort, node, found)
        except MADFailure as error:
            if problems is not None and isLost(node, error, hasAnswered):
                problems.append(Problem("unreachable", str(node), f"cables: {error}"))
        done += 1
        progress(done, len(able))

    await schedule.run(mqueue=(read(node) for node in able))
    return found


def inventoryRow(node: Node, firmware: Firmware | None) -> list[Cell]:
    """Return the cells of a node, in the order of L{INVENTORY}; None where a value is unknown."""
    cells: list[Cell] = [
        *(f"{int(node.guid):#018x}", node.description, node.type.name.lower()),
        *(f"{int(node.systemImageGUID):#018x}", f"{node.vendorID:#08x}", f"{node.deviceID:#06x}"),
        node.info.revision,
    ]
    if firmware is None:
        return [*cells, *[None] * (len(INVENTORY) - len(cells))]
    return [
        *cells,
        *(firmware.board, str(firmware), firmware.built, firmware.hardware, firmware.uptimeSeconds),
        *(firmware.serial or None, firmware.partNumber or None),
    ]
