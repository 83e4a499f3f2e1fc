"""
Network namespaces with a wire between two of them, for tests that may make them: those that run as root.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

_made = 0


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


def reasonToSkip() -> str | None:
    """The reason why no network namespaces can be made here, None when they can."""
    if os.geteuid():
        return "network namespaces are made by root"
    name = f"txrdma-{os.getpid()}"
    try:
        _ip("netns", "add", name)
        _ip("netns", "del", name)
    except (OSError, subprocess.SubprocessError) as error:
        return f"network namespaces can't be made here: {error}"
    return None


class Wire:
    """
    Two network namespaces with a wire between them, which have nothing else.

    @ivar names: of the namespaces, and C{addresses} of their ends of the wire.
    """

    def __init__(self, addresses: Sequence[str] = ("10.99.0.1", "10.99.0.2")) -> None:
        global _made
        _made += 1
        tag = f"{os.getpid()}-{_made}"
        self.addresses = tuple(addresses)
        self.names = (f"txrdma-{tag}-a", f"txrdma-{tag}-b")
        first, second = self.names
        for name in self.names:
            _ip("netns", "add", name)
        _ip("link", "add", "wire", "netns", first, "type", "veth", "peer", "name", "wire", "netns", second)
        for name, address in zip(self.names, self.addresses, strict=True):
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "wire")
            _ip("-n", name, "link", "set", "wire", "up")

    def close(self) -> None:
        """Remove the namespaces, and the wire with them."""
        for name in self.names:
            _ip("netns", "del", name)
