"""
The report of this process to tools: its connections, link groups and statistics, as values for JSON.

C{smcr linkgroup} and C{smcr link -d} show the same for the kernel's link groups.
"""

from __future__ import annotations

from txrdma.kit.connectionlog import describe
from txrdma.smc.group.group import LinkGroup
from txrdma.smc.group.groups import everyGroup
from txrdma.smc.group.link import Link
from txrdma.smc.status.statistics import statistics
from txrdma.smc.stream.connectionstatus import statuses
from txrdma.smc.wire.clc import enterpriseName


def describeGroup(group: LinkGroup) -> dict[str, object]:
    """Describe a link group: role, terms, links, and the use of its buffers."""
    agreement, core = group.agreement, group.core
    members = group.streams()
    return {
        "name": group.name,
        "role": group.key.role.value,
        "state": core.state,
        "version": agreement.version,
        "release": agreement.release,
        "eid": enterpriseName(agreement.eid),
        "isDirect": agreement.isDirect,
        "peer": describe(members[0].peer) if members else "",
        "peerID": group.key.peerID.hex(),
        "connections": len(core.connections),
        "maxConnections": agreement.maxConnections,
        "maxLinks": agreement.maxLinks,
        "links": [describeLink(link) for link in group.links],
        "buffers": [
            {
                "rkey": int(buffer.rkey),
                "elementSize": buffer.size,
                "elements": buffer.count,
                "used": buffer.used,
                "isKnownToPeer": buffer.isAgreed,
            }
            for buffer in group.pool
        ],
    }


def describeLink(link: Link) -> dict[str, object]:
    """Describe a link of a group: its two ends, its state, and the number of messages sent."""
    life, candidate = link.life, link.port.candidate
    remote = life.remote
    return {
        "number": life.number,
        "state": life.state,
        "device": link.device,
        "port": candidate.port,
        "route": link.route,
        "mtu": candidate.mtu.bytes,
        "connections": len(link.members),
        "gid": str(candidate.gid),
        "mac": str(candidate.mac),
        "qpn": int(link.qpn),
        "peerGID": "" if remote is None else str(remote.gid),
        "peerMAC": "" if remote is None else str(remote.mac),
        "peerQPN": 0 if remote is None else int(remote.qpn),
        "messagesSent": link.scheduler.queue.sent,
    }


def report() -> dict[str, object]:
    """Return connections, link groups and statistics of this process."""
    return {
        "connections": [status.toDict() for status in statuses()],
        "linkGroups": [describeGroup(group) for group in everyGroup()],
        "statistics": statistics(),
    }
