"""
The core of an rsocket, one end of it: a stream of bytes over RDMA writes, with its credits and its end.

Follows librdmacm (C{docs/rsocket}, version 1 of the protocol). Nothing here posts anything:
C{outgoing} hands out what is to be posted, in order, and C{completed} and C{arrived} are told what has become
of it and what has come. Loss is no concern of this: the queue pair is reliable.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Final, NamedTuple

from txrdma.cm.rsocket._receiving import Receiving, Violation
from txrdma.cm.rsocket._sending import Post, Sending
from txrdma.cm.rsocket.messages import (
    ConnectionData,
    Control,
    IGNORED,
    immediate,
    Kind,
    LittleTarget,
    meaning,
    NETWORK_ORDER,
    Target,
    TARGET_BYTES,
    VERSION,
)
from txrdma.error import WireError
from txrdma.iba.types import RKey

TARGETS: Final = 2
"""Targets of a table: one for each half of a buffer."""

CONTROLS: Final = 4
"""Messages beside those of data that may be under way; they need no credit."""

_CONTROL_BYTES: Final = CONTROLS * TARGET_BYTES
_NO_KEY: Final = RKey(0)


class Sizes(NamedTuple):
    """
    The sizes of an end.

    @ivar receives: messages that the peer may send before the first of them is read, 16 to 65534.
    @ivar sends: messages of this end that may be under way, C{CONTROLS} included.
    @ivar receiveBuffer: bytes, in two halves; C{sendBuffer}: bytes, 2048 at least.
    """

    receives: int = 128
    sends: int = 128
    receiveBuffer: int = 1 << 19
    sendBuffer: int = 1 << 18

    @property
    def remote(self) -> int:
        """Bytes of memory that the peer writes into: the table of targets, and the buffer."""
        return TARGETS * TARGET_BYTES + self.receiveBuffer

    @property
    def local(self) -> int:
        """Bytes of memory that is sent from: the buffer, and a place for each target that is told."""
        return self.sendBuffer + _CONTROL_BYTES


class RSocket:
    """
    An end of a connection between rsockets.

    @ivar isReadable: the peer may send more bytes; C{isWritable}: so may this end.
    @ivar isOver: the peer has ended the connection, or both ends have ended their half of it.
    @ivar wasCut: the peer has ended the connection before it had all bytes that were written here.
    @ivar hasParted: the peer has had our word that the connection ends.
    """

    def __init__(self, sizes: Sizes, remote: memoryview, local: memoryview) -> None:
        """
        @param remote: C{sizes.remote} bytes that the peer writes into; C{local}: C{sizes.local} to send from.
        """
        table, buffer = remote[: TARGETS * TARGET_BYTES], remote[TARGETS * TARGET_BYTES :]
        table[:] = bytes(len(table))
        self._sizes = sizes
        self._isLittle = sys.byteorder == "little"
        self._controls = local[sizes.sendBuffer :]
        self._sending = Sending(local[: sizes.sendBuffer], table, sizes.sends - CONTROLS, self._isLittle)
        self._receiving = Receiving(buffer, sizes.receives)
        self._flying: deque[bool] = deque()
        self._controlAt = self._controlsFlying = 0
        self._own = self._peer = ConnectionData()
        self._peerAt = 0
        self._wanted: Control | None = None
        self._said: Control | None = None
        self._isProbing = False
        self.isReadable = self.isWritable = True
        self.isOver = self.wasCut = self.hasParted = False

    # The beginning

    def greeting(self, address: int, rkey: RKey) -> ConnectionData:
        """The connection data of this end, whose memory for the peer begins at that address."""
        return ConnectionData(
            version=VERSION,
            flags=0 if self._isLittle else NETWORK_ORDER,
            credits=self._sizes.receives,
            tableAddress=address,
            tableKey=rkey,
            tableLength=TARGETS,
            bufferAddress=address + TARGETS * TARGET_BYTES,
            bufferKey=rkey,
            bufferLength=self._receiving.half,
        )

    def begin(self, own: ConnectionData, peer: ConnectionData) -> None:
        """Begin, with the connection data of both ends: see L{understood}."""
        self._own, self._peer, self._peerAt = own, peer, 1 % peer.tableLength
        target = Target(address=peer.bufferAddress, rkey=peer.bufferKey, length=peer.bufferLength)
        self._sending.begin(target, peer.credits)

    # Requests of the program

    @property
    def backlog(self) -> int:
        """Bytes that were written and are not posted yet."""
        return self._sending.backlog

    @property
    def isDelivered(self) -> bool:
        """Whether all that was written is in the peer's memory."""
        return self._sending.isIdle

    @property
    def isQuiet(self) -> bool:
        """Whether nothing is under way, so that nothing will be told by a completion."""
        return not self._flying

    @property
    def unread(self) -> int:
        """Bytes that have come and are not read yet."""
        return self._receiving.unread

    def write(self, data: bytes) -> None:
        """Send bytes, as soon as there is room for them; after the end of writing they are dropped."""
        if self.isWritable and not self.isOver:
            self._sending.write(data)
        elif data and self.isOver:
            self.wasCut = True

    def drop(self) -> None:
        """Forget all that is not posted."""
        self._sending.drop()

    def read(self) -> bytes:
        """Read some of the bytes that have come; empty if there are none."""
        return self._receiving.take()

    def closeWriting(self) -> None:
        """Write no more, and tell the peer so behind all that was written."""
        if self.isWritable:
            self.isWritable = False
            self._wanted = Control.SHUTDOWN if self.isReadable else Control.DISCONNECT

    def close(self) -> None:
        """Neither write nor read any more, and tell the peer so behind all that was written."""
        self.isWritable = False
        self._wanted = Control.DISCONNECT

    def probe(self) -> None:
        """Find out whether the peer's queue pair answers, if nothing is under way that does so."""
        self._isProbing = self.isQuiet

    # The queue pair

    def arrived(self, number: int, length: int) -> None:
        """
        Take a message of the peer.

        @param number: its immediate data.
        @param length: bytes that it has written: a message with credits has a target, if it has any.
        @raise Violation: it makes no sense.
        """
        operation, value = meaning(number)
        if operation == Kind.DATA:
            if not self.isReadable:
                raise Violation("it has sent data behind its end")
            self._receiving.arrived(value)
        elif operation == Kind.CREDITS:
            self._sending.credited(value, length > 0)
        elif operation == Kind.CONTROL:
            self._told(value)
        elif operation not in (IGNORED, Kind.MAPPING):
            raise Violation(f"operation {operation} has no meaning")

    def _told(self, value: int) -> None:
        if value == Control.DISCONNECT:
            self.wasCut = self.wasCut or not self._sending.isIdle
            self._sending.drop()
            self.isOver = True
            self.isReadable = False
        elif value == Control.SHUTDOWN:
            self.isReadable = False
            if self._said is not None:
                self.isOver = True
            elif self._wanted is not None:
                self._wanted = Control.DISCONNECT

    def completed(self) -> bool:
        """
        Note that the first message under way is in the peer's memory.

        @return: False if this changes nothing of what can be posted, nor that the connection goes on.
        """
        if self._flying.popleft():
            self._sending.completed()
            return self._sending.backlog > 0 or self._wanted is not None
        self._controlsFlying -= 1
        if self._said is Control.DISCONNECT and not self._flying:
            self.hasParted = True
        return True

    def outgoing(self) -> list[Post]:
        """The messages that can be posted now, which are to be posted in that order."""
        posts: list[Post] = []
        if self.isOver or self._said is Control.DISCONNECT:
            return posts
        if self._controlsFlying < CONTROLS:
            grant = self._receiving.due()
            if grant is not None:
                posts.append(self._tell(grant.limit, grant.half))
        sending = self._sending
        while sending.backlog and (post := sending.next()) is not None:
            self._flying.append(True)
            posts.append(post)
        wanted = self._wanted
        if wanted is not None and not self.backlog and self._controlsFlying < CONTROLS:
            self._wanted, self._said = None, wanted
            posts.append(self._control(Post(0, 0, 0, _NO_KEY, immediate(Kind.CONTROL, wanted))))
        if self._isProbing and not self._flying:
            posts.append(self._control(Post(0, 0, 0, _NO_KEY, None)))
        self._isProbing = False
        return posts

    def _tell(self, limit: int, half: int | None) -> Post:
        """The message that gives credits, and the target if there is one."""
        number = immediate(Kind.CREDITS, limit)
        if half is None:
            return self._control(Post(0, 0, 0, _NO_KEY, number))
        peer, begin = self._peer, self._controlAt * TARGET_BYTES
        kind = Target if peer.flags & NETWORK_ORDER else LittleTarget
        own = self._own
        target = kind(address=own.bufferAddress + half, rkey=own.bufferKey, length=self._receiving.half)
        self._controls[begin : begin + TARGET_BYTES] = target.encode()
        self._controlAt = (self._controlAt + 1) % CONTROLS
        address = peer.tableAddress + self._peerAt * TARGET_BYTES
        self._peerAt = (self._peerAt + 1) % peer.tableLength
        post = Post(self._sizes.sendBuffer + begin, TARGET_BYTES, address, peer.tableKey, number)
        return self._control(post)

    def _control(self, post: Post) -> Post:
        self._flying.append(False)
        self._controlsFlying += 1
        return post


def understood(privateData: bytes) -> ConnectionData:
    """
    Read the connection data of a peer, with whatever stands behind.

    @raise WireError: they are too short, of another version, or tell of no table.
    """
    said = ConnectionData.decode(privateData)
    if said.version != VERSION:
        raise WireError("ConnectionData", 0, f"rsockets of version {said.version}, not {VERSION}")
    if not said.tableLength:
        raise WireError("ConnectionData", 20, "a table without targets")
    return said
