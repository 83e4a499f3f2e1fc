"""
The data path of datagrams between two devices on one host: one ring per direction, without system calls.

Rings and records are those of L{txrdma.soft.shared._layout}; a record contains a packet of RoCE v2 from its
BTH on (InfiniBand Architecture vol. 1, annex A17), with an ICRC that is not computed. A packet is dropped if
the ring is full, as with a full socket buffer; over UDP it would overtake earlier ones.

The peer's box is untrusted: lengths and positions are checked. If a process dies while it writes, the header
is still 0, and nothing is read from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from txrdma.iba.verbs import Buffer
from txrdma.soft.shared._layout import CONSUMED, FIRST, LENGTH, LINE, PADDING, PLAIN, WAKE, Wake
from txrdma.soft.shared._rings import RingPair
from txrdma.unix.fences import acquire, barrier, ORDERED, release

AT_ONCE: Final = 64
"""Largest number of datagrams of one peer that are processed in one call, for fairness."""

_KIND: Final = 0xFF


class DatagramLane:
    """
    The datagrams between the local device and another one.

    @ivar name: IP address and UDP port of the other device.
    @ivar isUp: whether the other device's box is attached, so that datagrams can be sent.
    @ivar isClosed: whether the other process or this lane has ended; received packets remain readable.
    @ivar lost: datagrams dropped because the ring was full.
    """

    def __init__(self, name: tuple[str, int], box: memoryview, ring: Callable[[], None]) -> None:
        self.name = name
        self.isUp = self.isClosed = False
        self.lost = 0
        self._rings = RingPair(box)
        self._ring = ring
        self._consumed = 0
        self._epoch = 0
        self._rungFor = 0

    def attach(self, box: memoryview) -> None:
        """Attach the other device's box."""
        self._rings.read(box, FIRST)
        self.isUp = not self.isClosed

    # Out.

    def put(self, pieces: Sequence[Buffer], length: int) -> bool:
        """
        Write a packet of C{length} bytes, including the ICRC, for a polling peer; False: the ring is full.
        """
        if self._rings.append(PLAIN, 0, pieces, length):
            return True
        self.lost += 1
        return False

    def announce(self) -> None:
        """Wake the peer, if it has armed since its last wakeup."""
        acquire()  # barrier(), without its call
        release()
        if not ORDERED:
            barrier()
        wake = self._rings.peerWords[WAKE]
        if wake and wake != self._rungFor:
            self._ring()
            self._rungFor = wake

    # In.

    def take(self) -> list[memoryview]:
        """Return the next packets, views of the ring until L{taken}; raises ValueError for an invalid one."""
        rings = self._rings
        words = rings.peerWords
        at = rings.readIndex
        header = words[at]
        found: list[memoryview] = []
        if not header:
            return found
        end, data, consumed = rings.peerEnd, rings.peerBytes, self._consumed
        while header and len(found) < AT_ONCE:
            if not ORDERED:
                barrier()
            length = header & LENGTH
            kind = header >> 24 & _KIND
            after = at + ((length + LINE + 7 & -LINE) >> 3)
            if kind == PADDING:
                if at == FIRST or length + 8 != end - at << 3:
                    break
                consumed += length + 8
                after = FIRST
            elif kind != PLAIN or after > end:
                break
            else:
                start = (at << 3) + 8
                found.append(data[start : start + length])
                consumed += after - at << 3
            at = after if after < end else FIRST
            header = words[at]
        if at == rings.readIndex:
            raise ValueError(f"{header & LENGTH} bytes of kind {header >> 24 & _KIND} at word {at} of a box")
        rings.readIndex = at
        self._consumed = consumed
        return found

    def taken(self) -> None:
        """Release the ring space of received packets."""
        if not ORDERED:
            barrier()
        self._rings.localWords[CONSUMED] = self._consumed

    def arm(self) -> None:
        """Ask to be woken by the next packet; poll once after this."""
        if not self.isClosed:
            self._epoch += 1
            self._rings.localWords[WAKE] = self._epoch << 8 | Wake.RECEIVES
            barrier()

    def leave(self) -> None:
        """Stop sending; packets of the peer can still be received."""
        self.isUp = False
        self.isClosed = True

    def close(self) -> None:
        self.leave()
        if len(self._rings.localBytes):
            self._rings.close()
