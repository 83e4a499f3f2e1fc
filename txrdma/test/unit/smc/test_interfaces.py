"""
The interfaces of endpoints, transports, backends and signalling methods.
"""

from __future__ import annotations

from zope.interface.verify import verifyClass, verifyObject

from twisted.internet.interfaces import (
    IListeningPort,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
    ITCPTransport,
)
from twisted.trial.unittest import SynchronousTestCase

from txrdma.interfaces import ISMCStatus, ISMCTransport
from txrdma.smc.endpoints import SMCClientEndpoint, SMCServerEndpoint
from txrdma.smc.handshake.carriers import carrierFor
from txrdma.smc.interfaces import ISMCBackend
from txrdma.smc.kernel.status import KernelStatus
from txrdma.smc.kernel.transports import KernelBackend, KernelClient, KernelPort, KernelServer
from txrdma.smc.signalling.approaching import LocalApproach
from txrdma.smc.signalling.configured import AgreedApproach, AgreedReception, UnannouncedArrival
from txrdma.smc.signalling.dialing import DialedClient
from txrdma.smc.signalling.interfaces import IClientSignal, IDialing, IListenerSignal, IServerSignal
from txrdma.smc.signalling.local import Announced, Announcements
from txrdma.smc.signalling.tcpoption import MarkedApproach, MarkedReception
from txrdma.smc.stream.transport import SMCTransport
from txrdma.smc.terms.options import Options
from txrdma.smc.userspace import UserspaceBackend
from txrdma.test.support.smc.ends import reactor


class InterfaceTests(SynchronousTestCase):
    def test_methodsAreProvided(self) -> None:
        for interface, kinds in (
            (IStreamClientEndpoint, (SMCClientEndpoint,)),
            (IStreamServerEndpoint, (SMCServerEndpoint,)),
            (ITCPTransport, (SMCTransport,)),
            (ISMCBackend, (UserspaceBackend, KernelBackend)),
            (IDialing, (DialedClient,)),
            (IClientSignal, (LocalApproach, AgreedApproach, MarkedApproach)),
            (IServerSignal, (Announced, UnannouncedArrival)),
            (IListenerSignal, (Announcements, AgreedReception, MarkedReception)),
        ):
            for kind in kinds:
                verifyClass(interface, kind)

    def test_kernelsTransportsDeclareInterfaces(self) -> None:
        for kind in (KernelClient, KernelServer):
            self.assertTrue(ITCPTransport.implementedBy(kind) and ISMCTransport.implementedBy(kind))
        self.assertTrue(ISMCStatus.implementedBy(KernelStatus))
        self.assertTrue(IListeningPort.implementedBy(KernelPort))

    def test_carrierByOptions(self) -> None:
        for options, isMarked in (
            (Options(), False),
            (Options(agreed=True), False),
            (Options(device="soft"), True),
            (Options(device="soft", option=False), False),
        ):
            carrier = carrierFor(reactor, options)
            approach = carrier.approach()
            verifyObject(IClientSignal, approach)
            verifyObject(IListenerSignal, carrier.reception(5))
            self.assertEqual(isinstance(approach, MarkedApproach), isMarked, options)
