"""What processes of one user can do to each other by a shared doorbell, and what they cannot."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from select import select
from threading import Thread
from typing import Any
from unittest import mock

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.soft.core.completion import SoftCompletionChannel
from txrdma.soft.shared.datagrams import SharedDatagrams
from txrdma.soft.shared.peerdevice import PeerDevice
from txrdma.soft.shared.unixpackets import ring
from txrdma.testing.reactors import ReactorClock
from txrdma.unix.eventfds import takeEvent

_FULL = (1 << 64) - 2
_UNTIL_HANGS = 0.2


class DoorbellTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.doorbell = os.eventfd(0, os.EFD_NONBLOCK)
        self.addCleanup(os.close, self.doorbell)

    def blocks(self, call: Callable[[], object], release: Callable[[], object]) -> bool:
        """Return whether a call in a thread blocks until the call of C{release}."""
        thread = Thread(target=call)
        thread.start()
        thread.join(_UNTIL_HANGS)
        isBlocked = thread.is_alive()
        release()
        thread.join()
        return isBlocked

    def assertReads(self, doorbell: int, read: Callable[[], object]) -> None:
        """Assert that a read does not block although the doorbell is empty and blocking."""
        try:
            os.preadv(doorbell, [bytearray(8)], -1, os.RWF_NOWAIT)
        except BlockingIOError:
            pass
        except OSError as error:
            raise SkipTest("Linux before 5.8") from error
        os.eventfd_write(doorbell, 1)
        os.eventfd_read(doorbell)  # by another process, after the reactor was woken
        os.set_blocking(doorbell, True)
        self.assertFalse(self.blocks(read, lambda: os.eventfd_write(doorbell, 1)))

    def test_readOfChannel(self) -> None:
        """A process that empties a completion channel's doorbell, and makes it blocking, blocks no reads."""
        channel = SoftCompletionChannel()
        self.addCleanup(channel.close)
        self.assertReads(channel.doorbell, channel.takeEvents)

    def test_readOfDatagrams(self) -> None:
        """A process that does so with the doorbell for a port's datagrams blocks no reads, either."""
        reactor: Any = ReactorClock()
        rendezvous: Any = None
        datagrams = SharedDatagrams(reactor, rendezvous, lambda name: None, lambda name, reason: None)
        self.addCleanup(datagrams.close)
        datagrams.open(PeerDevice(("10.0.0.2", 4791)))
        (reader,) = reactor.readers
        self.assertReads(reader.fileno(), reader.silence)

    def test_fullAndBlocking(self) -> None:
        """A process that fills a doorbell, and makes it blocking, blocks who rings it, until it is read."""
        os.eventfd_write(self.doorbell, _FULL)
        ring(self.doorbell)
        os.set_blocking(self.doorbell, True)
        self.assertTrue(self.blocks(lambda: ring(self.doorbell), lambda: os.eventfd_read(self.doorbell)))

    def test_emptied(self) -> None:
        """A process that reads a doorbell prevents its owner from being woken."""
        ring(self.doorbell)
        self.assertTrue(select([self.doorbell], [], [], 0)[0])
        takeEvent(self.doorbell)
        self.assertFalse(select([self.doorbell], [], [], 0)[0])

    def test_withoutPreadv2(self) -> None:
        """Where the system does not read at once regardless of flags, a non-blocking doorbell is read."""
        for error in (OSError(errno.EOPNOTSUPP, ""), OSError(errno.ENOSYS, ""), NotImplementedError()):
            with mock.patch.object(os, "preadv", side_effect=error):
                self.assertFalse(takeEvent(self.doorbell))
                ring(self.doorbell)
                self.assertTrue(takeEvent(self.doorbell))
                self.assertFalse(takeEvent(self.doorbell))
