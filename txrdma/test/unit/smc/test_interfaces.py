"""
The interfaces of endpoints, transports, backends and signalling methods.
"""

from __future__ import annotations

from zope.interface.verify import verifyObject

from twisted.internet.interfaces import (
    IListeningPort,
    ITCPTransport,
)
from twisted.trial.unittest import SynchronousTestCase

from txrdma.interfaces import ISMCStatus, ISMCTransport
from txrdma.smc.handshake.carriers import carrierFor
from txrdma.smc.kernel.status import KernelStatus
from txrdma.smc.kernel.transports import KernelClient, KernelPort, KernelServer
from txrdma.smc.signalling.interfaces import IClientSignal, IListenerSignal
from txrdma.smc.signalling.tcpoption import MarkedApproach
from txrdma.smc.terms.options import Options
from txrdma.test.support.smc.ends import reactor


class InterfaceTests(SynchronousTestCase):
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
