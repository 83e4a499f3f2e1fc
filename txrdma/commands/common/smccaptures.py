"""SMC in captures, for C{txrdma decode}: packets taken apart, and explained by L{txrdma.smc.dissect}."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from txrdma.commands.common.packets import networkPacket
from txrdma.error import WireError
from txrdma.iba.captures import Captured
from txrdma.iba.headers import GRH
from txrdma.iba.internet import ETHERTYPE_IPV4, ETHERTYPE_IPV6
from txrdma.iba.pcap import Datagram, LinkType
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.types import GID, ROCE_PORT
from txrdma.kit.wire import Layout
from txrdma.mad.layouts.attributes import plain
from txrdma.smc.dissect.conversation import CLIENT, Connection, Conversation, Sentence, SERVER
from txrdma.smc.dissect.words import amount
from txrdma.smc.signalling.option._synoptions import segmentIn

_BTH_NEXT = 0x1B
_IP_ADDRESSES = {4: (12, 16, 20), 6: (8, 24, 40)}


class Told(NamedTuple):
    """
    A sentence of an explanation, and the packet that it is about.

    @ivar number: of the packet, from 1.
    @ivar when: seconds since the capture's first packet.
    """

    number: int
    when: float
    sentence: Sentence


class Explanation:
    """
    Explanation of the SMC conversations in one capture.

    @ivar conversation: connections and counts that are known by now.
    @ivar told: all sentences.
    """

    def __init__(self) -> None:
        self.conversation = Conversation()
        self.told: list[Told] = []
        self._began: float | None = None
        self._number = 0

    def take(self, packet: Captured) -> None:
        """Explain the next packet of the capture, if it belongs to SMC."""
        self._number += 1
        if self._began is None:
            self._began = packet.when
        try:
            sentences = self._explain(packet)
        except WireError:
            return  # somebody else's, or cut off
        when = packet.when - self._began
        self.told += (Told(self._number, when, sentence) for sentence in sentences)

    def _explain(self, packet: Captured) -> list[Sentence]:
        kind, data = networkPacket(packet.data, packet.linkType)
        conversation = self.conversation
        if kind in (ETHERTYPE_IPV4, ETHERTYPE_IPV6):
            datagram = Datagram.decode(data, LinkType.RAW_IP)
            if datagram is None:
                segment = segmentIn(data)
                return conversation.segment(*_addresses(data), segment)
            if datagram.udp.destinationPort != ROCE_PORT:
                return []
            here, there = (GID.fromIP(each) for each in _addresses(data))
            return conversation.packet(here, there, RoCEPacket.decode(datagram.payload))
        if kind is not None:
            grh = GRH.decode(data)
            if grh.nextHeader == _BTH_NEXT:
                end = GRH.size + grh.payloadLength
                return conversation.packet(grh.sgid, grh.dgid, RoCEPacket.decode(data[GRH.size : end]))
        return []

    def lines(self, level: int) -> Iterator[str]:
        """
        Lines of the explanation: at level 1 without CDC but for the ends of connections, at level 2 with it.

        Level 3 shows each RDMA write, too.
        """
        hidden = {1: ("cdc", "write"), 2: ("write",), 3: ()}[level]
        for connection in self.conversation.connections:
            yield f"# connection {connection.number}: {connection.name}"
        for number, when, sentence in self.told:
            if sentence.kind in hidden and not _isEnd(sentence):
                continue
            about = "" if sentence.connection is None else f" {sentence.connection}"
            link = "" if sentence.link is None else f" (link {sentence.link})"
            who = f"the {sentence.who}" if sentence.who in (CLIENT, SERVER) else sentence.who
            yield f"{number:6} {when:10.6f} [{about.strip() or '-'}]{link} {who} {sentence.text}"
        for connection in self.conversation.connections:
            yield f"# connection {connection.number}: {_outcome(connection)}"
        counts = self.conversation.counts
        if counts:
            yield "# " + ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))

    def toDict(self) -> dict[str, Any]:
        """Explanation as JSON can carry it, with the fields of messages."""
        return {
            "connections": [
                {
                    "number": each.number,
                    "client": list(each.client),
                    "server": list(each.server),
                    "mode": each.state,
                    "why": each.why,
                    "bytesFromClient": each.ways[CLIENT].produced,
                    "bytesFromServer": each.ways[SERVER].produced,
                    "closing": each.closing,
                }
                for each in self.conversation.connections
            ],
            "counts": dict(self.conversation.counts),
            "events": [
                {
                    "packet": number,
                    "when": round(when, 9),
                    "kind": sentence.kind,
                    "who": sentence.who,
                    "connection": sentence.connection,
                    "link": sentence.link,
                    "text": sentence.text,
                    "message": None if sentence.message is None else type(sentence.message).__name__,
                    "fields": _plain(sentence.message),
                }
                for number, when, sentence in self.told
            ],
        }


def _isEnd(sentence: Sentence) -> bool:
    """True of a CDC message that takes part in closing a connection."""
    return bool(getattr(sentence.message, "state", 0))


def _addresses(packet: bytes) -> tuple[str, str]:
    """Source and destination address of an IP packet."""
    begin, middle, end = _IP_ADDRESSES[packet[0] >> 4]
    return str(ipaddress.ip_address(packet[begin:middle])), str(ipaddress.ip_address(packet[middle:end]))


def _outcome(connection: Connection) -> str:
    if connection.state != "SMC-R":
        why = f", because {connection.why}" if connection.why else ""
        return f"{connection.state}{why}"
    parts = [f"the {side} wrote {amount(way.produced)}" for side, way in connection.ways.items()]
    ends = [f"the {side}: {how}" for side, how in connection.closing.items()]
    return "; ".join(["SMC-R", *parts, *ends])


def _plain(value: object) -> Any:
    """A decoded message as JSON can carry it."""
    if isinstance(value, Layout):
        return plain(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return plain(value)
