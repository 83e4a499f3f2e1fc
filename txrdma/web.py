"""
HTTP over SMC-R, for the agent of C{twisted.web} and for treq::

    agent = Agent.usingEndpointFactory(reactor, SMCAgentEndpointFactory(reactor))
    client = treq.client.HTTPClient(agent)
"""

from __future__ import annotations

from typing import Any

from zope.interface import implementer

from twisted.internet.endpoints import wrapClientTLS
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.web.client import BrowserLikePolicyForHTTPS, URI
from twisted.web.error import SchemeNotSupported
from twisted.web.iweb import IAgentEndpointFactory, IPolicyForHTTPS

from txrdma.smc.endpoints import SMCClientEndpoint
from txrdma.smc.terms.options import Options


@implementer(IAgentEndpointFactory)
class SMCAgentEndpointFactory:
    """
    Endpoints for C{http:} and C{https:} addresses: SMC-R where the server supports it, TCP elsewhere.

    @param policy: how the certificates of C{https:} servers are checked; needs Twisted's C{tls} extra.
    @param options: options of the endpoints.
    """

    def __init__(
        self, reactor: Any, policy: IPolicyForHTTPS | None = None, options: Options | None = None
    ) -> None:
        self._reactor = reactor
        self._policy = policy
        self._options = options or Options()

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        """
        See L{IAgentEndpointFactory}.

        @raise twisted.web.error.SchemeNotSupported: it is neither C{http:} nor C{https:}.
        """
        endpoint = SMCClientEndpoint(self._reactor, uri.host.decode("ascii"), uri.port, self._options)
        if uri.scheme == b"http":
            return endpoint
        if uri.scheme == b"https":
            if self._policy is None:
                self._policy = BrowserLikePolicyForHTTPS()
            return wrapClientTLS(self._policy.creatorForNetloc(uri.host, uri.port), endpoint)
        raise SchemeNotSupported(f"Unsupported scheme: {uri.scheme!r}")
