"""
Export of a fabric to Slurm's C{topology.conf} or C{topology.yaml}: switches with the hosts or switches below.

Follows topology.conf(5): a line has either C{Nodes} or C{Switches}, each name is defined once, and a job can
only span hosts that lines connect. The tree of topology.yaml(5) is the same, and its blocks are the leaves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from txrdma.fabric.model import Fabric, Node
from txrdma.fabric.nodenames import NodeNames
from txrdma.iba.verbs import NodeType
from txrdma.kit.graphs import distances

ROOT: Final = "fabric"
"""Name of the virtual switch that joins switches without a common switch above them."""

_LONGEST: Final = 63
"""Largest length of a switch name."""

MOST_NAMES: Final = 1_000_000
"""Largest number of names in a host list that is read."""

AGGREGATION: Final = "Aggregation Node"
"""Description of the aggregation node of a SHARP switch: a channel adapter that is not a host."""


def slurmText(fabric: Fabric, names: NodeNames) -> Iterator[str]:
    """
    Return the lines of a fabric's C{topology.conf}.

    A host is named by the first word of its description, which normally is the host name. Every switch with
    hosts is a leaf. If no switch is above all leaves that can reach each other, a virtual switch joins them.
    """
    for name, isLeaf, below in _tree(fabric, names):
        yield f"SwitchName={name} {'Nodes' if isLeaf else 'Switches'}={hostList(below)}"


def slurmYAML(fabric: Fabric, names: NodeNames) -> Iterator[str]:
    """
    Return the lines of a fabric's C{topology.yaml}, for Slurm 25.05 and later.

    It has two topologies: C{tree}, the default, with the switches of L{slurmText}, and C{block}, whose blocks
    have the hosts of a leaf each. A host at several leaves is in the block of the first.
    """
    yield from ("- topology: tree", "  cluster_default: true", "  tree:", "    switches:")
    blocks: list[tuple[str, list[str]]] = []
    taken: set[str] = set()
    for name, isLeaf, below in _tree(fabric, names):
        yield f"      - switch: {json.dumps(name)}"
        yield f"        {'nodes' if isLeaf else 'children'}: {json.dumps(hostList(below))}"
        if isLeaf and (hosts := sorted(set(below) - taken)):
            blocks.append((name, hosts))
            taken.update(hosts)
    if blocks:
        yield from ("- topology: block", "  cluster_default: false", "  block:")
        yield f"    block_sizes: [{min(len(hosts) for _name, hosts in blocks)}]"
        yield "    blocks:"
    for name, hosts in blocks:
        yield f"      - block: {json.dumps(name)}"
        yield f"        nodes: {json.dumps(hostList(hosts))}"


def _tree(fabric: Fabric, names: NodeNames) -> Iterator[tuple[str, bool, list[str]]]:
    """Return each switch, whether it is a leaf, and the names of the hosts or switches below it."""
    called = _called(fabric, names)
    levels = _levels(fabric)
    children: dict[Node, set[Node]] = {}
    for node in sorted(levels, key=lambda node: (levels[node], called[node])):
        peers = node.peers()
        if levels[node] == 0:
            children[node] = set()
            yield called[node], True, [_hostCalled(peer, names) for peer in peers if isHost(peer)]
            continue
        below = {peer for peer in peers if peer.isSwitch and levels.get(peer, levels[node]) < levels[node]}
        children[node] = below
        yield called[node], False, [called[peer] for peer in below]
    taken = {called[node] for node in levels}
    for tops in _apart(children):
        name = _free(ROOT, taken)
        yield name, False, [called[node] for node in tops]


def isHost(node: Node) -> bool:
    """Return whether jobs can run on a node: it is a channel adapter and not a SHARP aggregation node."""
    isAdapter = not node.isSwitch and node.type is NodeType.CHANNEL_ADAPTER
    return isAdapter and AGGREGATION not in node.description


def hostName(description: str) -> str:
    """Return the first word of a description as a host name valid for Slurm; C{""} if there is none."""
    return re.sub(r"[^\w.-]", "_", (description.split() or [""])[0])


def _called(fabric: Fabric, names: NodeNames) -> dict[Node, str]:
    """Return the names of all switches, valid for Slurm. A GUID is appended to duplicate ones."""
    found: dict[Node, str] = {}
    taken: set[str] = set()
    for node in sorted(fabric.switches(), key=lambda node: node.guid.raw):
        name = names.name(node.guid, node.description)
        name_ = re.sub(r"[^\w.-]+", "_", name.strip())[:_LONGEST] or f"S-{node.guid.raw.hex()}"
        if name_ in taken:
            name_ = f"{name_[: _LONGEST - 17]}-{node.guid.raw.hex()}"
        taken.add(name_)
        found[node] = name_
    return found


def _hostCalled(node: Node, names: NodeNames) -> str:
    return hostName(names.name(node.guid, node.description)) or node.guid.raw.hex()


def _free(name: str, taken: set[str]) -> str:
    number = 1
    name_ = name
    while name_ in taken:
        number += 1
        name_ = f"{name}{number}"
    taken.add(name_)
    return name_


def _levels(fabric: Fabric) -> dict[Node, int]:
    """Return the level of each switch: its distance in links from the nearest switch with hosts."""
    return distances((node for node in fabric.switches() if any(map(isHost, node.peers()))), _switchesBeside)


def _switchesBeside(node: Node) -> list[Node]:
    return [peer for peer in node.peers() if peer.isSwitch]


def _apart(children: dict[Node, set[Node]]) -> Iterator[list[Node]]:
    """Return the highest switches of each connected group that has no switch above all its leaves."""
    waiting = dict.fromkeys(children)
    while waiting:
        group = distances([next(iter(waiting))], _switchesBeside)
        here = [node for node in children if node in group]
        for node in here:
            del waiting[node]
        leaves = {node for node in here if not children[node]}
        if all(_below(node, children) != leaves for node in here):
            under = set().union(*(children[node] for node in here))
            yield [node for node in here if node not in under]


def _below(node: Node, children: dict[Node, set[Node]]) -> set[Node]:
    """Return the leaves below a switch, or the switch itself if it is a leaf."""
    return {each for each in distances([node], children.__getitem__) if not children[each]}


def hostList(names: Iterable[str]) -> str:
    """Return names as a Slurm host list: C{"h[00000-00017],login1"}."""
    groups: dict[tuple[str, int], list[int]] = {}
    others = []
    for name in sorted(set(names)):
        match = re.fullmatch(r"(.+?)([0-9]{1,18})", name)
        if match is None:
            others.append(name)
        else:
            groups.setdefault((match[1], len(match[2])), []).append(int(match[2]))
    name_ = []
    for (prefix, width), numbers in groups.items():
        spans = [
            f"{low:0{width}}" if low == high else f"{low:0{width}}-{high:0{width}}"
            for low, high in _spans(sorted(numbers))
        ]
        isOne = len(spans) == 1 and "-" not in spans[0]
        name_.append(prefix + (spans[0] if isOne else f"[{','.join(spans)}]"))
    return ",".join(name_ + others)


def hostNames(text: str) -> list[str]:
    """
    Return the names in a Slurm host list, as C{"h[0-3,7],rack[1-2]n[01-16],login1"}.

    @raise ValueError: the list is not valid, or has more than L{MOST_NAMES} names.
    """
    if re.search(r"[\[\]]", re.sub(r"\[[^\[\]]*\]", "", text)):
        raise ValueError(f"the host list {text[:_LONGEST]} has a bracket without the other")
    names: list[str] = []
    for entry in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text):
        found = [""]
        for plain, several in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", entry):
            parts = [plain] if plain else [number for part in several.split(",") for number in _numbers(part)]
            if len(names) + len(found) * len(parts) > MOST_NAMES:
                raise ValueError(f"the host list {text[:_LONGEST]} has more than {MOST_NAMES} names")
            found = [before + part for before in found for part in parts]
        names += found
    return names


def _numbers(part: str) -> list[str]:
    """Return the numbers of a part of a host list, as C{"07-09"}, with leading zeros."""
    match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part.strip())
    low, high = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
    if match is None or not low <= high < low + MOST_NAMES:
        raise ValueError(f"{part!r} is not a range of a host list")
    return [f"{number:0{len(match[1])}}" for number in range(low, high + 1)]


def _spans(numbers: list[int]) -> Iterator[tuple[int, int]]:
    low = high = numbers[0]
    for number in numbers[1:]:
        if number != high + 1:
            yield low, high
            low = number
        high = number
    yield low, high
