"""C{txrdma doctor}: checks this host's configuration, and prints the commands that fix it."""

from __future__ import annotations

from collections.abc import Sequence

from txrdma.commands.common.options import TableOptions
from txrdma.commands.common.rows import printJSON
from txrdma.commands.common.tables import makeTable, show
from txrdma.verify.environment import examine
from txrdma.verify.host import Host
from txrdma.verify.problems import HostProblem


class CommandOptions(TableOptions):
    """Options of C{txrdma doctor}."""

    longdesc = (
        "Check what RDMA needs of this host: kernel modules, device files, links, GIDs and MTUs of ports, "
        "pyverbs, limits of memory and descriptors, socket buffers, and rights. Each problem is printed with "
        "the command that fixes it. Device files are opened and closed; nothing is changed or sent. The exit "
        "status is 1 if something does not work, otherwise 0: hints do not count."
    )
    optFlags = [["quiet", "q", "Leave out hints about speed and optional features."]]


async def run(reactor: object, options: CommandOptions) -> None:
    """Run C{txrdma doctor}; exit with 1 if there is a problem."""
    report(examine(Host()), options)


def report(problems: Sequence[HostProblem], options: CommandOptions) -> None:
    """Print the problems of a host, and exit with 1 if one of them is needed."""
    shown = [each for each in problems if each.isNeeded or not options["quiet"]]
    isWell = not any(each.isNeeded for each in problems)
    if options["json"]:
        printJSON({"isWell": isWell, "problems": [each.asDict() for each in shown]})
    else:
        if shown:
            _showTable(shown)
        print(_summary(problems))
    if not isWell:
        raise SystemExit(1)


def _showTable(problems: Sequence[HostProblem]) -> None:
    from rich.text import Text

    table = makeTable("", "where", "what", "command")
    for each in problems:
        what = Text(each.text).append(f"\n{each.why}", "dim")
        label = Text("problem", "red") if each.isNeeded else Text("hint")
        table.add_row(label, Text(each.where), what, Text(each.fix), end_section=True)
    show(table)


def _summary(problems: Sequence[HostProblem]) -> str:
    needed = sum(each.isNeeded for each in problems)
    hints = len(problems) - needed
    return f"{needed or 'no'} problem{'s' * (needed != 1)}, {hints or 'no'} hint{'s' * (hints != 1)}"
