"""
SMC in a capture: which connections there are, who says what on them, and how far their bytes have come.

Follows RFC 7609: appendix A.2 (CLC on TCP), A.3 (LLC) and A.4 (CDC) on reliable connections. Packets are
given in the order in which they were captured; each may bring sentences. What was not captured from its
beginning is told as far as it explains itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Union

from txrdma.error import WireError
from txrdma.iba.headers import AETH, AETHKind, NAKCode, Opcode, RETH
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.types import GID
from txrdma.kit.values import frozen
from txrdma.smc.dissect.words import amount, joined, ofCLC, ofLLC
from txrdma.smc.signalling.option._program import OPTION
from txrdma.smc.signalling.option._synoptions import optionsOf, TCPHeader
from txrdma.smc.wire import clc, llc
from txrdma.smc.wire.cdc import CDC, CDC_LENGTH, CDC_TYPE, ProducerFlags, StateFlags

CLIENT: Final = "client"
SERVER: Final = "server"

_FIN, _SYN, _RST, _ACK = 0x01, 0x02, 0x04, 0x10
_HALF: Final = 1 << 31
_MOST_WAITING: Final = 256
"""Segments of a direction that may wait for one before them."""

_LONGEST: Final = llc.MAX_LENGTH

_STARTS: Final = {Opcode.RC_SEND_ONLY, Opcode.RC_SEND_FIRST}
_ENDS: Final = {Opcode.RC_SEND_ONLY, Opcode.RC_SEND_LAST}
_SENDS: Final = _STARTS | _ENDS | {Opcode.RC_SEND_MIDDLE}
_WRITES: Final = {Opcode.RC_RDMA_WRITE_ONLY, Opcode.RC_RDMA_WRITE_FIRST}

Place = tuple[str, int]
"""An IP address and a port."""

Message = Union[clc.Message, llc.LLC, CDC, None]


@frozen
class Sentence:
    """
    A sentence about one packet, or one message in it.

    @ivar kind: C{"tcp"}, C{"clc"}, C{"llc"}, C{"cdc"}, C{"write"} or C{"nak"}.
    @ivar who: C{"client"} or C{"server"}, or the address of whom nothing else is known.
    @ivar text: goes on behind that.
    @ivar connection: the number of the connection, None for what is about a whole link.
    @ivar link: the number of the link, where it is known.
    @ivar message: as it was decoded, None where there is none.
    """

    kind: str
    who: str
    text: str
    connection: int | None = None
    link: int | None = None
    message: Message = None


@dataclass
class Bytes:
    """
    Bytes in one direction of a connection: the ring that is written to, and how far both ends are.

    @ivar size: of the ring; 0 until it is known.
    @ivar address: where the ring begins, on the link of the handshake.
    @ivar produced: bytes written, as far as messages tell.
    @ivar consumed: bytes of these that were read.
    """

    size: int = 0
    address: int = 0
    produced: int = 0
    consumed: int = 0

    def moved(self, total: int, wrap: int, count: int) -> int:
        """The total that a cursor tells of, which is not below the one before."""
        if not self.size:
            return total
        whole = self.size << 16
        return total + (wrap * self.size + count - total) % whole


@dataclass
class Connection:
    """
    A TCP connection on which SMC was spoken, or asked for.

    @ivar state: what became of it: C{"asked"}, C{"proposed"}, C{"accepted"}, C{"SMC-R"} or C{"TCP"}.
    @ivar why: the reason for TCP.
    @ivar ways: the bytes by who writes them.
    @ivar closing: by whom, and how, its end was told.
    """

    number: int
    client: Place
    server: Place
    state: str = "asked"
    why: str = ""
    group: Group | None = None
    accept: clc.Accept | None = None
    ways: dict[str, Bytes] = field(default_factory=lambda: {CLIENT: Bytes(), SERVER: Bytes()})
    closing: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The addresses of both ends."""
        return f"{_text(self.client)} to {_text(self.server)}"


def _text(place: Place) -> str:
    return f"[{place[0]}]:{place[1]}" if ":" in place[0] else f"{place[0]}:{place[1]}"


@dataclass(eq=False)
class Group:
    """
    A link group: which connection a token means, by who has given it.

    @ivar tokens: connections by the end that has given the token, and the token.
    """

    tokens: dict[tuple[str, int], Connection] = field(default_factory=dict)


@dataclass(eq=False)
class End:
    """An end of a link: the group and the side that it belongs to, and what of a message has come."""

    group: Group | None
    side: str
    link: int | None = None
    begun: bytes | None = None
    expected: int | None = None


@dataclass
class _Direction:
    """One direction of a TCP connection, as far as CLC goes."""

    next: int | None = None
    held: bytes = b""
    waiting: dict[int, bytes] = field(default_factory=dict)
    isOver: bool = False

    def take(self, sequence: int, data: bytes) -> None:
        """Put a segment in its place; what came before is left out."""
        if self.next is None:
            self.next = sequence
        if len(self.waiting) < _MOST_WAITING and len(data) > len(self.waiting.get(sequence, b"")):
            self.waiting[sequence] = data
        while self.waiting:
            at = next((each for each in self.waiting if (self.next - each) % (1 << 32) < _HALF), None)
            if at is None:
                return
            new = self.waiting.pop(at)[(self.next - at) % (1 << 32) :]
            self.held += new
            self.next = (self.next + len(new)) % (1 << 32)


class Conversation:
    """
    Explains packets one after the other.

    @ivar connections: those on which SMC was asked for or spoken, by their order.
    @ivar counts: messages by kind and name, C{"clc Proposal"}, and RDMA writes and their bytes.
    """

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.counts: Counter[str] = Counter()
        self._byPlaces: dict[tuple[Place, Place], Connection] = {}
        self._directions: dict[tuple[Place, Place], _Direction] = {}
        self._ends: dict[tuple[bytes, int], End] = {}
        self._writes: dict[tuple[bytes, int], int] = {}

    # TCP

    def segment(self, source: str, destination: str, segment: bytes) -> list[Sentence]:
        """
        Take the next TCP segment of the capture.

        @param source: the IP address that it comes from.
        @param segment: from the TCP header on.
        @raise WireError: it is not whole.
        """
        header = TCPHeader.decode(segment)
        here, there = (source, header.source), (destination, header.destination)
        told: list[Sentence] = []
        key = (here, there)
        if header.flags & _SYN:
            told += self._synchronized(key, bool(header.flags & _ACK), OPTION in tuple(optionsOf(segment)))
            self._directions[key] = _Direction((header.sequence + 1) % (1 << 32))
        data = segment[4 * header.words :]
        if data:
            direction = self._directions.setdefault(key, _Direction())
            if not direction.isOver:
                direction.take(header.sequence, data)
                told += self._heard(key, direction)
        if header.flags & (_FIN | _RST):
            told += self._closed(key, "resets TCP" if header.flags & _RST else "closes TCP")
        return told

    def _synchronized(self, key: tuple[Place, Place], isAnswer: bool, hasOption: bool) -> list[Sentence]:
        if not isAnswer:
            self._byPlaces.pop(key, None)
            if not hasOption:
                return []
            connection = self._connection(*key)
            return [Sentence("tcp", CLIENT, "connects, and can speak SMC", connection.number)]
        known = self._byPlaces.get((key[1], key[0]))
        if known is None or known.state != "asked":
            return []
        if not hasOption:
            known.state, known.why = "TCP", "the server's SYN-ACK has no option of SMC"
        text = "can speak SMC, too" if hasOption else "does not speak SMC: plain TCP"
        return [Sentence("tcp", SERVER, text, known.number)]

    def _connection(self, client: Place, server: Place) -> Connection:
        made = Connection(len(self.connections) + 1, client, server)
        self.connections.append(made)
        self._byPlaces[client, server] = made
        return made

    def _heard(self, key: tuple[Place, Place], direction: _Direction) -> list[Sentence]:
        """Explain the CLC messages that are whole."""
        told = []
        while direction.held and not direction.isOver:
            try:
                size, message = clc.decodeFirst(direction.held)
            except WireError:
                direction.isOver = True
                direction.held = b""
                break
            if message is None:
                break
            direction.held = direction.held[size:]
            told.append(self._clc(key, message))
        return told

    def _clc(self, key: tuple[Place, Place], message: clc.Message) -> Sentence:
        self.counts[f"clc {type(message).__name__}"] += 1
        connection = self._byPlaces.get(key)
        side = CLIENT
        if connection is None:
            connection = self._byPlaces.get((key[1], key[0]))
            side = SERVER
        if connection is None:
            isServers = isinstance(message, (clc.Accept, clc.SMCDAccept))
            side = SERVER if isServers else CLIENT
            connection = self._connection(*(reversed(key) if isServers else key))
        if isinstance(message, clc.Proposal):
            connection.state = "proposed"
        elif isinstance(message, clc.Accept):
            connection.state, connection.accept = "accepted", message
            connection.ways[CLIENT] = Bytes(message.size, _begin(message))
        elif isinstance(message, clc.Confirm):
            self._confirmed(connection, message)
        elif isinstance(message, clc.Decline):
            if connection.state != "TCP":
                connection.why = f"the {side} declined: {message.diagnosis.name}"
            connection.state = "TCP"
        return Sentence("clc", side, ofCLC(message), connection.number, message=message)

    def _confirmed(self, connection: Connection, confirm: clc.Confirm) -> None:
        """Both ends of the link, and of the bytes, are known."""
        connection.state = "SMC-R"
        connection.ways[SERVER] = Bytes(confirm.size, _begin(confirm))
        accept = connection.accept
        ends = [(confirm, CLIENT)] + ([(accept, SERVER)] if accept is not None else [])
        keys = {(answer.gid.raw, int(answer.qpn)): side for answer, side in ends}
        known = [] if confirm.firstContact else [self._ends[each] for each in keys if each in self._ends]
        group = next((end.group for end in known if end.group is not None), None) or Group()
        for key, side in keys.items():
            if key not in self._ends or confirm.firstContact:
                self._ends[key] = End(group, side)
        connection.group = group
        for answer, side in ends:
            group.tokens[side, answer.token] = connection

    def _closed(self, key: tuple[Place, Place], text: str) -> list[Sentence]:
        connection = self._byPlaces.get(key)
        side = CLIENT
        if connection is None:
            connection, side = self._byPlaces.get((key[1], key[0])), SERVER
        return [] if connection is None else [Sentence("tcp", side, text, connection.number)]

    # RoCE

    def packet(self, source: GID, destination: GID, packet: RoCEPacket) -> list[Sentence]:
        """Take a packet of a reliable connection between two GIDs; those of other kinds are ignored."""
        bth = packet.bth
        key = (destination.raw, int(bth.destination))
        end = self._ends.get(key)
        opcode = bth.opcode
        if opcode is Opcode.RC_ACKNOWLEDGE:
            return [] if end is None else self._acknowledged(end, packet)
        if opcode not in _SENDS and opcode not in _WRITES and end is None:
            return []
        if end is not None and self._isRepeated(end, bth.psn):
            self.counts["repeated packets"] += 1
            return []
        if opcode in _WRITES:
            return [] if end is None else self._written(end, packet)
        if opcode not in _SENDS:
            return []
        whole = packet.payload
        if end is not None and opcode is not Opcode.RC_SEND_ONLY:
            begun = b"" if opcode in _STARTS else end.begun
            end.begun = None if begun is None else begun + packet.payload
            if opcode not in _ENDS or end.begun is None or len(end.begun) > _LONGEST:
                return []
            whole = end.begun
        return self._received(source, key, end, whole)

    def _isRepeated(self, end: End, psn: int) -> bool:
        """Whether the packet was there before: it is sent again when its acknowledgement is late."""
        expected = end.expected
        if expected is not None and (psn - expected) % (1 << 24) >= 1 << 23:
            return True
        end.expected = (psn + 1) % (1 << 24)
        return False

    def _acknowledged(self, end: End, packet: RoCEPacket) -> list[Sentence]:
        """Tell of refusals; what was received needs no words."""
        aeth = packet.get(AETH)
        if aeth is None or aeth.kind is AETHKind.ACK:
            return []
        if aeth.kind is AETHKind.RNR_NAK:
            text = "has no receive for a message: it will be sent again"
        else:
            text = f"refuses a request: {NAKCode(aeth.value).name}"
        self.counts["refusals"] += 1
        return [Sentence("nak", _other(end.side), text, link=end.link)]

    def _written(self, end: End, packet: RoCEPacket) -> list[Sentence]:
        reth = packet.get(RETH)
        if reth is None:
            return []
        self.counts["RDMA writes"] += 1
        self.counts["bytes written"] += reth.length
        text = f"writes {amount(reth.length)} at {reth.address:#x}, key {reth.rkey:#x}"
        writer = _other(end.side)
        for connection in end.group.tokens.values() if end.group is not None else ():
            way = connection.ways[writer]
            if way.address <= reth.address < way.address + way.size:
                text += f": {reth.address - way.address:,} into the {end.side}'s ring"
                return [Sentence("write", writer, text, connection.number, end.link)]
        return [Sentence("write", writer, text, link=end.link)]

    def _received(
        self, source: GID, key: tuple[bytes, int], end: End | None, payload: bytes
    ) -> list[Sentence]:
        """Explain what a SEND has brought."""
        who = str(source) if end is None else _other(end.side)
        if len(payload) == CDC_LENGTH and payload[0] == CDC_TYPE:
            return [self._cdc(who, end, CDC.decode(payload))]
        try:
            message = llc.decode(payload)
            text = ofLLC(message)
        except WireError:
            return []
        if end is None and not message.type.known:
            return []  # somebody else's
        self.counts[f"llc {message.type.name}"] += 1
        if end is not None:
            self._learn(end, key, message)
        return [Sentence("llc", who, text, link=None if end is None else end.link, message=message)]

    def _learn(self, end: End, key: tuple[bytes, int], message: llc.LLC) -> None:
        """Number links, and know the ends of those that are added."""
        body = message.body
        if isinstance(body, llc.ConfirmLink):
            end.link = body.link
            mine = self._ends.get((body.gid.raw, int(body.qpn)))
            if mine is not None:
                mine.link = body.link
        elif isinstance(body, llc.AddLink) and not message.header.flags & llc.LLCFlags.REJECT:
            there = (body.gid.raw, int(body.qpn))
            if there != key:
                self._ends[there] = End(end.group, _other(end.side), body.link)

    def _cdc(self, who: str, end: End | None, message: CDC) -> Sentence:
        self.counts["cdc"] += 1
        connection = None
        if end is not None and end.group is not None:
            connection = end.group.tokens.get((end.side, message.token))
        link = None if end is None else end.link
        if connection is None:
            text = (
                f"on token {message.token:#x}: written up to {message.producerWrap}:{message.producerCount}, "
                f"read up to {message.consumerWrap}:{message.consumerCount}"
            )
            return Sentence("cdc", who, joined(text, *_flagWords(message)), None, link, message)
        if message.flags & ProducerFlags.FAILOVER_VALIDATION:
            text = f"has moved to this link: message {message.sequence} must have arrived"
            return Sentence("cdc", who, text, connection.number, link, message)
        out, back = connection.ways[who], connection.ways[_other(who)]
        produced = out.moved(out.produced, message.producerWrap, message.producerCount)
        consumed = back.moved(back.consumed, message.consumerWrap, message.consumerCount)
        parts = []
        if produced != out.produced:
            parts.append(f"has written {amount(produced - out.produced)} ({produced:,} in all)")
        if consumed != back.consumed:
            parts.append(f"has read {amount(consumed - back.consumed)} ({consumed:,} in all)")
        out.produced, back.consumed = produced, consumed
        words = _flagWords(message)
        if message.state:
            connection.closing[who] = ", ".join(each.lower() for each in _names(message.state))
        text = joined(*parts, *words) or "tells nothing new"
        return Sentence("cdc", who, text, connection.number, link, message)


def _begin(answer: clc.Accept | clc.Confirm) -> int:
    return answer.address + (answer.index - 1) * answer.size


def _other(side: str) -> str:
    return SERVER if side == CLIENT else CLIENT


def _names(state: StateFlags) -> list[str]:
    return [each.name.replace("_", " ") for each in StateFlags if each in state and each.name]


def _flagWords(message: CDC) -> list[str]:
    flags, state = message.flags, message.state
    meanings = (
        (flags & ProducerFlags.WRITE_BLOCKED, "waits for room"),
        (flags & ProducerFlags.URGENT_PENDING, "has urgent data to come"),
        (flags & ProducerFlags.URGENT_PRESENT, "the last byte is urgent"),
        (flags & ProducerFlags.CONSUMER_UPDATE_REQUESTED, "asks how far the other end has read"),
        (state & StateFlags.DONE_WRITING, "writes no more"),
        (state & StateFlags.CLOSED, "has closed"),
        (state & StateFlags.ABNORMAL_CLOSE, "aborts"),
    )
    return [words for isSet, words in meanings if isSet]
