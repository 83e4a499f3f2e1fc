"""
The option carrier that all sockets of a reactor share: opened when one wants it, closed when SMC rests.

An option that can't be had is no error: the reason is logged once, and connections find out about their peers
by other carriers.
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

WHICH: Final = "TXRDMA_SMC_OPTION"
"""
The environment variable by which processes are kept from loading a program of their own: C{installed}.

They use one that C{txrdma smc-option install} has left, or none.
"""

_logged: set[str] = set()
"""Reasons for which the option can't be had, that this process has logged."""


def openUsual() -> OptionCarrier:
    """Open the carrier as the environment allows; what only that needs is imported now."""
    from txrdma.smc.signalling.option.carrier import openCarrier

    return openCarrier(mayLoad=os.environ.get(WHICH) != "installed")


class SharedOption:
    """
    The option carrier of a reactor's sockets, while SMC is in use there (L{txrdma.smc.common.reactoruse}).

    @ivar open: opens the carrier, which may not be available.
    """

    isBusy: Final = False

    def __init__(self, presence: ReactorUse, open: Callable[[], OptionCarrier] = openUsual) -> None:
        self.open = open
        self._reactorUse = presence
        self._carrier: OptionCarrier | None = None

    def _need(self) -> OptionCarrier:
        """The carrier, which is opened if need be."""
        if self._carrier is None:
            self._carrier = self.open()
            self._reactorUse.add(self)
            if not self._carrier.isAvailable:
                _note(self._carrier.why)
        return self._carrier

    @property
    def isAvailable(self) -> bool:
        """Whether sockets can have the option."""
        return self._need().isAvailable

    def markClient(self, unconnected: socket.socket) -> bool:
        """
        Have the SYN of a client's socket carry the option.

        @return: whether it is going to.
        """
        return self._mark(self._need().markBeforeConnect, unconnected)

    def markListener(self, listener: socket.socket) -> bool:
        """
        Have a socket that is going to listen answer with the option.

        @return: whether it is going to.
        """
        return self._mark(self._need().markBeforeListen, listener)

    def _mark(self, mark: Callable[[socket.socket], None], unused: socket.socket) -> bool:
        if not self.isAvailable:
            return False
        try:
            mark(unused)
        except OptionUnavailable as error:
            _note(str(error))
            return False
        return True

    def wasExchanged(self, connection: socket.socket) -> bool:
        """
        Find out whether both ends of a connection have sent the option; the kernel remembers it no longer.

        False also where the kernel does not say.
        """
        carrier = self._need()
        if not carrier.isAvailable:
            return False
        try:
            found = carrier.peerHasOption(connection)
            carrier.forget(connection)
        except OptionUnavailable as error:
            _note(str(error))
            return False
        return found

    def rest(self) -> None:
        """Close the carrier: SMC is not in use. Twice is fine."""
        carrier, self._carrier = self._carrier, None
        self._reactorUse.remove(self)
        if carrier is not None:
            carrier.close()

    def wake(self) -> None:
        """Do nothing: the carrier is opened by the first socket that wants it."""


def _note(reason: str) -> None:
    """Log why the option can't be had, each reason once."""
    if reason not in _logged:
        _logged.add(reason)
        _log.info("SMC's TCP option is not available, so kernels get plain TCP: {reason}", reason=reason)


_ofReactor: WeakKeyDictionary[object, SharedOption] = WeakKeyDictionary()


def sharedOption(reactor: object) -> SharedOption:
    """The option carrier of the sockets that a reactor has."""
    option = _ofReactor.get(reactor)
    if option is None:
        option = _ofReactor[reactor] = SharedOption(reactorUse(reactor))
    return option
