"""
Options of an C{smc:} endpoint, from its string or its arguments.
"""

from __future__ import annotations

from typing import Final

from txrdma.values import frozen


@frozen
class Options:
    """
    The options of an C{smc:} endpoint, a client's or a server's.

    @ivar device: C{"auto"}, or a device string: C{"soft"}.
    @ivar agreed: the other end is known to speak SMC (C{peer=smc}): nobody needs to be asked.
    @ivar timeout: seconds for the TCP connection (client, 30 when None) or for the handshake (server).
    @ivar fallback: whether plain TCP will do.
    @ivar bindAddress: where a client's TCP connection comes from; None leaves that to the system.
    """

    device: str = "auto"
    agreed: bool = False
    timeout: float | None = None
    fallback: bool = True
    bindAddress: str | None = None


USUAL: Final = Options()
"""The options of an endpoint string without any keys."""
