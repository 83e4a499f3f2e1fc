"""
Network namespaces joined by wires, for tests with the privileges to create them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from shutil import which

from txrdma.test.support import CHECKOUT

_made = 0


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


def reasonToSkip() -> str | None:
    """Return the reason why no network namespaces can be created here, or None."""
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
    Two network namespaces joined by a wire, without other networks.

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


def unshared() -> list[str]:
    """Return the words before a command that run it in a new network namespace; none without privileges."""
    wanted = ["unshare", "nsenter", "ip"]
    if sys.platform == "linux" and all(map(which, wanted)):
        for words in (["unshare", "--net"], ["unshare", "--map-root-user", "--net"]):
            veth = [*words, "ip", "link", "add", "a0", "type", "veth", "peer", "name", "b0"]
            if subprocess.run(veth, capture_output=True).returncode == 0:
                return words
    return []


def runAlone(module: str, *words: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a module as a program in a new network namespace, for at most this time; return its output."""
    return subprocess.run(
        [*unshared(), sys.executable, "-m", module, *words],
        stdout=subprocess.PIPE,
        text=True,
        timeout=seconds,
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )


class TwoHosts:
    """
    Two hosts on several networks: the current network namespace, which must be new, and another one.

    @ivar second: the words before a command that run it on the second host.
    """

    def __init__(self, networks: Sequence[str]) -> None:
        """
        @param networks: the first three bytes of the addresses of each network; the hosts are 1 and 2.
        """
        self._networks = networks
        self._sleeping = subprocess.Popen(["unshare", "--net", "sleep", "3600"])
        self._awaitNamespace()
        self.second = ["nsenter", "--net", f"--target={self._sleeping.pid}"]
        for number, network in enumerate(networks):
            self._ip(0, "link", "add", f"a{number}", "type", "veth", "peer", "name", f"b{number}")
            self._ip(0, "link", "set", f"b{number}", "netns", str(self._sleeping.pid))
            for side, name in enumerate("ab"):
                self._ip(side, "address", "add", f"{network}.{side + 1}/24", "dev", f"{name}{number}")
                self._ip(side, "link", "set", f"{name}{number}", "up")
        for side in (0, 1):
            self._ip(side, "link", "set", "lo", "up")

    def run(self, side: int, *command: str) -> None:
        """Run a command on the first host (0) or the second one (1)."""
        subprocess.run([*(self.second if side else ()), *command], check=True)

    def _awaitNamespace(self) -> None:
        """Wait until the process of the second host has its own network namespace."""
        deadline = time.monotonic() + 10.0
        while os.path.samefile("/proc/self/ns/net", f"/proc/{self._sleeping.pid}/ns/net"):
            if time.monotonic() > deadline:
                raise TimeoutError("the second host has no network namespace")
            time.sleep(0.01)

    def _ip(self, side: int, *words: str) -> None:
        self.run(side, "ip", *words)

    def silence(self, number: int, action: str) -> None:
        """
        Add or delete rules that drop all packets of a network, so that neither end is notified of the cut.
        """
        for side in (0, 1):
            for way in ("from", "to"):
                peer = f"{self._networks[number]}.{2 - side}"
                self._ip(side, "rule", action, way, peer, "blackhole", "pref", "0")

    def down(self, number: int, state: str) -> None:
        """
        Set the first host's interface of a network up or down; the second one's follows by its carrier.
        """
        self._ip(0, "link", "set", f"a{number}", state)

    def close(self) -> None:
        """Remove the second host."""
        self._sleeping.kill()
        self._sleeping.wait()
