"""Connections between two hosts by IPv6: see L{txrdma.test.support.cm.linklocal}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.namespaces import runAlone, unshared


class IPv6Tests(SynchronousTestCase):
    """A server and a client in separate network namespaces."""

    slowBecause = "six processes start"
    skip = None if unshared() else "veth pairs in a network namespace are wanted"

    def test_all(self) -> None:
        """
        C{rping}'s clients reach a server by a global address, and by a link-local one with a zone; so do
        clients of C{rdma:} and C{sidr:}. Without a zone they need a source address with one. All streams take
        and return link-local addresses as C{tcp:} does, which fails without a zone; C{smc:} uses a device
        that is named.
        """
        ran = runAlone("txrdma.test.support.cm.linklocal", seconds=200)
        found = [line[:21] if line.startswith("ping") else line for line in ran.stdout.splitlines()]
        expected = ["ping data: rdma-ping-"] * 2 + ["listening fe80::1%a0"] * 2
        expected += ["rdma fe80::1%b0 fe80::2%a0"] * 3 + ["rdma InvalidRequest"]
        expected += ["sidr fe80::1 fe80::2"] * 3 + ["sidr InvalidRequest"]
        answer = "fe80::2%b0 b0 fe80::1%b0 b0, fe80::1%a0 a0 fe80::2%a0 a0"
        for stream in (f"tcp {answer}", f"rsocket {answer}", f"btl {answer}", f"smc {answer}, NOSMCDEV",
                       f"smc {answer}"):  # fmt: skip
            expected += [stream, f"{stream.partition(' ')[0]} ConnectError"]
        self.assertEqual(found, expected)
