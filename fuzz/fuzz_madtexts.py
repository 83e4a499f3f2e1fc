"""
Texts and files about fabrics: net files, paths, maps of names, thresholds, snapshots and port strings.

A text that means nothing is the error that each reader promises, whatever it is; nothing else comes out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from harness import Target

from txrdma.commands.common.attributefields import assigned
from txrdma.error import InvalidRequest
from txrdma.fabric.errorcounters import parseThresholds
from txrdma.fabric.model import Fabric
from txrdma.fabric.nodenames import parseNodeNames
from txrdma.fabric.snapshots import dump, load
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.mad.layouts import pma, sa, smp
from txrdma.mad.paths import parseTarget
from txrdma.mad.ports.strings import _understood
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.nets.netfabrics import readFabric
from txrdma.sim.nets.netfile import parseNet
from txrdma.sim.strings import understood

_ATTRIBUTES = (smp.PortInfo, smp.NodeInfo, sa.PathRecord, sa.NodeRecord, pma.PortCounters, smp.PKeyTable)


def _texts(run: Callable[[str], None], seeds: Callable[[], Iterator[str]]) -> Target:
    """Of a reader of texts."""
    return Target(
        lambda content: run(content.decode("utf-8", "replace")), lambda: (text.encode() for text in seeds())
    )


def _net(text: str) -> None:
    """A net file is one when it is written again."""
    try:
        net = parseNet(text)
    except ValueError:
        return
    again = parseNet(net.text())
    if again.nodes != net.nodes:
        raise AssertionError(f"{net.text()} became {again.text()}")


def _netFabric(text: str) -> None:
    """A net file that ibnetdiscover might have written is a fabric, which JSON carries."""
    try:
        fabric = readFabric(text)
    except ValueError:
        return
    told = json.loads(json.dumps(dump(fabric)))
    if dump(load(told)) != dump(fabric):
        raise AssertionError("the fabric is not what it says")


def _snapshot(text: str) -> None:
    """A snapshot is a fabric that says the same."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return
    try:
        fabric = load(told)
    except ValueError:
        return
    said = dump(fabric)
    if dump(load(json.loads(json.dumps(said)))) != said:
        raise AssertionError("the fabric is not what it says")


def _path(text: str) -> None:
    """What names a port, or a path, names the same when it is written and read again."""
    for read in (parseTarget, IBPath.fromString, IBDRPath.fromString):
        try:
            value: Any = read(text)
        except ValueError:
            continue
        if isinstance(value, IBPath):
            again = [read(repr(value)), type(value).fromString(str(value))]
        else:
            again = [read(str(value))]
        if any(one != value for one in again):
            raise AssertionError(f"{value!r} became {again!r}")


def _names(text: str) -> None:
    try:
        known = parseNodeNames(text)
    except InvalidRequest:
        return
    for guid, name in known.names.items():
        if not name or not list(known.guids(name)) or known.name(guid) != name:
            raise AssertionError(f"{guid} is called {name!r}")


def _thresholds(text: str) -> None:
    try:
        limits = parseThresholds(text)
    except InvalidRequest:
        return
    limits.exceeded(pma.PortCounters(symbolErrorCounter=7))


def _portString(text: str) -> None:
    words = text.split(":")
    arguments = [word for word in words if "=" not in word]
    keys = dict(word.split("=", 1) for word in words if "=" in word)
    for read in (understood, _understood):
        try:
            read(*arguments, **keys)
        except ValueError:
            continue


def _fields(text: str) -> None:
    """What is said by C{name=value} is in the structure."""
    pairs = [(name, value) for name, _, value in (word.partition("=") for word in text.split())]
    for kind in _ATTRIBUTES:
        try:
            value = assigned(kind, pairs)
        except InvalidRequest:
            continue
        if kind.decode(value.encode()) != value:
            raise AssertionError(f"{value!r} is not what can be written")


def _nets() -> Iterator[str]:
    yield fatTree(16).text()
    yield 'vendid=0x8f1\ndevid=0x1234\nswitchguid=0x2\nSwitch 4 "S-2" # "x" lid 2 lmc 0\n[1] "H-1"[1] w=4\n'
    yield 'Hca 2 "H-1" # "a"\n[1](1) "S-2"[1] s=4 e=1\n\nSwitch 3 "S-2"\n[1] "H-1"[1]\n[2] "S-2"[3]\n'


def _snapshots() -> Iterator[str]:
    yield json.dumps(dump(readFabric(fatTree(4).text())))
    yield json.dumps(dump(Fabric()))


def _paths() -> Iterator[str]:
    yield from ("7", "lid 0x7", "fe80::2:c903:1:2", "0x0002c90300010002", "DR 0,1,3", "0,1,3", "10.0.0.2")
    yield from (
        "lid 7 sl 3 dqpn 1 pkey 0xffff one-way",
        "DR 0,1 slid 4 dlid 5",
        str(IBPath()),
        str(IBDRPath()),
    )
    yield from (repr(IBPath()), repr(IBDRPath(drPath=(1, 2))), "fe80::1%mlx5_0/1")


TARGETS = {
    "net file": _texts(_net, _nets),
    "net file's fabric": _texts(_netFabric, _nets),
    "snapshot": _texts(_snapshot, _snapshots),
    "path": _texts(_path, _paths),
    "node names": _texts(_names, lambda: iter(('0x2c9000100d050 "leaf 3"\n# none\n12 a b\n',))),
    "thresholds": _texts(_thresholds, lambda: iter(("PortXmitDiscards=100 # many\nSymbolErrors=0x10\n",))),
    "port string": _texts(
        _portString, lambda: iter(("fattree:128:latency=0.1:dead=a+b:lmc=2", "node:socket=x:sm=yes", "a.net"))
    ),
    "fields": _texts(
        _fields,
        lambda: iter(("lid=7 portState=ACTIVE", "pkeys[3]=0x8001 dgid=fe80::1", "numPorts=2")),
    ),
}
