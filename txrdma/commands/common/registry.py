"""
Registry of the commands of C{txrdma}: each is a module of this room, imported when it is called.

A new command is one line in L{COMMANDS} and a module of its name (a dash is written C{_}), which has
C{CommandOptions}, a subclass of L{txrdma.commands.common.options.CommandOptions}, and
C{async def run(reactor, options) -> None}. It may have C{prepare(options)}, too, which is called before
there is a reactor.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast, Final, Protocol

from twisted.internet.defer import Deferred

from txrdma.commands.common.options import CommandOptions, TableOptions

HERE: Final = "On this host"
MEASURING: Final = "Measuring"
FABRICS: Final = "InfiniBand fabrics"

GROUPS: Final = (HERE, MEASURING, FABRICS)
"""Groups of commands in the order of C{txrdma --help}."""


class CommandModule(Protocol):
    """Names that the module of a command defines."""

    CommandOptions: type[CommandOptions]

    @staticmethod
    def run(reactor: Any, options: Any) -> Coroutine[Deferred[Any], Any, None]:
        """
        Carry out the command; an L{txrdma.error.RDMAError} is printed without a traceback.

        @param reactor: L{IReactor<txrdma.commands.common.options.IReactor>}, or as much of it as the command
            uses.
        @param options: the module's C{CommandOptions}.
        """


@dataclass(frozen=True, slots=True)
class Command:
    """Entry of a command: its name, the group that the help lists it in, and its summary in one line."""

    name: str
    group: str
    summary: str

    @property
    def moduleName(self) -> str:
        return f"txrdma.commands.{self.name.replace('-', '_')}"

    def load(self) -> CommandModule:
        """The module of the command, imported."""
        return cast(CommandModule, import_module(self.moduleName))

    def prepare(self, options: CommandOptions) -> None:
        """
        Do what must precede the reactor: C{prepare} of the module, if it has one.

        Ends the program where tables will be printed and C{rich} is missing, not only after the work is done.
        """
        if isinstance(options, TableOptions) and options.showsTables:
            from txrdma.commands.common.tables import needTables

            needTables()
        prepare = getattr(self.load(), "prepare", None)
        if prepare is not None:
            prepare(options)

    def makeOptions(self) -> CommandOptions:
        """A new parser of the command's own command line."""
        return self.load().CommandOptions()


COMMANDS: Final = (
    Command("connections", HERE, "Live SMC-R and fallback connections on this host."),
    Command("linkgroups", HERE, "Link groups of SMC-R on this host: roles, links, buffers."),
    Command("smc-stats", HERE, "What SMC-R has done on this host: bytes, sizes, waiting, fallbacks."),
    Command("smc-option", HERE, "SMC's TCP option, for speaking SMC-R to Linux kernels."),
    Command("cm-stats", HERE, "Messages of communication managers: sent, received, repeated, by kind."),
    Command("btl-stats", HERE, "Counters of the byte transfer layer, by the names of Open MPI's component."),
    Command("resolve", HERE, "What rdma:HOST:PORT or a service id means: device, path, timeouts."),
    Command("devices", HERE, "RDMA devices that could be used here."),
    Command("pnet", HERE, "Which RDMA ports go with which network interfaces."),
    Command("discover", FABRICS, "What a fabric consists of: nodes, ports, links."),
    Command("nodes", FABRICS, "Hosts, switches and routers of a fabric."),
    Command("links", FABRICS, "Links of a fabric: width, speed, and which could be better."),
    Command("check", FABRICS, "Whether a whole fabric is as it should be; for cron."),
    Command("monitor", FABRICS, "Findings and busiest links of a fabric, as they come and go."),
    Command("errors", FABRICS, "Ports that have counted too many errors."),
    Command("diff", FABRICS, "What has changed between two snapshots of a fabric."),
    Command("trace", FABRICS, "The way of packets from port to port, hop by hop."),
    Command("routes", FABRICS, "Forwarding tables of one or all switches."),
    Command("ping", FABRICS, "Whether a host answers management datagrams, and how fast."),
    Command("sysstat", FABRICS, "A host's name and processors, by management datagrams."),
    Command("saquery", FABRICS, "Records of the SA (subnet administration), by any component."),
    Command("smpquery", FABRICS, "What a node or a port tells by subnet management."),
    Command("perfquery", FABRICS, "What ports have counted, and at what rate."),
    Command("sminfo", FABRICS, "What the subnet's manager says of itself."),
    Command("portstate", FABRICS, "State of a port: to see, enable, disable, reset."),
    Command("decode", FABRICS, "Management datagrams and SMC explained, from hexadecimal or a capture."),
    Command("query", FABRICS, "Any call to any port, with any field set by name."),
    Command("demo-fabric", FABRICS, "The fabric monitor and its page on a simulated fabric with faults."),
    Command("pingpong", MEASURING, "Latency and bandwidth between two ends, over any device."),
    Command("btl-ping", MEASURING, "Round trips of messages by the byte transfer layer."),
    Command("rping", MEASURING, "Pings by RDMA reads and writes, with librdmacm's rping or with itself."),
)


def command(name: str) -> Command:
    """Entry of the command with this name, which exists."""
    return next(each for each in COMMANDS if each.name == name)
