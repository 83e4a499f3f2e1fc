"""
Notifies systemd that a service is ready and alive, and of its status.

Follows sd_notify(3) and sd_watchdog_enabled(3): datagrams to the socket named by C{NOTIFY_SOCKET}. Nothing is
sent if that is not set.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from txrdma.kit.logs import errorText

_log = Logger()

_MICROSECONDS: Final = 1_000_000
_SHARE: Final = 3
"""Notifications for each watchdog timeout."""


class SystemNotifier:
    """
    Notifies systemd from L{start} to L{stop}.

    @ivar isReady: whether systemd was notified that the service is ready.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        environment: Mapping[str, str],
        isAlive: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        @param environment: the environment variables of the process.
        @param isAlive: returns False if the service hangs, so that systemd restarts it.
        """
        self.isReady = False
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._status = ""
        isThisProcess = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        try:
            microseconds = int(environment.get("WATCHDOG_USEC", "0")) if isThisProcess else 0
        except ValueError:
            microseconds = 0
        self._seconds = microseconds / _MICROSECONDS / _SHARE
        self._isAlive = isAlive
        self._call = LoopingCall(self._notifyWatchdog)
        self._call.clock = reactor

    def start(self) -> None:
        """Start watchdog notifications, if systemd has requested them."""
        if self._address and self._seconds > 0:
            self._call.start(self._seconds)

    def _notifyWatchdog(self) -> None:
        if self._isAlive():
            self._send("WATCHDOG=1")

    def ready(self, status: str) -> None:
        """Notify systemd that the service is ready, once and after each reload, and of a new status."""
        lines = [] if self.isReady else ["READY=1"]
        if status and status != self._status:
            self._status = status
            lines.append(f"STATUS={status}")
        self.isReady = True
        if lines:
            self._send("\n".join(lines))

    def reloading(self) -> None:
        """Notify systemd that the configuration is being reloaded, until L{ready} is called."""
        if self.isReady:
            self.isReady = False
            self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stop(self) -> None:
        """Notify systemd that the service is stopping, and of nothing after that. Idempotent."""
        if self._call.running:
            self._call.stop()
        self._send("STOPPING=1")
        self._address = ""  # a round that ends later has another status

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(text.encode("utf-8", "replace"), self._address)
        except OSError as error:
            _log.debug("can't notify systemd: {why}", why=errorText(error))
