"""
Parser of the strings of simulated management ports (C{sim...}), which makes simulated fabrics.

Twisted loads this module whenever it searches for port plugins, so it imports little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TYPE_CHECKING

from zope.interface import implementer

from twisted.plugin import IPlugin

from txrdma.error import InvalidRequest
from txrdma.interfaces import IMADPort, IMADPortStringParser
from txrdma.kit.strings import Arguments

if TYPE_CHECKING:
    from txrdma.fabric.recording import Recording
    from txrdma.sim.fabric.fabric import SimulatedFabric
    from txrdma.sim.nets.netfile import Net

DEFAULT: tuple[str, ...] = ("fattree", "16")

_MOST_PER_SECOND = 2.0**64
"""Upper bound of the rates of counters, which have at most 64 bits."""


class SimulatedFabricOptions(NamedTuple):
    """Settings of a fabric in a string, without the node to attach to: equal settings share one fabric."""

    shape: tuple[str, ...]
    latency: float
    jitter: float
    loss: float
    seed: int
    dead: tuple[str, ...]
    traffic: float
    errors: float
    managed: bool
    manager: str
    standby: str
    lmc: int
    fdr10: bool
    modules: bool


@implementer(IPlugin, IMADPortStringParser)
class SimulatedPortStringParser:
    """
    C{sim}, C{sim:fattree:HOSTS}, C{sim:fattree:HOSTS:RADIX} or C{sim:FILE}, a net file or a snapshot.

    Keys are:

      - C{node}: the node to attach to, by its identifier, or C{NODE/PORT}; by default the first host, or
        that which made the snapshot
      - C{latency}: seconds from a request to its answer
      - C{jitter}: maximum of the random addition to the latency, in seconds
      - C{loss}: probability that a datagram is lost; C{seed} determines which are lost
      - C{dead}: nodes that answer nothing, separated by C{+}
      - C{managed}: C{no} for a fabric without a subnet manager, in which there are no LIDs
      - C{manager}: the node of the subnet manager; the last host by default
      - C{standby}: the node of a standby subnet manager
      - C{lmc}: LMC of hosts, which have two to the power of LMC LIDs
      - C{traffic}: words per second in each direction of a link, on average
      - C{errors}: symbol errors per second at each end of a link, on average
      - C{fdr10}: C{yes} if all links run at FDR10
      - C{modules}: C{yes} if all cables can be read, as at devices of NVIDIA

    Ports whose strings differ only in the node share one fabric, if one process opens them with one reactor.
    """

    prefix = "sim"

    def parsePort(self, reactor: Any, *args: str, **kwargs: str) -> IMADPort:
        node, options = parsed(*args, **kwargs)
        key = (reactor, options)
        holding = _held.get(key)
        if holding is None:
            holding = _held[key] = _Holding(_fabric(reactor, options), set())
        name, _, number = node.partition("/")
        try:
            port = holding.fabric.attach(name, int(number) if number else None)
        except BaseException:
            if not holding.ports:
                del _held[key]
                holding.fabric.close()
            raise
        port.name = ":".join(("sim", *args)) + (f":node={node}" if node and len(args) < 4 else "")
        holding.ports.add(port)

        def closed() -> None:
            holding.ports.discard(port)
            if not holding.ports:
                del _held[key]
                holding.fabric.close()

        port.whenClosed(closed)
        return port

    def available(self) -> Sequence[str]:
        return ["sim"]


class _Holding(NamedTuple):
    """A fabric, and its open ports."""

    fabric: SimulatedFabric
    ports: set[IMADPort]


_held: dict[tuple[object, SimulatedFabricOptions], _Holding] = {}


def fabricOf(port: IMADPort) -> SimulatedFabric:
    """Return the fabric of a port that was opened by a string."""
    return next(holding.fabric for holding in _held.values() if port in holding.ports)


def parsed(*args: str, **kwargs: str) -> tuple[str, SimulatedFabricOptions]:
    """
    Return the node and the fabric's settings in a string.

    @raise ValueError: the string has an unknown key, or a wrong value.
    """
    if len(args) > (3 if args[:1] == ("fattree",) else 1):
        raise ValueError(f"sim:{':'.join(args)}: too many arguments; a fabric is fattree:HOSTS:RADIX or FILE")
    arguments = Arguments("sim", (), (), kwargs)
    node = arguments.take("node")
    if not (node.partition("/")[2] or "0").isdecimal():
        raise ValueError(f"sim: node={node}: the text after the slash is not a port number")
    options = SimulatedFabricOptions(
        shape=args or DEFAULT,
        latency=arguments.seconds("latency", 0.0, True),
        jitter=arguments.seconds("jitter", 0.0, True),
        loss=_rate(arguments, "loss", 1),
        seed=arguments.number("seed", 0, 0, 2**64),
        dead=tuple(filter(None, arguments.take("dead").split("+"))),
        traffic=_rate(arguments, "traffic", _MOST_PER_SECOND),
        errors=_rate(arguments, "errors", _MOST_PER_SECOND),
        managed=arguments.isYes("managed", True),
        manager=arguments.take("manager"),
        standby=arguments.take("standby"),
        lmc=arguments.number("lmc", 0, 0, 7),
        fdr10=arguments.isYes("fdr10", False),
        modules=arguments.isYes("modules", False),
    )
    arguments.end()
    return node, options


def _rate(arguments: Arguments, key: str, most: float) -> float:
    text = arguments.take(key, "0")
    try:
        rate = float(text)
    except ValueError:
        rate = -1
    if not 0 <= rate <= most:
        raise ValueError(f"sim: {key}={text} is not a number from 0 to {most:g}")
    return rate


def _fabric(reactor: Any, options: SimulatedFabricOptions) -> SimulatedFabric:
    from txrdma.sim.fabric.fabric import SimulatedFabric
    from txrdma.sim.twin import Twin

    conditions: dict[str, Any] = {
        "latencySeconds": options.latency,
        "jitterSeconds": options.jitter,
        "loss": options.loss,
        "seed": options.seed,
        "isManaged": options.managed,
    }
    recording = recordingIn(options.shape)
    fabric: SimulatedFabric
    if recording is not None:
        if options.manager or options.lmc:
            raise ValueError("sim: manager and lmc are those of the snapshot")
        fabric = Twin(reactor, [recording], **conditions)
    else:
        fabric = SimulatedFabric(
            *(reactor, netOf(options.shape)), managerAt=options.manager, lmc=options.lmc, **conditions
        )
    try:
        if options.standby:
            fabric.standBy(options.standby)
        for name in options.dead:
            fabric.silence(name)
    except BaseException:
        fabric.close()
        raise
    if options.fdr10:
        fabric.runFDR10()
    if options.modules:
        fabric.haveModules()
    if options.traffic:
        fabric.traffic(options.traffic, options.traffic / 256)
    if options.errors:
        fabric.errors(options.errors)
    return fabric


def recordingIn(shape: Sequence[str]) -> Recording | None:
    """
    Return the snapshot of the file that the positional arguments name; None if it is no snapshot.

    @raise ValueError: the file is a snapshot that cannot be used.
    """
    from txrdma.fabric.snapshots import parseRecording
    from txrdma.fabric.texts import readText

    if shape[0] == "fattree":
        return None
    try:
        return parseRecording(readText("sim", shape[0]))
    except InvalidRequest:
        return None  # the reader of net files reports it
    except ValueError as error:
        raise ValueError(f"sim:{shape[0]}: {error}") from error


def netOf(shape: Sequence[str]) -> Net:
    """
    Return the net of the fabric that the positional arguments describe.

    @raise ValueError: an argument is invalid, or the file is invalid or cannot be read.
    """
    from txrdma.sim.nets.fattree import fatTree
    from txrdma.sim.nets.netfile import parseNet

    if shape[0] == "fattree":
        if not all(each.isdecimal() for each in shape[1:]):
            raise ValueError(f"sim:{':'.join(shape)}: expected the number of hosts and of a switch's ports")
        try:
            return fatTree(*map(int, shape[1:])) if len(shape) > 1 else fatTree(16)
        except ValueError as error:
            raise ValueError(f"sim:{':'.join(shape)}: {error}") from error
    try:
        with open(shape[0], encoding="utf-8-sig", errors="surrogateescape") as file:
            net = parseNet(file.read(), shape[0])
    except OSError as error:
        raise ValueError(f"sim:{shape[0]}: {error.strerror}") from error
    if not net.nodes:
        raise ValueError(f"sim:{shape[0]}: the file has no nodes")
    return net
