"""
The carrier of an endpoint's connections, as its options choose it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from zope.interface import implementer

from twisted.logger import Logger

from txrdma.error import RDMAError
from txrdma.kit.logs import RateLimitedLogger
from txrdma.smc.common.realports import realPorts
from txrdma.smc.group.groups import linkGroups
from txrdma.smc.signalling.approaching import LocalApproach
from txrdma.smc.signalling.interfaces import ICarrier
from txrdma.smc.signalling.local import Announcements
from txrdma.smc.terms.options import Options

_seldom = RateLimitedLogger(Logger())


@implementer(ICarrier)
class LocalCarrier:
    """Announces connections within this host by a UNIX socket: L{txrdma.smc.signalling.local}."""

    def __init__(self, reactor: Any, takesTCP: bool, anybody: bool) -> None:
        """
        @param takesTCP: connections on plain TCP will do.
        @param anybody: processes of other users may announce connections, too.
        """
        self._reactor = reactor
        self._takesTCP = takesTCP
        self._acceptsOtherUsers = anybody

    def approach(self) -> LocalApproach:
        return LocalApproach(self._reactor, self._takesTCP)

    def reception(self, room: int) -> Announcements:
        return Announcements(self._reactor, self._acceptsOtherUsers, room)


def reachesOthers(options: Options) -> bool:
    """Whether an endpoint with these options may have a device that reaches other hosts."""
    return options.device != "auto" or realPorts.isAny()


def carrierFor(reactor: Any, options: Options) -> ICarrier:
    """
    The carrier by which an endpoint with these options finds out whether its peers speak SMC.

    Carriers that most endpoints do without are imported when one is wanted.
    """
    takesTCP = options.fallback
    local = LocalCarrier(reactor, takesTCP, anybody=options.device != "auto")
    carrier: ICarrier = local
    directory = options.meetingDirectory
    if directory:
        from txrdma.smc.signalling.netns import NeighbourCarrier
        from txrdma.unix.places import SocketDirectory

        carrier = NeighbourCarrier(reactor, takesTCP, local.reception, SocketDirectory(directory))
    if options.option and reachesOthers(options):
        from txrdma.smc.signalling.option.shared import sharedOption
        from txrdma.smc.signalling.tcpoption import MarkedCarrier

        isServed = realPorts.isAny if options.device == "auto" else partial(_opens, reactor, options.device)
        carrier = MarkedCarrier(reactor, takesTCP, sharedOption(reactor), isServed, carrier)
    if options.agreed:
        from txrdma.smc.signalling.configured import AgreedCarrier

        carrier = AgreedCarrier(reactor, takesTCP, carrier)
    return carrier


def _opens(reactor: Any, device: str) -> bool:
    """Open a device, and find out whether it leads to other hosts: the option promises that."""
    try:
        groups = linkGroups(reactor, device)
    except (RDMAError, OSError) as error:
        _seldom.warn(
            device, "no TCP option, can't open the device {device}: {error}", device=device, error=error
        )
        return False
    return not groups.canRest
