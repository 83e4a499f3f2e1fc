"""
The carrier of an endpoint: the method by which its connections detect whether their peers support SMC.

It depends on the options C{device}, C{peer}, C{option} and C{runtime}. L{txrdma.smc.handshake.negotiation}
chooses the device of a connection.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.logger import Logger

from txrdma.error import RDMAError
from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.smc.common.realports import realPorts
from txrdma.smc.group.groups import linkGroups
from txrdma.smc.signalling.interfaces import Carrier, IClientSignal, IListenerSignal
from txrdma.smc.signalling.local import Announcements
from txrdma.smc.signalling.localsignal import LocalClientSignal
from txrdma.smc.terms.options import Options

_rateLimited = RateLimitedLogger(Logger())


def reachesOthers(options: Options) -> bool:
    """Return whether an endpoint with these options may have a device that reaches other hosts."""
    return options.device != "auto" or realPorts.isAny()


def carrierFor(reactor: Any, options: Options) -> Carrier:
    """Return the carrier for an endpoint with these options; rarely used modules are imported on demand."""
    takesTCP = options.fallback
    anybody = options.device != "auto"  # other users may connect if the device was configured
    approach: Callable[[], IClientSignal] = partial(LocalClientSignal, reactor, takesTCP)
    reception: Callable[[int], IListenerSignal] = partial(Announcements, reactor, anybody)
    if options.meetingDirectory:
        from txrdma.smc.signalling.neighbours import NeighbourAnnouncements
        from txrdma.smc.signalling.netns import NeighbourApproach
        from txrdma.unix.socketdirectory import SocketDirectory

        directory = SocketDirectory(options.meetingDirectory)
        approach = partial(NeighbourApproach, reactor, takesTCP, directory)
        reception = partial(NeighbourAnnouncements, reactor, anybody, directory)
    carrier = Carrier(approach, reception)
    if options.option and reachesOthers(options):
        from txrdma.smc.signalling.option.shared import sharedOption
        from txrdma.smc.signalling.tcpoption import MarkedApproach, MarkedReception

        option = sharedOption(reactor)
        isServed = realPorts.isAny if options.device == "auto" else partial(_opens, reactor, options.device)
        local = carrier
        carrier = Carrier(
            lambda: MarkedApproach(reactor, takesTCP, option, isServed, local.approach()),
            lambda backlog: MarkedReception(option, isServed, local.reception(backlog)),
        )
    if options.agreed:
        from txrdma.smc.signalling.configured import AgreedApproach, AgreedReception

        announced = carrier.reception
        return Carrier(
            partial(AgreedApproach, reactor, takesTCP), lambda backlog: AgreedReception(announced(backlog))
        )
    return carrier


def _opens(reactor: Any, device: str) -> bool:
    """Open a device, and return whether it reaches other hosts, which the TCP option implies."""
    try:
        groups = linkGroups(reactor, device)
    except (RDMAError, OSError) as error:
        _rateLimited.warn(
            device,
            "no TCP option, can't open the device {device}: {error}",
            device=device,
            error=errorText(error),
        )
        return False
    return not groups.canRest
