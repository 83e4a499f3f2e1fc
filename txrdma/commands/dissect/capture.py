"""Decodes the packets of a capture, and presents its SMC conversations as lines or JSON."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from txrdma.commands.common.packets import networkPacket
from txrdma.commands.dissect.conversation import (
    CLIENT,
    DissectedConnection,
    DissectedConversation,
    DissectedEvent,
    SERVER,
)
from txrdma.commands.dissect.tcp import segmentIn
from txrdma.commands.dissect.words import amount
from txrdma.error import WireError
from txrdma.iba.captures import Captured
from txrdma.iba.headers import GRH
from txrdma.iba.internet import ETHERTYPE_IPV4, ETHERTYPE_IPV6
from txrdma.iba.pcap import CapturedDatagram, LinkType
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.types import GID
from txrdma.kit.wire import Layout
from txrdma.mad.layouts.attributes import plain
from txrdma.soft.core.netdev import isRoCE

_BTH_NEXT = 0x1B
_IP_ADDRESSES = {4: (12, 16, 20), 6: (8, 24, 40)}


class PacketEvent(NamedTuple):
    """
    An event and its packet.

    @ivar number: number of the packet, from 1.
    @ivar when: seconds since the first packet of the capture.
    """

    number: int
    when: float
    event: DissectedEvent


class Explanation:
    """
    The SMC conversations of one capture.

    @ivar conversation: the state of connections and links.
    @ivar events: events in the order of the capture.
    """

    def __init__(self) -> None:
        self.conversation = DissectedConversation()
        self.events: list[PacketEvent] = []
        self._began: float | None = None
        self._number = 0

    def add(self, packet: Captured) -> None:
        """Decode the next packet; packets that are truncated or do not belong to SMC are ignored."""
        self._number += 1
        if self._began is None:
            self._began = packet.when
        try:
            events = self._decode(packet)
        except WireError:
            return
        when = packet.when - self._began
        self.events += (PacketEvent(self._number, when, event) for event in events)

    def _decode(self, packet: Captured) -> list[DissectedEvent]:
        kind, data = networkPacket(packet.data, packet.linkType)
        conversation = self.conversation
        if kind in (ETHERTYPE_IPV4, ETHERTYPE_IPV6):
            datagram = CapturedDatagram.decode(data, LinkType.RAW_IP)
            if datagram is None:
                segment = segmentIn(data)
                return conversation.segment(*_addresses(data), segment)
            if not isRoCE(datagram.udp.destinationPort):
                return []
            source, destination = (GID.fromIP(each) for each in _addresses(data))
            return conversation.packet(source, destination, RoCEPacket.decode(datagram.payload))
        if kind is not None:
            grh = GRH.decode(data)
            if grh.nextHeader == _BTH_NEXT:
                end = GRH.size + grh.payloadLength
                return conversation.packet(grh.sgid, grh.dgid, RoCEPacket.decode(data[GRH.size : end]))
        return []

    def lines(self, level: int) -> Iterator[str]:
        """Present the events: level 1 hides CDC messages except closing ones, level 3 adds RDMA writes."""
        hidden = {1: ("cdc", "write"), 2: ("write",), 3: ()}[level]
        for connection in self.conversation.connections:
            yield f"# connection {connection.number}: {connection.name}"
        for number, when, event in self.events:
            if event.kind in hidden and not getattr(event.message, "state", 0):  # CDC that closes is shown
                continue
            about = "" if event.connection is None else f" {event.connection}"
            link = "" if event.link is None else f" (link {event.link})"
            sender = f"the {event.sender}" if event.sender in (CLIENT, SERVER) else event.sender
            yield f"{number:6} {when:10.6f} [{about.strip() or '-'}]{link} {sender} {event.text}"
        for connection in self.conversation.connections:
            yield f"# connection {connection.number}: {_outcome(connection)}"
        counts = self.conversation.counts
        if counts:
            yield "# " + ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))

    def toDict(self) -> dict[str, Any]:
        """Return connections, counts and events for JSON, with the fields of messages."""
        return {
            "connections": [
                {
                    "number": each.number,
                    "client": list(each.client),
                    "server": list(each.server),
                    "mode": each.state,
                    "why": each.why,
                    "bytesFromClient": each.streams[CLIENT].produced,
                    "bytesFromServer": each.streams[SERVER].produced,
                    "closing": each.closing,
                }
                for each in self.conversation.connections
            ],
            "counts": dict(self.conversation.counts),
            "events": [
                {
                    "packet": number,
                    "when": round(when, 9),
                    "kind": event.kind,
                    "who": event.sender,
                    "connection": event.connection,
                    "link": event.link,
                    "text": event.text,
                    "message": None if event.message is None else type(event.message).__name__,
                    "fields": _plain(event.message),
                }
                for number, when, event in self.events
            ],
        }


def _addresses(packet: bytes) -> tuple[str, str]:
    """Return the source and destination address of an IP packet."""
    begin, middle, end = _IP_ADDRESSES[packet[0] >> 4]
    return str(ipaddress.ip_address(packet[begin:middle])), str(ipaddress.ip_address(packet[middle:end]))


def _outcome(connection: DissectedConnection) -> str:
    if connection.state != "SMC-R":
        why = f", because {connection.why}" if connection.why else ""
        return f"{connection.state}{why}"
    parts = [f"the {side} wrote {amount(stream.produced)}" for side, stream in connection.streams.items()]
    ends = [f"the {side}: {how}" for side, how in connection.closing.items()]
    return "; ".join(["SMC-R", *parts, *ends])


def _plain(value: object) -> Any:
    """Convert a decoded message for JSON."""
    if isinstance(value, Layout):
        return plain(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return plain(value)
