"""C{txrdma demo-fabric}: demonstrates the fabric monitor on a simulated fabric with faults."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from typing import Any, Final

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.logger import globalLogBeginner, textFileLogObserver
from twisted.python import usage

from txrdma.commands.common.options import CommandOptions as BaseOptions
from txrdma.commands.common.values import count, fileName
from txrdma.kit.serverstrings import isLoopback
from txrdma.monitor.config import MonitorConfig, parseConfig
from txrdma.monitor.configfile import DEFAULT_LISTEN
from txrdma.sim.fabric.fabric import SimulatedFabric
from txrdma.sim.faultgenerator import FaultGenerator
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.nets.netfile import Net
from txrdma.tap.monitor import MonitorService

RADIX: Final = 16
"""Ports of each simulated switch: 128 hosts have 16 leaf switches and 8 spine switches."""

_CONFIG: Final = """
[poll]
interval = 1
sweep = 60
settle = 1
states = 10

[findings]
clear = 20
"""
_LATENCY_SECONDS: Final = 0.0005


class CommandOptions(BaseOptions):
    """Options of C{txrdma demo-fabric}: size, seed, and endpoint of the page."""

    synopsis = "[options]"
    longdesc = (
        "Run the fabric monitor on a simulated fat tree, reading its counters every second, and serve "
        "its pages: a demonstration without hardware. Links flap, hosts fail and hang, and a cable "
        "degrades. Ctrl-C ends it and leaves nothing behind."
    )
    optFlags = [["calm", None, "Traffic without faults."], ["verbose", "v", "Print the log of the monitor."]]
    optParameters = [
        ["hosts", None, 128, "Number of hosts.", count],
        ["seed", None, 1, "Seed of the faults.", count],
        ["listen", "l", DEFAULT_LISTEN, "Server endpoint of the page."],
        ["users", None, "", "File of users, as of fabric-users: operators acknowledge findings.", fileName],
    ]

    def postOptions(self) -> None:
        """Reject impossible sizes, and endpoints other than loopback: the page may have no password."""
        if not isLoopback(self["listen"]):
            raise usage.UsageError(
                f"--listen {self['listen']}: the demonstration is for this host alone, as {DEFAULT_LISTEN}"
            )
        try:
            netOf(self["hosts"])
        except ValueError as error:
            raise usage.UsageError(str(error)) from error


def netOf(hosts: int) -> Net:
    """Return the simulated network, named as in clusters; raise C{ValueError} for too many hosts."""
    net = fatTree(hosts, RADIX if hosts <= RADIX**3 // 4 else 2 * RADIX)
    for identifier, node in net.nodes.items():
        kind = identifier.rstrip("0123456789")
        number = int(identifier[len(kind) :]) + 1
        node.description = f"node{number:03} HCA-1" if kind == "h" else f"{kind}{number:02}"
    return net


def makeService(reactor: Any, config: MonitorConfig, fabric: SimulatedFabric) -> MonitorService:
    """Create the monitor of a simulated fabric, at its first host."""
    return MonitorService(reactor, config, fabric.attach)


def urlOf(address: object) -> str:
    """Return the URL of the page at an address."""
    if isinstance(address, (IPv4Address, IPv6Address)):
        host = f"[{address.host}]" if ":" in address.host else address.host
        return f"http://{host}:{address.port}/"
    return str(address)


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma demo-fabric}: serve the page until Ctrl-C."""
    if options["verbose"]:
        globalLogBeginner.beginLoggingTo([textFileLogObserver(sys.stdout)], redirectStandardIO=False)
    fabric = SimulatedFabric(reactor, netOf(options["hosts"]), latencySeconds=_LATENCY_SECONDS)
    with tempfile.TemporaryDirectory(prefix="demo-fabric-") as folder:
        fabric.correct()  # HDR links always have FEC
        fabric.haveModules()
        history = os.path.join(folder, "history.db")
        own = {"history": history, "listen": options["listen"], "users": options["users"]}
        config = replace(parseConfig(_CONFIG), **own)
        service = makeService(reactor, config, fabric)
        faults = FaultGenerator(fabric, options["seed"])
        service.startService()
        ended: Deferred[None] = Deferred()
        reactor.addSystemEventTrigger("before", "shutdown", lambda: ended)  # wait for the history's thread
        try:
            faults.start(hasFaults=not options["calm"])
            where = await service.address()
            print(f"The page is at {urlOf(where)} and Ctrl-C ends it.", flush=True)
            await Deferred()
        finally:
            faults.stop()
            await service.stopService()
            fabric.close()
            ended.callback(None)
