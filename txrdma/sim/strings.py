"""
Parser of the strings of simulated management ports (C{sim...}), which makes simulated fabrics.

Twisted loads this module whenever it searches for port plugins, so it imports very little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TYPE_CHECKING

from zope.interface import implementer

from twisted.plugin import IPlugin

from txrdma.interfaces import IMADPort, IMADPortStringParser

if TYPE_CHECKING:
    from txrdma.sim.fabric.fabric import SimulatedFabric
    from txrdma.sim.nets.netfile import Net

DEFAULT: tuple[str, ...] = ("fattree", "16")
_FAULTS = ("latency", "jitter", "loss", "seed", "dead", "traffic", "errors")
_MANAGEMENT = ("managed", "manager", "standby", "lmc")
_KEYS = ("node", *_FAULTS, *_MANAGEMENT, "leds", "fdr10")


class FabricOptions(NamedTuple):
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
    leds: bool
    fdr10: bool


@implementer(IPlugin, IMADPortStringParser)
class SimulatedPortStringParser:
    """
    C{sim}, C{sim:fattree:HOSTS}, C{sim:fattree:HOSTS:RADIX} or C{sim:FILE}, a net file.

    Keys are:

      - C{node}: the node to attach to, by its identifier, or C{NODE/PORT}; the first host by default
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
      - C{leds}: C{yes} if all ports have LEDs
      - C{fdr10}: C{yes} if all links run at FDR10

    Ports whose strings differ only in the node share one fabric, if one process opens them with one reactor.
    """

    prefix = "sim"

    def parsePort(self, reactor: Any, *args: str, **kwargs: str) -> IMADPort:
        node, options = understood(*args, **kwargs)
        key = (reactor, options)
        holding = _held.get(key)
        if holding is None:
            holding = _held[key] = _Holding(_fabric(reactor, options))
        name, _, number = node.partition("/")
        try:
            port = holding.fabric.attach(name, int(number) if number else None)
        except BaseException:
            if not holding.ports:
                del _held[key]
                holding.fabric.close()
            raise
        port.name = ":".join(("sim", *args)) + (f":node={node}" if node and len(args) < 4 else "")
        holding.ports += 1

        def closed() -> None:
            holding.ports -= 1
            if not holding.ports:
                del _held[key]
                holding.fabric.close()

        port.whenClosed(closed)
        return port

    def available(self) -> Sequence[str]:
        return ["sim"]


class _Holding:
    """A fabric, and the number of its open ports."""

    def __init__(self, fabric: SimulatedFabric) -> None:
        self.fabric = fabric
        self.ports = 0


_held: dict[tuple[object, FabricOptions], _Holding] = {}


def understood(*args: str, **kwargs: str) -> tuple[str, FabricOptions]:
    """
    Return the node and the fabric's settings in a string.

    @raise ValueError: the string has an unknown key, or a wrong value.
    """
    for key, value in kwargs.items():
        if key not in _KEYS:
            raise ValueError(f"sim: {key}={value} has no meaning here; keys are {', '.join(_KEYS)}")
    if len(args) > (3 if args[:1] == ("fattree",) else 1):
        raise ValueError(f"sim: {args[-1]!r} is one argument too many")
    options = FabricOptions(
        shape=args or DEFAULT,
        latency=_number(kwargs, "latency", float),
        jitter=_number(kwargs, "jitter", float),
        loss=_number(kwargs, "loss", float, 1),
        seed=int(_number(kwargs, "seed", int)),
        dead=tuple(filter(None, kwargs.get("dead", "").split("+"))),
        traffic=_number(kwargs, "traffic", float),
        errors=_number(kwargs, "errors", float),
        managed=_isYes(kwargs, "managed", "yes"),
        manager=kwargs.get("manager", ""),
        standby=kwargs.get("standby", ""),
        lmc=int(_number(kwargs, "lmc", int, 7)),
        leds=_isYes(kwargs, "leds", "no"),
        fdr10=_isYes(kwargs, "fdr10", "no"),
    )
    node = kwargs.get("node", "")
    if not (node.partition("/")[2] or "0").isdigit():
        raise ValueError(f"sim: node={node}: the text after the slash is not a port number")
    return node, options


def _isYes(kwargs: dict[str, str], key: str, otherwise: str) -> bool:
    text = kwargs.get(key, otherwise)
    if text not in ("yes", "no"):
        raise ValueError(f"sim: {key} is yes or no, not {text!r}")
    return text == "yes"


def _number(kwargs: dict[str, str], key: str, kind: type[float], most: float = float("inf")) -> float:
    text = kwargs.get(key, "0")
    try:
        number = kind(text)
    except ValueError:
        number = -1
    if not 0 <= number <= most:
        limit = "" if most == float("inf") else f" from 0 to {most}"
        raise ValueError(f"sim: {key}={text} is no number{limit}")
    return number


def _fabric(reactor: Any, options: FabricOptions) -> SimulatedFabric:
    from txrdma.sim.fabric.fabric import SimulatedFabric

    fabric = SimulatedFabric(
        reactor,
        netOf(options.shape),
        latencySeconds=options.latency,
        jitterSeconds=options.jitter,
        loss=options.loss,
        seed=options.seed,
        isManaged=options.managed,
        managerAt=options.manager,
        lmc=options.lmc,
        hasLEDs=options.leds,
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
    if options.traffic:
        fabric.traffic(options.traffic, options.traffic / 256)
    if options.errors:
        fabric.errors(options.errors)
    return fabric


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
        with open(shape[0], encoding="utf-8") as file:
            return parseNet(file.read(), shape[0])
    except OSError as error:
        raise ValueError(f"sim:{shape[0]}: {error.strerror}") from error
