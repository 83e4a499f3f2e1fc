"""Settings of a time series engine that receives the history, and whose series charts read."""

from __future__ import annotations

from typing import Final

from txrdma.kit.values import frozen

METRIC: Final = "infiniband_history"
"""Name of all series; the label C{column} has the name of the column, C{guid} and C{port} the port."""


@frozen
class RemoteSettings:
    """
    A time series engine: Prometheus, or one with the same interfaces.

    @ivar url: URL for remote write.
    @ivar spill: path of the folder of unsent requests; C{mostOctets} limits its size.
    @ivar queryURL: URL of the engine's API, without C{/api/v1}; C{""} to read from the history's database.
    @ivar timeoutSeconds: time for each request.
    @ivar labels: labels of all series, such as the name of the fabric.
    @ivar headers: headers of all requests, such as the name of a tenant.
    @ivar authorization: value of the Authorization header; C{""} for none.
    """

    url: str
    spill: str
    mostOctets: int = 1 << 30
    queryURL: str = ""
    timeoutSeconds: float = 10.0
    labels: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    authorization: str = ""

    @property
    def allHeaders(self) -> dict[str, str]:
        """Return the headers of all requests, with the authorization."""
        more = {"Authorization": self.authorization} if self.authorization else {}
        return {**dict(self.headers), **more}
