"""Claims for service IDs, where the managers of several processes share queue pair 1."""

from __future__ import annotations

from collections.abc import Callable

from txrdma.interfaces import IServiceClaims


class _Claim:
    """A claim for a service ID; C{users} are its listeners and peer-to-peer connections."""

    def __init__(self, release: Callable[[], None]) -> None:
        self.release = release
        self.users = 0


class ServiceClaims:
    """
    The claims of one manager.

    @ivar share: upper 8 bits of communication IDs and request IDs; None for any.
    """

    def __init__(self, port: object) -> None:
        """@param port: a management port; claims are needed only if it provides L{IServiceClaims}."""
        self._provider = IServiceClaims(port, None)
        self.share: int | None = None if self._provider is None else self._provider.share
        self._claims: dict[int, _Claim] = {}

    def claim(self, serviceID: int) -> Callable[[], None]:
        """
        Receive requests for a service ID in this process, until the returned function is called.

        @raise txrdma.error.ResourceExhausted: another process has the service.
        """
        if self._provider is None:
            return lambda: None
        claim = self._claims.get(serviceID)
        if claim is None:
            claim = self._claims[serviceID] = _Claim(self._provider.claimService(serviceID))
        claim.users += 1

        def release() -> None:
            claim.users -= 1
            if not claim.users and self._claims.get(serviceID) is claim:
                del self._claims[serviceID]
                claim.release()

        return release

    def close(self) -> None:
        """Release all claims."""
        claims, self._claims = self._claims, {}
        for claim in claims.values():
            claim.release()
