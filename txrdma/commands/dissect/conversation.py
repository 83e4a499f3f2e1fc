"""
Reconstructs SMC connections from captured packets: their messages, links, and the positions of their cursors.

Follows RFC 7609, appendix A.2 (CLC on TCP), A.3 (LLC) and A.4 (CDC) on reliable connections. Packets are
passed in the order of their capture; each results in zero or more events. If the beginning of a conversation
was not captured, its later messages are decoded without the state that the beginning would have given.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Union

from txrdma.commands.dissect.tcp import OPTION, optionsOf, TCPHeader
from txrdma.commands.dissect.words import amount, describeCLC, describeLLC, joined
from txrdma.error import WireError
from txrdma.iba.headers import AETH, AETHKind, NAKCode, Opcode, RETH
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.types import GID
from txrdma.kit.values import frozen
from txrdma.smc.wire import clc, llc
from txrdma.smc.wire.cdc import CDC, CDC_LENGTH, CDC_TYPE, ProducerFlags, StateFlags

CLIENT: Final = "client"
SERVER: Final = "server"

_FIN, _SYN, _RST, _ACK = 0x01, 0x02, 0x04, 0x10
_HALF: Final = 1 << 31
_MAX_SEGMENTS: Final = 256
"""Limit of out-of-order segments that are stored for each direction of a TCP connection."""

_STARTS: Final = {Opcode.RC_SEND_ONLY, Opcode.RC_SEND_FIRST}
_ENDS: Final = {Opcode.RC_SEND_ONLY, Opcode.RC_SEND_LAST}
_SENDS: Final = _STARTS | _ENDS | {Opcode.RC_SEND_MIDDLE}
_WRITES: Final = {Opcode.RC_RDMA_WRITE_ONLY, Opcode.RC_RDMA_WRITE_FIRST}

Address = tuple[str, int]
"""An IP address and a port."""

Message = Union[clc.Message, llc.LLC, CDC, None]


@frozen
class DissectedEvent:
    """
    One packet, or one message in it.

    @ivar kind: C{"tcp"}, C{"clc"}, C{"llc"}, C{"cdc"}, C{"write"} or C{"nak"}.
    @ivar sender: C{"client"} or C{"server"}, or the GID of an unknown sender.
    @ivar text: a description that follows the name of the sender.
    @ivar connection: number of the connection, None for events of a link.
    @ivar link: number of the link, if known.
    @ivar message: the decoded message, if there is one.
    """

    kind: str
    sender: str
    text: str
    connection: int | None = None
    link: int | None = None
    message: Message = None


@dataclass
class DissectedStream:
    """
    One direction of a connection: the receiver's ring (RMB element) and the positions of both ends.

    @ivar size: bytes in the ring; 0 until it is known.
    @ivar address: start of the ring, on the link of the handshake.
    @ivar produced: bytes written, by the last producer cursor.
    @ivar consumed: bytes read, by the last consumer cursor.
    """

    size: int = 0
    address: int = 0
    produced: int = 0
    consumed: int = 0

    def advanced(self, total: int, wrap: int, count: int) -> int:
        """Return the number of bytes at a cursor, given that of the previous cursor."""
        if not self.size:
            return total
        period = self.size << 16  # wraps are counted modulo 65536
        return total + (wrap * self.size + count - total) % period


@dataclass
class DissectedConnection:
    """
    A TCP connection that uses or has requested SMC.

    @ivar state: C{"asked"} after a SYN with the option, C{"proposed"}, C{"accepted"}, C{"SMC-R"} or C{"TCP"}.
    @ivar why: the reason for falling back to TCP.
    @ivar streams: the two directions by their writer.
    @ivar closing: the closing flags by their sender.
    """

    number: int
    client: Address
    server: Address
    state: str = "asked"
    why: str = ""
    group: DissectedGroup | None = None
    accept: clc.Accept | None = None
    streams: dict[str, DissectedStream] = field(
        default_factory=lambda: {CLIENT: DissectedStream(), SERVER: DissectedStream()}
    )
    closing: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The addresses of both ends."""
        return f"{_text(self.client)} to {_text(self.server)}"


def _text(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(eq=False)
class DissectedGroup:
    """A link group; C{tokens}: connections by their alert token and the end that assigned it."""

    tokens: dict[tuple[str, int], DissectedConnection] = field(default_factory=dict)


@dataclass(eq=False)
class DissectedLinkEnd:
    """
    One end of a link, identified by GID and queue pair number.

    @ivar begun: the first packets of a message that is not complete.
    @ivar expected: the next packet sequence number.
    """

    group: DissectedGroup | None
    side: str
    link: int | None = None
    begun: bytes | None = None
    expected: int | None = None


@dataclass
class Reassembly:
    """
    Reassembles one direction of a TCP connection until CLC ends.

    @ivar next: the next sequence number.
    @ivar data: contiguous bytes that are not decoded yet.
    @ivar waiting: out-of-order segments by their sequence number.
    """

    next: int | None = None
    data: bytes = b""
    waiting: dict[int, bytes] = field(default_factory=dict)
    isOver: bool = False

    def add(self, sequence: int, data: bytes) -> None:
        """Add a segment; bytes that were received before are ignored."""
        if self.next is None:
            self.next = sequence
        hasRoom = self._isReached(sequence) or len(self.waiting) < _MAX_SEGMENTS
        if hasRoom and len(data) > len(self.waiting.get(sequence, b"")):
            self.waiting[sequence] = data
        while self.waiting:
            at = next(filter(self._isReached, self.waiting), None)
            if at is None:
                return
            new = self.waiting.pop(at)[(self.next - at) % (1 << 32) :]
            self.data += new
            self.next = (self.next + len(new)) % (1 << 32)

    def _isReached(self, sequence: int) -> bool:
        """Return whether no byte is missing before a segment."""
        return self.next is not None and (self.next - sequence) % (1 << 32) < _HALF


class DissectedConversation:
    """
    Decodes packets and keeps the state of connections and links.

    @ivar connections: connections that use or have requested SMC, in order of appearance.
    @ivar counts: messages by kind and name, C{"clc Proposal"}, and RDMA writes and their bytes.
    """

    def __init__(self) -> None:
        self.connections: list[DissectedConnection] = []
        self.counts: Counter[str] = Counter()
        self._byAddresses: dict[tuple[Address, Address], DissectedConnection] = {}
        self._directions: dict[tuple[Address, Address], Reassembly] = {}
        self._ends: dict[tuple[bytes, int], DissectedLinkEnd] = {}
        self._writes: dict[tuple[bytes, int], int] = {}

    def segment(self, source: str, destination: str, segment: bytes) -> list[DissectedEvent]:
        """
        Decode a TCP segment.

        @param source: source IP address.
        @param segment: the TCP header and what follows.
        @raise WireError: the header is truncated.
        """
        header = TCPHeader.decode(segment)
        events: list[DissectedEvent] = []
        key = (source, header.source), (destination, header.destination)
        if header.flags & _SYN:
            events += self._synchronized(key, bool(header.flags & _ACK), OPTION in tuple(optionsOf(segment)))
            self._directions[key] = Reassembly((header.sequence + 1) % (1 << 32))
        data = segment[4 * header.words :]
        if data:
            direction = self._directions.setdefault(key, Reassembly())
            if not direction.isOver:
                direction.add(header.sequence, data)
                events += self._decodeCLC(key, direction)
        if header.flags & (_FIN | _RST):
            events += self._closed(key, "resets TCP" if header.flags & _RST else "closes TCP")
        return events

    def _synchronized(
        self, key: tuple[Address, Address], isAnswer: bool, hasOption: bool
    ) -> list[DissectedEvent]:
        if not isAnswer:
            self._byAddresses.pop(key, None)
            if not hasOption:
                return []
            connection = self._connection(*key)
            return [DissectedEvent("tcp", CLIENT, "sends a SYN with the SMC option", connection.number)]
        known = self._byAddresses.get((key[1], key[0]))
        if known is None or known.state != "asked":
            return []
        text = "sends a SYN-ACK with the SMC option"
        if not hasOption:
            known.state, known.why = "TCP", "the server's SYN-ACK has no SMC option"
            text = "sends a SYN-ACK without the SMC option: plain TCP"
        return [DissectedEvent("tcp", SERVER, text, known.number)]

    def _connection(self, client: Address, server: Address) -> DissectedConnection:
        connection = DissectedConnection(len(self.connections) + 1, client, server)
        self.connections.append(connection)
        self._byAddresses[client, server] = connection
        return connection

    def _known(self, key: tuple[Address, Address]) -> tuple[str, DissectedConnection | None]:
        """Return the sender of a segment from these addresses, and its connection."""
        if key in self._byAddresses:
            return CLIENT, self._byAddresses[key]
        return SERVER, self._byAddresses.get((key[1], key[0]))

    def _decodeCLC(self, key: tuple[Address, Address], direction: Reassembly) -> list[DissectedEvent]:
        events = []
        while direction.data and not direction.isOver:
            try:
                size, message = clc.decodeFirst(direction.data)
            except WireError:
                direction.isOver = True
                direction.data = b""
                break
            if message is None:
                break
            direction.data = direction.data[size:]
            events.append(self._clc(key, message))
        return events

    def _clc(self, key: tuple[Address, Address], message: clc.Message) -> DissectedEvent:
        self.counts[f"clc {type(message).__name__}"] += 1
        side, connection = self._known(key)
        if connection is None:
            isServers = isinstance(message, (clc.Accept, clc.SMCDAccept))
            side = SERVER if isServers else CLIENT
            connection = self._connection(*(reversed(key) if isServers else key))
        if isinstance(message, clc.Proposal):
            connection.state = "proposed"
        elif isinstance(message, clc.Accept):
            connection.state, connection.accept = "accepted", message
            connection.streams[CLIENT] = DissectedStream(message.size, _ringAddress(message))
        elif isinstance(message, clc.Confirm):
            self._confirmed(connection, message)
        elif isinstance(message, clc.Decline):
            if connection.state != "TCP":
                connection.why = f"the {side} declined: {message.diagnosis.name}"
            connection.state = "TCP"
        return DissectedEvent("clc", side, describeCLC(message), connection.number, message=message)

    def _confirmed(self, connection: DissectedConnection, confirm: clc.Confirm) -> None:
        """Register both ends of the link, and the tokens of the connection."""
        connection.state = "SMC-R"
        connection.streams[SERVER] = DissectedStream(confirm.size, _ringAddress(confirm))
        accept = connection.accept
        ends = [(confirm, CLIENT)] + ([(accept, SERVER)] if accept is not None else [])
        keys = {(answer.gid.raw, int(answer.qpn)): side for answer, side in ends}
        known = [] if confirm.firstContact else [self._ends[each] for each in keys if each in self._ends]
        group = next((end.group for end in known if end.group is not None), None) or DissectedGroup()
        for key, side in keys.items():
            if key not in self._ends or confirm.firstContact:
                self._ends[key] = DissectedLinkEnd(group, side)
        connection.group = group
        for answer, side in ends:
            group.tokens[side, answer.token] = connection

    def _closed(self, key: tuple[Address, Address], text: str) -> list[DissectedEvent]:
        side, connection = self._known(key)
        return [] if connection is None else [DissectedEvent("tcp", side, text, connection.number)]

    def packet(self, source: GID, destination: GID, packet: RoCEPacket) -> list[DissectedEvent]:
        """Decode a packet of a reliable connection between two GIDs. Other packets are ignored."""
        bth = packet.bth
        key = (destination.raw, int(bth.destination))
        end = self._ends.get(key)
        opcode = bth.opcode
        if opcode is Opcode.RC_ACKNOWLEDGE:
            return [] if end is None else self._acknowledged(end, packet)
        if opcode not in _SENDS and opcode not in _WRITES and end is None:
            return []
        # Every request counts here, also later packets of WRITEs, since they use the same PSNs.
        if end is not None and self._isRepeated(end, bth.psn):
            self.counts["repeated packets"] += 1
            return []
        if opcode in _WRITES:
            return [] if end is None else self._written(end, packet)
        if opcode not in _SENDS:
            return []
        # Decoded also from an unknown queue pair: the content shows whether it is of SMC.
        whole = packet.payload
        if end is not None and opcode is not Opcode.RC_SEND_ONLY:
            # None if the first packet was not captured, or the message is too long: then it is skipped.
            begun = b"" if opcode in _STARTS else end.begun
            end.begun = None
            if begun is not None and len(begun) + len(whole) <= llc.MAX_LENGTH:
                end.begun = begun + whole
            if opcode not in _ENDS or end.begun is None:
                return []
            whole = end.begun
        return self._received(source, key, end, whole)

    def _isRepeated(self, end: DissectedLinkEnd, psn: int) -> bool:
        expected = end.expected
        if expected is not None and (psn - expected) % (1 << 24) >= 1 << 23:
            return True
        end.expected = (psn + 1) % (1 << 24)
        return False

    def _acknowledged(self, end: DissectedLinkEnd, packet: RoCEPacket) -> list[DissectedEvent]:
        """Report negative acknowledgements."""
        aeth = packet.get(AETH)
        if aeth is None or aeth.kind is AETHKind.ACK:
            return []
        if aeth.kind is AETHKind.RNR_NAK:
            text = "has no receive request (RNR NAK): the message will be resent"
        else:
            text = f"rejects a request: {NAKCode(aeth.value).name}"
        self.counts["refusals"] += 1
        return [DissectedEvent("nak", _other(end.side), text, link=end.link)]

    def _written(self, end: DissectedLinkEnd, packet: RoCEPacket) -> list[DissectedEvent]:
        reth = packet.get(RETH)
        if reth is None:
            return []
        self.counts["RDMA writes"] += 1
        self.counts["bytes written"] += reth.length
        text = f"writes {amount(reth.length)} at {reth.address:#x}, key {reth.rkey:#x}"
        writer = _other(end.side)
        for connection in end.group.tokens.values() if end.group is not None else ():
            stream = connection.streams[writer]
            if stream.address <= reth.address < stream.address + stream.size:
                text += f": {reth.address - stream.address:,} into the {end.side}'s ring"
                return [DissectedEvent("write", writer, text, connection.number, end.link)]
        return [DissectedEvent("write", writer, text, link=end.link)]

    def _received(
        self, source: GID, key: tuple[bytes, int], end: DissectedLinkEnd | None, payload: bytes
    ) -> list[DissectedEvent]:
        """Decode the message of a SEND."""
        sender = str(source) if end is None else _other(end.side)
        if len(payload) == CDC_LENGTH and payload[0] == CDC_TYPE:
            return [self._cdc(sender, end, CDC.decode(payload))]
        try:
            message = llc.decode(payload)
            text = describeLLC(message)
        except WireError:
            return []
        if end is None and not message.type.known:
            return []  # not SMC
        self.counts[f"llc {message.type.name}"] += 1
        if end is not None:
            self._register(end, key, message)
        return [DissectedEvent("llc", sender, text, link=None if end is None else end.link, message=message)]

    def _register(self, end: DissectedLinkEnd, key: tuple[bytes, int], message: llc.LLC) -> None:
        """Register the numbers of links, and the ends of new links."""
        body = message.body
        if isinstance(body, llc.ConfirmLink):
            end.link = body.link
            sender = self._ends.get((body.gid.raw, int(body.qpn)))
            if sender is not None:
                sender.link = body.link
        elif isinstance(body, llc.AddLink) and not message.header.flags & llc.LLCFlags.REJECT:
            added = (body.gid.raw, int(body.qpn))
            if added != key:
                self._ends[added] = DissectedLinkEnd(end.group, _other(end.side), body.link)

    def _cdc(self, sender: str, end: DissectedLinkEnd | None, message: CDC) -> DissectedEvent:
        self.counts["cdc"] += 1
        connection = None
        if end is not None and end.group is not None:
            connection = end.group.tokens.get((end.side, message.token))
        link = None if end is None else end.link
        if connection is None:
            text = (
                f"token {message.token:#x}: producer cursor {message.producerWrap}:{message.producerCount}, "
                f"consumer cursor {message.consumerWrap}:{message.consumerCount}"
            )
            return DissectedEvent("cdc", sender, joined(text, *_flagTexts(message)), None, link, message)
        if message.flags & ProducerFlags.FAILOVER_VALIDATION:
            text = f"fails over to this link: message {message.sequence} must have been received"
            return DissectedEvent("cdc", sender, text, connection.number, link, message)
        out, back = connection.streams[sender], connection.streams[_other(sender)]
        produced = out.advanced(out.produced, message.producerWrap, message.producerCount)
        consumed = back.advanced(back.consumed, message.consumerWrap, message.consumerCount)
        parts = []
        if produced != out.produced:
            parts.append(f"has written {amount(produced - out.produced)} ({produced:,} in total)")
        if consumed != back.consumed:
            parts.append(f"has read {amount(consumed - back.consumed)} ({consumed:,} in total)")
        out.produced, back.consumed = produced, consumed
        words = _flagTexts(message)
        if message.state:
            names = [each.name for each in StateFlags if each in message.state and each.name]
            connection.closing[sender] = ", ".join(names).lower().replace("_", " ")
        text = joined(*parts, *words) or "repeats its cursors"
        return DissectedEvent("cdc", sender, text, connection.number, link, message)


def _ringAddress(answer: clc.Accept | clc.Confirm) -> int:
    return answer.address + (answer.index - 1) * answer.size


def _other(side: str) -> str:
    return SERVER if side == CLIENT else CLIENT


def _flagTexts(message: CDC) -> list[str]:
    flags, state = message.flags, message.state
    meanings = (
        (flags & ProducerFlags.WRITE_BLOCKED, "is blocked: the ring is full"),
        (flags & ProducerFlags.URGENT_PENDING, "has urgent data pending"),
        (flags & ProducerFlags.URGENT_PRESENT, "the last byte is urgent"),
        (flags & ProducerFlags.CONSUMER_UPDATE_REQUESTED, "requests a consumer cursor update"),
        (state & StateFlags.DONE_WRITING, "has finished writing"),
        (state & StateFlags.CLOSED, "has closed"),
        (state & StateFlags.ABNORMAL_CLOSE, "aborts the connection"),
    )
    return [words for isSet, words in meanings if isSet]
