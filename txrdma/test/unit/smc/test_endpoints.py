"""
The interfaces of endpoints and transports.
"""

from __future__ import annotations

from zope.interface.verify import verifyClass

from twisted.internet.interfaces import IStreamClientEndpoint, IStreamServerEndpoint, ITCPTransport
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.endpoints import SMCClientEndpoint, SMCServerEndpoint
from txrdma.smc.stream.transport import SMCTransport


class InterfaceTests(SynchronousTestCase):
    """The interfaces known to the type checker are provided."""

    def test_provided(self) -> None:
        """Endpoints and the transport have all methods with the right arguments."""
        verifyClass(IStreamClientEndpoint, SMCClientEndpoint)
        verifyClass(IStreamServerEndpoint, SMCServerEndpoint)
        verifyClass(ITCPTransport, SMCTransport)
