"""
Notification of systemd: that a service is ready, that it lives, and how it is.

Follows sd_notify(3) and sd_watchdog_enabled(3): datagrams to the socket that C{NOTIFY_SOCKET} names. Without
that nothing is sent.
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

_log = Logger()

_MICROSECONDS: Final = 1_000_000
_SHARE: Final = 3
"""Notifications in the time after which systemd takes a service for dead."""


class SystemNotifier:
    """
    Notifier of systemd, from L{start} to L{stop}.

    @ivar isReady: True once the service has reported that it is ready.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        environment: Mapping[str, str],
        isAlive: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        @param environment: variables that systemd has set for the process.
        @param isAlive: returns False while the service does no work: then systemd is to restart it.
        """
        self.isReady = False
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._status = ""
        isOurs = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        try:
            microseconds = int(environment.get("WATCHDOG_USEC", "0")) if isOurs else 0
        except ValueError:
            microseconds = 0
        self._seconds = microseconds / _MICROSECONDS / _SHARE
        self._isAlive = isAlive
        self._call = LoopingCall(self._feed)
        self._call.clock = reactor

    def start(self) -> None:
        """Tell systemd regularly that the service works, where it wants to know."""
        if self._address and self._seconds > 0:
            self._call.start(self._seconds)

    def _feed(self) -> None:
        if self._isAlive():
            self._send("WATCHDOG=1")

    def ready(self, status: str) -> None:
        """Tell systemd that the service is ready, once and after a reload, and how it is."""
        news = [] if self.isReady else ["READY=1"]
        if status and status != self._status:
            self._status = status
            news.append(f"STATUS={status}")
        self.isReady = True
        if news:
            self._send("\n".join(news))

    def reloading(self) -> None:
        """Tell systemd that the configuration is read anew, until L{ready} is called."""
        if self.isReady:
            self.isReady = False
            self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stop(self) -> None:
        """Tell systemd that the service ends. Twice is fine."""
        if self._call.running:
            self._call.stop()
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(text.encode("utf-8", "replace"), self._address)
        except OSError as error:
            _log.debug("systemd was not told: {why}", why=error)
