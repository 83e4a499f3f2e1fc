"""Formats a fabric as a graph for Graphviz' C{dot}."""

from __future__ import annotations

from collections.abc import Iterator

from txrdma.commands.formats.ibnetdiscover import rate
from txrdma.fabric.chassis import chassis
from txrdma.fabric.model import Fabric
from txrdma.fabric.nodenames import NodeNames
from txrdma.iba.verbs import NodeType, PortState


def dotText(fabric: Fabric, names: NodeNames) -> Iterator[str]:
    """
    Yield the lines of a graph for C{dot}.

    Switches are boxes, links are labelled with ports and rate, inactive links are dashed, and the nodes of a
    chassis are framed.
    """
    yield "graph fabric {"
    yield "  rankdir=BT; ranksep=2; nodesep=0.2;"
    yield '  node [fontname="sans-serif"]; edge [fontname="sans-serif", fontsize=8];'
    for each in chassis(fabric):
        label = _quoted(f"{each.kind or 'chassis'} {each.number}")
        yield f'  subgraph cluster_{each.number} {{ label="{label}";'
        yield from (f'    "{node.guid}";' for node in each.nodes)
        yield "  }"
    for node in fabric.ordered():
        shape = "box" if node.isSwitch else "ellipse" if node.type is NodeType.CHANNEL_ADAPTER else "diamond"
        label = f"{_quoted(names.name(node.guid, node.description))}\\nlid {node.lid}"
        yield f'  "{node.guid}" [label="{label}", shape={shape}];'
    for one, other in sorted(fabric.links(), key=lambda link: (link[0].node.guid.raw, link[0].number)):
        low, high = (other, one) if one.node.isSwitch and not other.node.isSwitch else (one, other)
        style = "" if one.state is PortState.ACTIVE else ", style=dashed"
        yield (
            f'  "{low.node.guid}" -- "{high.node.guid}" [taillabel="{low.number}", '
            f'headlabel="{high.number}", label="{rate(low)}"{style}];'
        )
    yield "}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
