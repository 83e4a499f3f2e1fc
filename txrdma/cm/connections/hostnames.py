"""
IP addresses of host names, by the reactor's resolver, and attempts to connect to each of them.

Follows RFC 8305, section 5 (connection attempts), as Twisted's C{HostnameEndpoint} does.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from zope.interface import implementer

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import CancelledError, Deferred, fail, maybeDeferred, succeed
from twisted.internet.interfaces import (
    IAddress,
    IHostResolution,
    IReactorPluggableNameResolver,
    IResolutionReceiver,
)
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.cm.errors import HostUnknown
from txrdma.kit.delayedcalls import Timer
from txrdma.kit.logs import errorText

_log = Logger()

ATTEMPT_DELAY: Final = 0.3
"""Seconds after which the next address of a host is tried while earlier attempts are pending."""

Connected = TypeVar("Connected")


@implementer(IResolutionReceiver)
class _Receiver:
    """Collects the addresses that a resolver finds, each once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: dict[str, None] = {}
        self._resolution: IHostResolution | None = None
        self.answer: Deferred[list[str]] = Deferred(self._cancel)

    def resolutionBegan(self, resolution: IHostResolution) -> None:
        self._resolution = resolution

    def addressResolved(self, address: IAddress) -> None:
        if isinstance(address, (IPv4Address, IPv6Address)):
            self._found[address.host] = None

    def resolutionComplete(self) -> None:
        if self.answer.called:
            return
        if self._found:
            self.answer.callback(list(self._found))
        else:
            self.answer.errback(HostUnknown(f"{self._name} has no IP address"))

    def _cancel(self, answer: Deferred[list[str]]) -> None:
        answer.errback(CancelledError())  # first: a resolver may report that it has found nothing
        if self._resolution is not None:
            try:
                self._resolution.cancel()
            except NotImplementedError:  # Twisted's threaded resolver; its late answer is ignored
                pass


def isAddress(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def addressesOf(reactor: Any, host: str) -> Deferred[list[str]]:
    """
    Resolve a host name, or return an IP address unchanged.

    @return: fires with at least one address, in the resolver's order; fails with L{HostUnknown}. It can be
        cancelled.
    """
    if isAddress(host):
        return succeed([host])
    resolving = IReactorPluggableNameResolver(reactor, None)
    if resolving is None:
        return fail(HostUnknown(f"the reactor cannot resolve {host}: it has no resolver"))
    try:
        host.encode("idna")
    except UnicodeError as error:  # for which Twisted's resolver never ends
        return fail(HostUnknown(f"{host} is not a host name: {error}"))
    receiver = _Receiver(host)
    resolving.nameResolver.resolveHostName(receiver, host)
    return receiver.answer


class Attempts(Generic[Connected]):
    """
    Attempts to connect to the addresses of a host, one begun after the other, until the first one succeeds.

    @ivar answer: fires with the first result, and cancels the other attempts; fails with the error of the
        last attempt. Cancelling it cancels them all.
    """

    def __init__(
        self,
        reactor: Any,
        host: str,
        addresses: Sequence[str],
        connect: Callable[[str], Deferred[Connected]],
    ) -> None:
        self._reactor, self._host, self._connect = reactor, host, connect
        self._waiting = list(addresses)
        self._pending: list[Deferred[Connected]] = []
        self._timer = Timer(reactor)
        self.answer: Deferred[Connected] = Deferred(lambda _: self._stop())
        self._begin()

    def _begin(self) -> None:
        """Try the next address."""
        self._timer.stop()
        address = self._waiting.pop(0)
        attempt = maybeDeferred(self._attempt, address)
        self._pending.append(attempt)
        attempt.addCallbacks(self._succeeded, self._failed, (attempt,), {}, (attempt, address))

    def _attempt(self, address: str) -> Deferred[Connected]:
        if self._waiting:
            self._timer.start(ATTEMPT_DELAY, self._begin)
        return self._connect(address)

    def _succeeded(self, result: Connected, attempt: Deferred[Connected]) -> None:
        self._pending.remove(attempt)
        self._stop()
        self.answer.callback(result)

    def _failed(self, failure: Failure, attempt: Deferred[Connected], address: str) -> None:
        if attempt not in self._pending:  # it was cancelled
            return
        self._pending.remove(attempt)
        if self._waiting:
            text = "Could not connect to {host} at {address}: {error}"
            _log.info(text, host=self._host, address=address, error=errorText(failure.value))
            self._begin()
        elif not self._pending:
            self.answer.errback(failure)

    def _stop(self) -> None:
        """Cancel everything that is pending, also if an exception prevents that at first."""
        self._timer.stop()
        self._waiting.clear()
        pending, self._pending = self._pending, []
        for attempt in pending:
            try:
                attempt.cancel()
            except Exception:
                _log.failure("An attempt to connect to {host} is cancelled again", host=self._host)
                with suppress(Exception):
                    attempt.cancel()  # else it might connect a protocol of which no caller knows


def connectToHost(
    reactor: Any, host: str, connect: Callable[[str], Deferred[Connected]]
) -> Deferred[Connected]:
    """
    Connect to an IP address, or to the first address of a name that accepts: see L{Attempts}.

    @param connect: makes an attempt to connect to one address.
    """
    if isAddress(host):
        return connect(host)

    async def connectByName() -> Connected:
        return await Attempts(reactor, host, await addressesOf(reactor, host), connect).answer

    return Deferred.fromCoroutine(connectByName())
