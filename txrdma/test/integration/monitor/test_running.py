"""
Running a monitor: reloading, systemd, files for schedulers, and the terminal.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.tap.systemd import SystemNotifier


class Listener:
    """A socket as systemd has one."""

    def __init__(self, case: SynchronousTestCase, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)
        case.addCleanup(self._socket.close)

    def said(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return found


class SystemTests(SynchronousTestCase):
    """What systemd is told."""

    def told(self, address: str, **environment: str) -> tuple[Listener, SystemNotifier, Clock]:
        listener, clock = Listener(self, address), Clock()
        notifier = SystemNotifier(clock, {"NOTIFY_SOCKET": address, **environment})
        notifier.start()
        return listener, notifier, clock

    def test_life(self) -> None:
        """Systemd is told of the beginning, the state, each reload, and the end; each once."""
        listener, notifier, _clock = self.told(str(Path(self.mktemp()).absolute())[-90:].replace("/", "-"))
        self.assertEqual(listener.said(), [])
        notifier.ready("5 nodes")
        notifier.ready("5 nodes")
        notifier.ready("4 nodes")
        self.assertEqual(listener.said(), ["READY=1\nSTATUS=5 nodes", "STATUS=4 nodes"])
        notifier.reloading()
        notifier.ready("")
        first, second = listener.said()
        self.assertRegex(first, r"^RELOADING=1\nMONOTONIC_USEC=\d+$")
        self.assertEqual(second, "READY=1")
        notifier.stop()
        self.assertEqual(listener.said(), ["STOPPING=1"])

    def test_watchdog(self) -> None:
        """A watchdog hears of us three times in its time, on an abstract socket, too."""
        name = f"@txrdma-test-{os.getpid()}"
        listener, notifier, clock = self.told(name, WATCHDOG_USEC="30000000")
        clock.pump([1.0] * 60)
        said = listener.said()
        self.assertEqual((set(said), len(said)), ({"WATCHDOG=1"}, 7))
        notifier.stop()
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_strangers(self) -> None:
        """Without systemd nothing is sent; the watchdog of another process, and nonsense, are not for us."""
        for environment in (
            {},
            {"NOTIFY_SOCKET": "/nonexistent", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
            {"NOTIFY_SOCKET": "/nonexistent", "WATCHDOG_USEC": "often"},
        ):
            clock = Clock()
            notifier = SystemNotifier(clock, environment)
            notifier.start()
            notifier.ready("well")
            self.assertEqual(clock.getDelayedCalls(), [])
            notifier.stop()
