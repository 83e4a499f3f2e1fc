"""Programs that use streams of C{rsocket:} with TLS, as those of L{txrdma.testing.cm.users}."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from OpenSSL.SSL import Error

from twisted.internet.error import ConnectionLost
from twisted.internet.protocol import connectionDone
from twisted.internet.ssl import CertificateOptions, PrivateCertificate
from twisted.python.failure import Failure

from txrdma.testing.cm.userplans import Act, ActPlan, When
from txrdma.testing.cm.users import StreamUser
from txrdma.testing.streams.certificate import makeCertificate

_GREETING: Final = b"begin TLS"
_UNFIT: Final = (Act.PULL, Act.SWITCH, Act.SECOND, Act.QUIT)
"""Twisted's TLS resumes pull producers by the global reactor, and does not know the others."""


@cache
def _options(isServer: bool) -> Any:
    """Return the options of an end."""
    return PrivateCertificate.loadPEM(makeCertificate()).options() if isServer else CertificateOptions()


class SecuredUser(StreamUser):
    """
    The program at one end of a stream that begins TLS after the server's greeting.

    @ivar isSecured: whether TLS has begun.
    """

    hasTLS = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.isSecured = False
        self._greeting = b""

    @property
    def isQuiet(self) -> bool:
        return self.isSecured and super().isQuiet

    def connectionMade(self) -> None:
        if self.end:
            self.transport.write(_GREETING)
            self._secure()
        super().connectionMade()

    def _secure(self) -> None:
        self.isSecured = True
        self.transport.startTLS(_options(self.end == 1))
        self.transport.protocol._aggregator._clock = self.host

    def dataReceived(self, data: bytes) -> None:
        """Begin TLS after the greeting."""
        if self.isSecured:
            super().dataReceived(data)
            return
        self._greeting += data
        self.require(_GREETING.startswith(self._greeting), f"the greeting {self._greeting!r}")
        if self._greeting == _GREETING:
            self._secure()

    def act(self, plan: ActPlan) -> None:
        """
        Make an act, unless TLS has not begun, or cannot make it.

        Twisted's TLS drops what is written after a close, but not if a producer is registered then.
        """
        isFit = plan.act not in _UNFIT and not (plan.act is Act.PUSH and self.isEnding)
        if isFit and (self.isSecured or plan.act in (Act.ABORT, Act.PAUSE, Act.RESUME)):
            super().act(plan)

    def react(self, when: When) -> None:
        """Act in a callback; but not in C{pauseProducing}, where Twisted's TLS loses what is written."""
        if when is not When.PAUSE:
            super().react(when)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if reason.check(Error) is not None and self.connection.isDisturbed:  # written after the peer's end
            reason = Failure(ConnectionLost())
        super().connectionLost(reason)

    def half(self) -> None:
        """Close the connection: TLS has no halves."""
        self.close()
