"""Losses as JSON: what a fabric loses without an element, and the ranking of all elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txrdma.fabric.blastradius import Element, JobLoss, Loss, Rank
from txrdma.fabric.model import Node, Port
from txrdma.fabric.nodenames import NodeNames
from txrdma.fabric.slurmjobs import SlurmJob


def elementText(element: Element, names: NodeNames) -> str:
    """Return the name of a node, or the names of both ends of a cable."""
    if isinstance(element, Node):
        return nodeName(element, names)
    peer = element.peer
    there = "" if peer is None else f" to {nodeName(peer.node, names)} port {peer.number}"
    return f"{nodeName(element.node, names)} port {element.number}{there}"


def elementKind(element: Element) -> str:
    """Return the kind of an element: C{"cable"}, C{"switch"} or C{"host"}."""
    if isinstance(element, Port):
        return "cable"
    return "switch" if element.isSwitch else "host"


def elementDict(element: Element, names: NodeNames) -> dict[str, Any]:
    """Return a node or cable for JSON, the latter by the port at one end, with the other end."""
    node = element if isinstance(element, Node) else element.node
    peer = None if isinstance(element, Node) else element.peer
    return {
        "kind": elementKind(element),
        **_node(node, names),
        "port": None if isinstance(element, Node) else element.number,
        "to": None if peer is None else {**_node(peer.node, names), "port": peer.number},
    }


def lossDict(
    elements: Sequence[Element], loss: Loss, names: NodeNames, jobs: Sequence[SlurmJob] = ()
) -> dict[str, Any]:
    """Return what is lost without all of the elements together for JSON."""
    return {
        "without": [elementDict(each, names) for each in elements],
        "cutOff": [_node(each, names) for each in loss.cutOff],
        "switchesCutOff": [_node(each, names) for each in loss.switches],
        "lostPaths": loss.paths,
        "paths": loss.total,
        "mostAffected": [{**_node(host, names), "lostPaths": paths} for host, paths in loss.byHost],
        "lessBandwidth": [
            {
                "links": [_node(each, names) for each in one.nodes],
                "hosts": [_node(each, names) for each in one.hosts],
                "gigabits": one.before,
                "remaining": one.after,
            }
            for one in loss.reduced
        ],
        "jobs": [jobDict(one, jobs[one.job]) for one in loss.jobs],
        "switchesWithoutTables": loss.unread,
    }


def jobDict(loss: JobLoss, job: SlurmJob) -> dict[str, Any]:
    """Return the loss of a job for JSON."""
    return {
        "job": job.identifier,
        "name": job.name,
        "user": job.user,
        "hosts": len(job.hosts),
        "hostsCutOff": loss.cutOff,
        "lostPaths": loss.paths,
        "hostsWithLessBandwidth": loss.reduced,
    }


def rankDict(rank: Rank, names: NodeNames) -> dict[str, Any]:
    """Return an element of a ranking for JSON."""
    return {
        **elementDict(rank.element, names),
        "hostsCutOff": rank.cutOff,
        "jobsCutOff": rank.jobsCutOff,
        "lostPaths": rank.paths,
        "jobsWithLostPaths": rank.jobsWithPaths,
        "hostsWithLessBandwidth": rank.slower,
        "leastBandwidth": rank.share,
    }


def _node(node: Node, names: NodeNames) -> dict[str, Any]:
    return {"guid": str(node.guid), "name": nodeName(node, names)}


def nodeName(node: Node, names: NodeNames) -> str:
    """Return the name of a node, or its GUID if it has none."""
    return names.name(node.guid, node.description) or str(node.guid)
