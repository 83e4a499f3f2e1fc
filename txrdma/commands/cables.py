"""C{txrdma cables}: cables and optical modules at the ports of a fabric."""

from __future__ import annotations

from typing import Any

from txrdma.commands.common.progress import ProgressBar
from txrdma.commands.common.rows import printRows
from txrdma.commands.common.session import TARGET
from txrdma.commands.common.sweeping import asking, dropMoved, endWith, PartOptions, swept
from txrdma.fabric.cables import CABLE_COLUMNS, cablePorts, cableRow
from txrdma.fabric.inventory import cablesOf


class CommandOptions(PartOptions):
    """Options of C{txrdma cables}: the sweep, and the form of the table."""

    longdesc = (
        "List the cables and optical modules at all ports with a link: maker, part and serial number, "
        "length, temperature, received and sent power in dBm, and watts. They are read from devices of "
        "NVIDIA and Mellanox whose firmware lets registers be read by datagrams; of other ports they are "
        "unknown (-). With a TARGET, only those of the target and of nodes at most --hops links away. "
        "If something could not be discovered or read, an error is printed and the exit status is 1. "
        f"{TARGET}. With --load and no --device nothing is sent; the file is one of txrdma snapshot."
    )
    optFlags = [
        ["known", None, "Only ports whose cable is known."],
        ["csv", None, "Print comma-separated values."],
    ]


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma cables}: print a row for each end of a cable."""
    with asking(reactor, options, needsTables=True) as session:
        names = session.names
        fabric = names.put(await swept(session))
        nodes = fabric.ordered()
        with ProgressBar("reading cables") as progress:
            cables = await cablesOf(
                *(session.readings, session.endPort, nodes, options["outstanding"], progress, fabric.problems)
            )
        known = {guid: None for guid, _number in cables}
        await dropMoved(session, fabric, known)  # LIDs may have been assigned anew since the sweep
    rows = [
        cableRow(port, cable, lambda node: names.name(node.guid, node.description))
        for port in cablePorts(nodes)
        for cable in [cables.get((port.node.guid, port.number)) if port.node.guid in known else None]
        if cable is not None or not options["known"]
    ]
    printRows(CABLE_COLUMNS, rows, options)
    endWith(fabric)
