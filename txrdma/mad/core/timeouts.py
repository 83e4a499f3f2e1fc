"""
Timeouts of requests: how long to wait for a response, by path and by the response times of peers, and how
often to send a request again.

Follows InfiniBand Architecture vol. 1, 13.4.6.2 (timeouts) and 13.4.8.1 (RespTimeValue). Nothing here reads a
clock or a socket.
"""

from __future__ import annotations

from typing import Final

from txrdma.iba.path import IBPath, lifetimeSeconds, RESPONSE_TIME
from txrdma.iba.types import GID, LID

RETRIES: Final = 3
"""Retransmissions of a request without a response, by default."""

MOST_RESPONSE_TIME: Final = 22
"""Upper bound of a peer's encoded response time: 17 seconds. Some report hours."""

MOST_SLOW: Final = 4096
"""Maximum number of peers whose longer response times are remembered."""

_USUAL_SECONDS: Final = lifetimeSeconds(RESPONSE_TIME)

_Peer = tuple[int, GID | LID]


class Timeouts:
    """Timeouts of one port: twice the packet lifetime, plus the response time."""

    def __init__(self) -> None:
        self._known: dict[int, float] = {}
        self._slow: dict[_Peer, float] = {}

    def seconds(self, path: IBPath, managementClass: int, subnetTimeout: int) -> float:
        """
        Seconds to wait for an answer along a path.

        @param subnetTimeout: encoded packet lifetime, if the path has none.
        """
        code = path.packetLifeTime
        if code is None:
            code = subnetTimeout
        known = self._known.get(code)
        if known is None:
            known = self._known[code] = 2 * lifetimeSeconds(code) + _USUAL_SECONDS
        if path.responseTime is not None:
            return known + lifetimeSeconds(path.responseTime) - _USUAL_SECONDS
        return known + self._slow.get((managementClass, path.dgid or path.dlid), 0.0) if self._slow else known

    def learn(self, path: IBPath, managementClass: int, responseTime: int) -> None:
        """Store a peer's encoded response time, if it is longer than that of most peers."""
        key = managementClass, path.dgid or path.dlid
        longer = lifetimeSeconds(min(responseTime, MOST_RESPONSE_TIME)) - _USUAL_SECONDS
        self._slow.pop(key, None)
        if longer > 0:
            self._slow[key] = longer
            if len(self._slow) > MOST_SLOW:
                del self._slow[next(iter(self._slow))]
