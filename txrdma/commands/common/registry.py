"""
Registry of the commands of C{txrdma}: each is a module of L{txrdma.commands}, imported when it is called.

A new command is one line in L{COMMANDS} and a module of its name (with C{_} for a dash), which has
C{CommandOptions}, a subclass of L{txrdma.commands.common.options.CommandOptions}, and
C{async def run(reactor, options) -> None}. It may also have C{prepare(options)}, which is called before
the reactor is installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Final

from txrdma.commands.common.options import CommandOptions, TableOptions

HERE: Final = "On this host"
MEASURING: Final = "Measuring"
FABRICS: Final = "InfiniBand fabrics"

GROUPS: Final = (HERE, MEASURING, FABRICS)
"""Groups of commands in the order of C{txrdma --help}."""


@dataclass(frozen=True, slots=True)
class Command:
    """The entry of a command: its name, its group in the help, and its one-line summary."""

    name: str
    group: str
    summary: str

    @property
    def moduleName(self) -> str:
        return f"txrdma.commands.{self.name.replace('-', '_')}"

    def load(self) -> ModuleType:
        """
        Import and return the module of the command.

        It defines C{CommandOptions}, and the coroutine C{run(reactor, options)}: an
        L{txrdma.error.RDMAError} of it is printed without a traceback.
        """
        return import_module(self.moduleName)

    def prepare(self, options: CommandOptions) -> None:
        """
        Call the C{prepare} of the module, if it has one, before the reactor is installed.

        If tables will be printed and C{rich} is missing, exit now rather than after the work.
        """
        if isinstance(options, TableOptions) and options.showsTables:
            from txrdma.commands.common.tables import needTables

            needTables()
        prepare = getattr(self.load(), "prepare", None)
        if prepare is not None:
            prepare(options)

    def makeOptions(self) -> CommandOptions:
        """Return a new parser of the command's options."""
        options: CommandOptions = self.load().CommandOptions()
        return options


COMMANDS: Final = (
    Command("doctor", HERE, "Check this host's configuration, with the commands that fix it."),
    Command("connections", HERE, "Live SMC-R and fallback connections on this host."),
    Command("linkgroups", HERE, "Link groups of SMC-R on this host: roles, links, buffers."),
    Command("smc-stats", HERE, "SMC-R statistics of this host: bytes, sizes, waits, fallbacks."),
    Command("smc-option", HERE, "Install SMC's TCP option, for SMC-R with Linux kernels."),
    Command("cm-stats", HERE, "Message counters of communication managers, by kind."),
    Command("btl-stats", HERE, "Counters of the byte transfer layer, named as Open MPI's."),
    Command("btl-run", HERE, "Run a program in processes that form a group, as mpirun."),
    Command("resolve", HERE, "Explain rdma:HOST:PORT or a service ID: device, path, timeouts."),
    Command("devices", HERE, "RDMA devices that can be used on this host."),
    Command("pnet", HERE, "Table of RDMA ports and network interfaces (PNET IDs)."),
    Command("discover", FABRICS, "Nodes, ports and links of a fabric, as ibnetdiscover."),
    Command("nodes", FABRICS, "Hosts, switches and routers of a fabric."),
    Command("links", FABRICS, "Links of a fabric: width, speed, and capability."),
    Command("cables", FABRICS, "Cables and modules: maker, serial, length, temperature, power."),
    Command("check", FABRICS, "Check a whole fabric for faults; for cron."),
    Command("monitor", FABRICS, "Watch the findings and the busiest links of a fabric."),
    Command("fabric-users", FABRICS, "Users and operators of the fabric monitor's pages."),
    Command("errors", FABRICS, "Ports with error counters above their thresholds."),
    Command("snapshot", FABRICS, "Write a fabric with its tables and counters to a file."),
    Command("diff", FABRICS, "Compare two snapshots of a fabric."),
    Command("trace", FABRICS, "Trace the route of packets from port to port, hop by hop."),
    Command("routes", FABRICS, "Forwarding tables of one or all switches."),
    Command("blast-radius", FABRICS, "What is lost without a cable or switch: hosts, paths, jobs."),
    Command("ping", FABRICS, "Ping a host by management datagrams."),
    Command("sysstat", FABRICS, "Query a host's name and processors by management datagrams."),
    Command("saquery", FABRICS, "Query records of the SA (subnet administration)."),
    Command("smpquery", FABRICS, "Query subnet management attributes of a node or a port."),
    Command("perfquery", FABRICS, "Query counters of ports, and their rates."),
    Command("sminfo", FABRICS, "Query or control a subnet manager."),
    Command("portstate", FABRICS, "Show or change the state of a port."),
    Command("decode", FABRICS, "Decode management datagrams and SMC, in hexadecimal or captures."),
    Command("query", FABRICS, "Make any management call, with fields set by name."),
    Command("rehearse", FABRICS, "Rehearse faults and alerts of a fabric in a simulation."),
    Command("demo-fabric", FABRICS, "Demonstrate the fabric monitor on a simulated fabric with faults."),
    Command("verify", MEASURING, "Verify an RDMA device by tests, and write a report."),
    Command("pingpong", MEASURING, "Measure latency and bandwidth over any device."),
    Command("btl-ping", MEASURING, "Measure round trips over the byte transfer layer."),
    Command("rping", MEASURING, "Ping by RDMA reads and writes; interoperates with librdmacm's."),
)


def command(name: str) -> Command:
    """Return the entry of the command with this name, which must exist."""
    return next(each for each in COMMANDS if each.name == name)
