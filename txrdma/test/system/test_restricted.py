"""
Machines with restrictions: two processes exchange bytes by each transport, or report the reason why not.

L{txrdma.test.support.restrictions} restricts the processes; C{docs/machines.md} has the results.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import chain
from typing import Any, ClassVar, Final
from unittest import skipIf, skipUnless

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support import namespaces
from txrdma.test.support.processes import CHECKOUT, loopbackAddress
from txrdma.test.support.restrictedecho import SIZE
from txrdma.test.support.restrictions import COVERED

isLinuxRoot: Final = sys.platform == "linux" and os.geteuid() == 0
RESTRICT: Final = "txrdma.test.support.restrictions"
ROOT: Final = "only root can restrict a process so"
X86: Final = "the numbers of system calls are those of x86-64"

Ends = dict[str, dict[str, Any]]
"""What C{client} and C{server} report."""

_USUAL: Final = (
    *(" starting on ", "Main loop terminated", " Closed)", " connection with ", "coordinates port"),
    "does not answer: seeking another one",
)
"""Parts of log entries that are written on every machine, or on a busy one."""


class RestrictedTestCase(SynchronousTestCase):
    """Runs two processes with restrictions."""

    if sys.platform != "linux":
        skip = "memory can be shared on Linux only"

    slowBecause: ClassVar[str] = "starts two processes, which import Twisted and txrdma"

    def reports(self, *pairs: str, before: Sequence[str] = (), **environ: str) -> list[Ends]:
        """Let clients send bytes to servers that echo them; return what both ends report for each pair."""
        words = [*before, sys.executable, "-m", "txrdma.test.support.restrictedecho", *pairs]
        environ = {**os.environ, "PYTHONPATH": str(CHECKOUT), **environ}
        ran = subprocess.run(words, env=environ, cwd="/", capture_output=True, text=True, timeout=200)
        self.assertEqual(ran.stderr, "")
        found: list[Ends] = json.loads(ran.stdout)
        self.assertEqual(len(found), len(pairs) // 2)
        return found

    def echo(self, *pairs: str, before: Sequence[str] = (), **environ: str) -> list[Ends]:
        """Return L{reports} of ends of which each has received all bytes."""
        found = self.reports(*pairs, before=before, **environ)
        for ends in found:
            for end in ends.values():
                self.assertEqual((end.get("error"), end.get("bytes")), (None, SIZE), end)
                self.assertEqual(end["end"], "ConnectionDone", end)
        return found

    def all(self, restrictions: str) -> list[Ends]:
        """Return the reports of C{smc:}, C{btl:} and C{rsocket:} with these restrictions."""
        there = loopbackAddress()
        return self.echo(
            *("smc:127.0.0.1:0", "smc:127.0.0.1:{port}", "btl:127.0.0.1:0", "btl:127.0.0.1:{port}"),
            *(f"rsocket:0:interface={there}", f"rsocket:{there}:{{port}}:bindAddress={there}"),
            before=[sys.executable, "-m", RESTRICT, *restrictions.split(), "--"],
        )

    def logOf(self, end: dict[str, Any]) -> list[str]:
        """Return the log entries of an end that do not occur on every machine."""
        return [text for _level, text in end["log"] if not any(part in text for part in _USUAL)]

    def checkShared(self, restrictions: str) -> None:
        """Check that C{smc:} logs only its use of shared memory, and C{rsocket:} and C{btl:} log nothing."""
        smc, *others = self.all(restrictions)
        for end in smc.values():
            self.assertEqual(end["route"], "shared-memory")
            (text,) = self.logOf(end)
            self.assertIn("SMC-R by soft, shared-memory", text)
        for ends in others:
            for end in ends.values():
                self.assertEqual(self.logOf(end), [])

    def checkFallback(self, restrictions: str, why: str) -> None:
        """
        Check that C{smc:} uses TCP, and logs one line at each end: the reason, and at the client the remedy.
        C{rsocket:} and C{btl:} use UDP, and log one line with the same text.
        """
        smc, *others = self.all(restrictions)
        self.assertEqual([each["mode"] for each in smc.values()], ["TCP", "TCP"])
        (line,) = self.logOf(smc["client"])
        self.assertIn("plain TCP, because NOSMCDEV", line)
        self.assertIn(why, line)
        (line,) = self.logOf(smc["server"])
        self.assertIn("plain TCP, because PEERDECL; the peer reports NOSMCDEV", line)
        for ends in others:
            for end in ends.values():
                (line,) = self.logOf(end)
                self.assertIn(why, line)


class SharedMemoryTests(RestrictedTestCase):
    """Restrictions under which everything works."""


def addShared(name: str, restrictions: str, isPossible: bool, reason: str, circumstances: str) -> None:
    """Add a test that is skipped for a reason if the restrictions are not possible here."""

    def test(self: SharedMemoryTests) -> None:
        self.checkShared(restrictions)

    test.__doc__ = f"Transports use shared memory {circumstances}."
    setattr(SharedMemoryTests, f"test_{name}", skipUnless(isPossible, reason)(test))


for _each in (
    ("noProc", "noProc", isLinuxRoot, ROOT, "without C{/proc}"),
    ("noIPv6", "noIPv6", isLinuxRoot, ROOT, "if IPv6 is disabled"),
    (
        "readOnly",
        "readOnly",
        isLinuxRoot and not sys.prefix.startswith(COVERED),
        f"{ROOT}, and Python outside of {', '.join(COVERED)}",
        "if all file systems are read-only, even C{/tmp} and C{/dev/shm}",
    ),
    ("smallShm", "smallShm", isLinuxRoot, ROOT, "if C{/dev/shm} has 64 KiB: memfd needs none of it"),
    ("unknownUser", "unknownUser", isLinuxRoot, ROOT, "if the user is unknown, without home and environment"),
    ("docker", "docker", platform.machine() == "x86_64", X86, "with Docker's default seccomp profile"),
    ("fewDescriptors", "fewDescriptors noLockedMemory", True, "", "with C{ulimit -n 64} and C{ulimit -l 0}"),
    ("bare", "bare", True, "", "without compiler, other programs, home and environment"),
):
    addShared(*_each)


class FallbackTests(RestrictedTestCase):
    """Restrictions under which memory can't be shared."""

    @skipUnless(platform.machine() == "x86_64", X86)
    def test_noSharedObjects(self) -> None:
        """Transports fall back with a seccomp profile that denies eventfd2 and memfd_create."""
        why = "eventfd2 fails ([Errno 1] Operation not permitted): allow it in the seccomp profile"
        self.checkFallback("noSharedObjects", why)

    def test_likePyPy(self) -> None:
        """Transports fall back on a Python without eventfd, memfd, seals and SO_PEERCRED, as PyPy 3.11."""
        self.checkFallback("likePyPy", "this Python has no os.eventfd: use CPython on Linux")

    @skipUnless(platform.machine() == "x86_64", X86)
    def test_onlyInternet(self) -> None:
        """
        A service of systemd with C{RestrictAddressFamilies=AF_INET AF_INET6}: no UNIX sockets. C{smc:} uses
        TCP and C{btl:} UDP; C{rsocket:} cannot listen. The log and the error name the reason.
        """
        before = [sys.executable, "-m", RESTRICT, "onlyInternet", "--"]
        denied = "Address family not supported by protocol"
        pairs = ("smc:127.0.0.1:0", "smc:127.0.0.1:{port}", "btl:127.0.0.1:0", "btl:127.0.0.1:{port}")
        smc, btl = self.echo(*pairs, before=before)
        self.assertEqual([each["mode"] for each in smc.values()], ["TCP", "TCP"])
        for end, why in (
            (smc["client"], "plain TCP, because it can't be asked whether"),
            (smc["server"], "by plain TCP, since it can't be announced to them"),
            (btl["client"], "the software device at 127.0.0.1 uses UDP instead of shared memory"),
            (btl["server"], "the software device at 127.0.0.1 uses UDP instead of shared memory"),
        ):
            (line,) = [text for level, text in end["log"] if level == "warn"]
            self.assertIn(why, line)
            self.assertIn(denied, line)
        (ends,) = self.reports("rsocket:0", "rsocket:127.0.0.1:{port}", before=before)
        self.assertIn("programs of one user share it, by UNIX sockets", ends["server"]["error"])
        self.assertIn(denied, ends["server"]["error"])


class ReactorTests(RestrictedTestCase):
    """Each reactor at both ends; L{txrdma.test.soak.smc.test_reactors} has Twisted's own tests on most."""


def addReactor(name: str) -> None:
    """Add a test that uses a reactor without restrictions."""

    def test(self: ReactorTests) -> None:
        self.patch(os, "environ", {**os.environ, "RESTRICTED_REACTOR": name})
        self.checkShared("")

    test.__doc__ = f"The reactor {name} works."
    isMissing = name == "uvloop" and find_spec(name) is None
    reason = "uvloop is not installed: the extra test brings it"
    setattr(ReactorTests, f"test_{name}", skipIf(isMissing, reason)(test))


for _name in ("select", "poll", "asyncio", "uvloop", "txrdma"):
    addReactor(_name)


class NamespaceTests(RestrictedTestCase):
    """Two network namespaces of one host, joined by a wire: abstract sockets do not reach the other one."""

    skip = namespaces.reasonToSkip() if sys.platform == "linux" else "needs Linux"

    def test_otherNamespace(self) -> None:
        """C{smc:} uses TCP and logs that the peer has no SMC; C{btl:} and C{rsocket:} use UDP, silently."""
        wire = namespaces.Wire()
        self.addCleanup(wire.close)
        (first, second), (client, server) = wire.names, wire.addresses
        smc, *others = self.echo(
            *(f"smc:{server}:0", f"smc:{server}:{{port}}", f"btl:{server}:0", f"btl:{server}:{{port}}"),
            *(f"rsocket:0:interface={server}", f"rsocket:{server}:{{port}}:bindAddress={client}"),
            before=["ip", "netns", "exec", first],
            RESTRICTED_SERVER=f"ip netns exec {second}",
        )
        for end in smc.values():
            self.assertEqual(end["mode"], "TCP")
            (line,) = self.logOf(end)
            self.assertIn("plain TCP, because PEERNOSMC", line)
        for end in chain.from_iterable(ends.values() for ends in others):
            self.assertEqual(self.logOf(end), [])
