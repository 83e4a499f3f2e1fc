"""
Endpoints on the real reactor: who speaks SMC with whom, and what happens when one does not.
"""

from __future__ import annotations

from zope.interface.verify import verifyClass

from twisted.internet.interfaces import IStreamClientEndpoint, IStreamServerEndpoint, ITCPTransport
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.endpoints import SMCClientEndpoint, SMCServerEndpoint
from txrdma.smc.stream.transport import SMCTransport


class InterfaceTests(SynchronousTestCase):
    """What is promised to the type checker is there."""

    def test_provided(self) -> None:
        """Endpoints and the transport have all methods, with the right arguments."""
        verifyClass(IStreamClientEndpoint, SMCClientEndpoint)
        verifyClass(IStreamServerEndpoint, SMCServerEndpoint)
        verifyClass(ITCPTransport, SMCTransport)
