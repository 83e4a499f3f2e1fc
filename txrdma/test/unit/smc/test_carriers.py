"""
The interface of signalling methods, tested with one that detects connections by their SYN.
"""

from __future__ import annotations

from zope.interface.verify import verifyClass, verifyObject

from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.handshake.carriers import carrierFor
from txrdma.smc.signalling.approaching import LocalApproach
from txrdma.smc.signalling.configured import AgreedApproach, AgreedReception, UnannouncedArrival
from txrdma.smc.signalling.dialing import DialedClient
from txrdma.smc.signalling.interfaces import IClientSignal, IDialing, IListenerSignal, IServerSignal
from txrdma.smc.signalling.local import Announced, Announcements
from txrdma.smc.terms.options import Options
from txrdma.test.support.smc.ends import reactor


class InterfaceTests(SynchronousTestCase):
    """Signalling methods and their parts."""

    def test_provided(self) -> None:
        verifyClass(IDialing, DialedClient)
        for options in (Options(), Options(agreed=True)):
            carrier = carrierFor(reactor, options)
            verifyObject(IClientSignal, carrier.approach())
            verifyObject(IListenerSignal, carrier.reception(5))
        for kind in (LocalApproach, AgreedApproach):
            verifyClass(IClientSignal, kind)
        for known in (Announced, UnannouncedArrival):
            verifyClass(IServerSignal, known)
        for received in (Announcements, AgreedReception):
            verifyClass(IListenerSignal, received)
