"""
Fuzz targets of parsers of text: net files, paths, node names, thresholds, snapshots and port strings.

Each parser raises its documented error for a text that it cannot read, and no other exception.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
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
from txrdma.sim.netfabrics import readFabric
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.nets.netfile import parseNet
from txrdma.sim.strings import parsed

_ATTRIBUTES = (smp.PortInfo, smp.NodeInfo, sa.PathRecord, sa.NodeRecord, pma.PortCounters, smp.PKeyTable)


def _textTarget(run: Callable[[str], None], seeds: Iterable[str]) -> Target:
    """Return a target whose input and seeds are UTF-8 text."""
    return Target(
        lambda content: run(content.decode("utf-8", "replace")), lambda: (text.encode() for text in seeds)
    )


def _net(text: str) -> None:
    """A net file has the same nodes after writing and parsing it again."""
    try:
        net = parseNet(text)
    except ValueError:
        return
    again = parseNet(net.text())
    if again.nodes != net.nodes:
        raise AssertionError(f"{net.text()} became {again.text()}")


def _netFabric(text: str) -> None:
    """The fabric of a net file is equal after converting it to JSON and back."""
    try:
        fabric = readFabric(text)
    except ValueError:
        return
    _checkSnapshot(fabric)


def _snapshot(text: str) -> None:
    """The fabric of a snapshot is equal after converting it to JSON and back."""
    try:
        snapshot = json.loads(text)
    except (ValueError, RecursionError):
        return
    try:
        fabric = load(snapshot)
    except ValueError:
        return
    _checkSnapshot(fabric)


def _checkSnapshot(fabric: Fabric) -> None:
    snapshot = dump(fabric)
    again = dump(load(json.loads(json.dumps(snapshot))))
    if again != snapshot:
        raise AssertionError(f"{snapshot} became {again}")


def _path(text: str) -> None:
    """A path or an address of a port is equal after formatting and parsing it again."""
    for parse in (parseTarget, IBPath.fromString, IBDRPath.fromString):
        try:
            value: Any = parse(text)
        except ValueError:
            continue
        if isinstance(value, IBPath):
            again = [parse(repr(value)), type(value).fromString(str(value))]
        else:
            again = [parse(str(value))]
        if any(one != value for one in again):
            raise AssertionError(f"{value!r} became {again!r}")


def _nodeNames(text: str) -> None:
    """Every name of a node name map is found by its GUID, and every GUID by its name."""
    try:
        known = parseNodeNames(text)
    except InvalidRequest:
        return
    for guid, name in known.names.items():
        if not name or not list(known.guids(name)) or known.name(guid) != name:
            raise AssertionError(f"{guid} has the name {name!r}, but the lookups disagree")


def _thresholds(text: str) -> None:
    """Thresholds can be compared with counters."""
    try:
        limits = parseThresholds(text)
    except InvalidRequest:
        return
    limits.exceeded(pma.PortCounters(symbolErrorCounter=7))


def _portString(text: str) -> None:
    """The parser of strings of simulated fabrics accepts a text or raises ValueError."""
    words = text.split(":")
    arguments = [word for word in words if "=" not in word]
    keys = dict(word.split("=", 1) for word in words if "=" in word)
    with suppress(ValueError):
        parsed(*arguments, **keys)


def _fields(text: str) -> None:
    """A structure with fields assigned by C{name=value} is equal after encoding and decoding."""
    pairs = [(name, value) for name, _, value in (word.partition("=") for word in text.split())]
    for kind in _ATTRIBUTES:
        try:
            value = assigned(kind, pairs)
        except InvalidRequest:
            continue
        if kind.decode(value.encode()) != value:
            raise AssertionError(f"{value!r} is another value after encoding and decoding")


_NODE_NAMES = '0x2c9000100d050 "leaf 3"\n# none\n12 a b\n'
_THRESHOLDS = "PortXmitDiscards=100 # many\nSymbolErrors=0x10\n"
_PORT_STRINGS = ("fattree:128:latency=0.1:dead=a+b:lmc=2", "node:socket=x:sm=yes", "a.net")
_FIELDS = ("lid=7 portState=ACTIVE", "pkeys[3]=0x8001 dgid=fe80::1", "numPorts=2", "noSuchField=1")
_PATHS = (
    *("7", "lid 0x7", "fe80::2:c903:1:2", "0x0002c90300010002", "DR 0,1,3", "0,1,3", "10.0.0.2"),
    *("lid 7 sl 3 dqpn 1 pkey 0xffff one-way", "DR 0,1 slid 4 dlid 5", "fe80::1%mlx5_0/1"),
    *(str(IBPath()), str(IBDRPath()), repr(IBPath()), repr(IBDRPath(drPath=(1, 2)))),
)
_NETS = (
    fatTree(16).text(),
    'vendid=0x8f1\ndevid=0x1234\nswitchguid=0x2\nSwitch 4 "S-2" # "x" lid 2 lmc 0\n[1] "H-1"[1] w=4\n',
    'Hca 2 "H-1" # "a"\n[1](1) "S-2"[1] s=4 e=1\n\nSwitch 3 "S-2"\n[1] "H-1"[1]\n[2] "S-2"[3]\n',
    'Switch 999 "S-3"\n',  # too many ports
    'Switch 2 "S-3"\nSwitch 2 "S-3"\n',  # an identifier twice
)
_SNAPSHOTS = [json.dumps(dump(fabric)) for fabric in (readFabric(fatTree(4).text()), Fabric())]

TARGETS = {
    "net file": _textTarget(_net, _NETS),
    "net file's fabric": _textTarget(_netFabric, _NETS),
    "snapshot": _textTarget(_snapshot, _SNAPSHOTS),
    "path": _textTarget(_path, _PATHS),
    "node names": _textTarget(_nodeNames, (_NODE_NAMES,)),
    "thresholds": _textTarget(_thresholds, (_THRESHOLDS,)),
    "port string": _textTarget(_portString, _PORT_STRINGS),
    "fields": _textTarget(_fields, _FIELDS),
}
