"""
Sockets between processes that share memory, at names of the system.
"""

from __future__ import annotations

import os
import socket
from typing import Any, cast
from unittest.mock import patch

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.soft.shared import unixpackets
from txrdma.soft.shared._rendezvous import rendezvousName
from txrdma.soft.shared.unixpackets import UnixRendezvous


class OtherUserTests(SynchronousTestCase):
    """A process of another user that listens at the name of a device."""

    def test_isNotConnectedTo(self) -> None:
        reactor, port = cast(Any, MemoryReactorClock()), os.getpid() % 65536
        rendezvous = UnixRendezvous(reactor)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(rendezvousName("192.0.2.1", port))
            listening.listen()
            line = rendezvous.connect("192.0.2.1", port)
            assert line is not None
            line.close()
            with patch.object(unixpackets, "isSameUser", lambda user: user != os.geteuid()):
                self.assertIsNone(rendezvous.connect("192.0.2.1", port))
