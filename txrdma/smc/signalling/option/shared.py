"""
The option carrier of a reactor's sockets. It is opened on first use, and closed when SMC is idle.

If the option can't be used, the reason is logged once, and other carriers are used.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Final, TYPE_CHECKING
from weakref import WeakKeyDictionary

from twisted.logger import Logger

from txrdma.smc.common.reactoruse import ReactorUse, reactorUse
from txrdma.smc.signalling.option.reasons import OptionUnavailable

if TYPE_CHECKING:
    from txrdma.smc.signalling.option.carrier import OptionCarrier

_log = Logger()

VARIABLE: Final = "TXRDMA_SMC_OPTION"
"""Environment variable; with the value C{installed} only an installed program is used."""

_logged: set[str] = set()
"""Reasons that this process has logged."""


def openByEnvironment() -> OptionCarrier:
    """Open the carrier as the environment allows; its modules are imported here to save time at start-up."""
    from txrdma.smc.signalling.option.carrier import openCarrier

    return openCarrier(mayLoad=os.environ.get(VARIABLE) != "installed")


class SharedOption:
    """The option carrier of a reactor's sockets, opened by C{open} while SMC is in use there."""

    isBusy: Final = False

    def __init__(self, uses: ReactorUse, open: Callable[[], OptionCarrier] = openByEnvironment) -> None:
        self.open = open
        self._reactorUse = uses
        self._carrier: OptionCarrier | None = None

    def _opened(self) -> OptionCarrier:
        if self._carrier is None:
            self._carrier = self.open()
            self._reactorUse.add(self)
            if not self._carrier.isAvailable:
                _logOnce(self._carrier.why)
        return self._carrier

    @property
    def isAvailable(self) -> bool:
        return self._opened().isAvailable

    def markClient(self, unconnected: socket.socket) -> bool:
        """Add the option to the SYN of a client's socket; return whether this succeeded."""
        return self._mark(self._opened().markBeforeConnect, unconnected)

    def markListener(self, listener: socket.socket) -> bool:
        """Add the option to the SYN-ACKs of a future listener; return whether this succeeded."""
        return self._mark(self._opened().markBeforeListen, listener)

    def _mark(self, mark: Callable[[socket.socket], None], unused: socket.socket) -> bool:
        if not self.isAvailable:
            return False
        try:
            mark(unused)
        except OptionUnavailable as error:
            _logOnce(str(error))
            return False
        return True

    def wasExchanged(self, connection: socket.socket) -> bool:
        """Return whether both ends of a connection have sent the option; free the kernel's record of it."""
        carrier = self._opened()
        if not carrier.isAvailable:
            return False
        try:
            isExchanged = carrier.peerHasOption(connection)
            carrier.forget(connection)
        except OptionUnavailable as error:
            _logOnce(str(error))
            return False
        return isExchanged

    def rest(self) -> None:
        """Close the carrier, because SMC is not in use. Idempotent."""
        carrier, self._carrier = self._carrier, None
        self._reactorUse.remove(self)
        if carrier is not None:
            carrier.close()

    def wake(self) -> None:
        """Do nothing: the first socket opens the carrier."""


def _logOnce(reason: str) -> None:
    """Log why the option can't be used, each reason once."""
    if reason not in _logged:
        _logged.add(reason)
        _log.info(
            "SMC's TCP option is not available, connections with kernels use plain TCP: {reason}",
            reason=reason,
        )


_byReactor: WeakKeyDictionary[object, SharedOption] = WeakKeyDictionary()


def sharedOption(reactor: object) -> SharedOption:
    option = _byReactor.get(reactor)
    if option is None:
        option = _byReactor[reactor] = SharedOption(reactorUse(reactor))
    return option
