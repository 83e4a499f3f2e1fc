"""What a client of a verification accepts from a server."""

from __future__ import annotations

import io
import json
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, WireError
from txrdma.test.support.addressreactor import AddressReactor
from txrdma.verify.checks import Reporter
from txrdma.verify.measuring import decodeOffer, MeasuringClient, ServerOffer
from txrdma.verify.subject import TestedPort

OFFER = {"version": "1", "address": "192.0.2.1", "missing": {"rdma": "no port"}, "tcp": 7000, "smc": 7001}


class OfferTests(SynchronousTestCase):
    """The server's offer, which is not trusted."""

    def decoded(self, **changes: Any) -> ServerOffer:
        return decodeOffer(json.dumps({**OFFER, **changes}).encode() + b"\n")

    def test_valid(self) -> None:
        """An offer has an address, ports, and reasons for missing kinds; unknown kinds are ignored."""
        expected = ServerOffer("192.0.2.1", {"tcp": 7000, "smc": 7001}, {"rdma": "no port"})
        self.assertEqual(self.decoded(control=1, other="x"), expected)
        for address in ("", "fe80::1%eth0.7", "::ffff:192.0.2.1"):
            self.assertEqual(self.decoded(address=address).address, address)

    def test_strings(self) -> None:
        """A port or an address cannot add keys, such as C{pcap=}, to the endpoint string of the client."""
        wrong: dict[str, tuple[Any, ...]] = {
            "smc": (r"7001:device=soft\:127.0.0.1\:pcap=file",),
            "tcp": (0, -1, 65536, 1.5, True, None, "1", []),
            "address": (r"::1%\:device=soft", "a=b", "192.0.2.1:1=2", "host", None, 7),
            "missing": ([], None, {"rdma": 7}),
        }
        for name, values in wrong.items():
            for value in values:
                self.assertRaises(WireError, self.decoded, **{name: value})

    def test_texts(self) -> None:
        """A reason has no control characters, and is not longer than a line or two."""
        self.assertEqual(self.decoded(missing={"btl": "\x1b[31mno\n"}).missing, {"btl": " [31mno "})
        self.assertLess(len(self.decoded(missing={"btl": ":" * 100_000}).missing["btl"]), 500)

    def test_nonsense(self) -> None:
        for line in (b"", b"\xff", b"[]", b"{}", b"7", b"[" * 100_000, b'{"address": "", "missing": {}'):
            with self.assertRaisesRegex(WireError, "txrdma verify --serve"):
                decodeOffer(line)


class ServerlessTests(SynchronousTestCase):
    def test_refused(self) -> None:
        """Without a server the reason names its host and port, and the command that starts it."""
        reactor = AddressReactor()
        client = MeasuringClient(
            reactor, Reporter(io.StringIO()), cast(TestedPort, None), "192.0.2.1", 0.1, 1
        )
        running = Deferred.fromCoroutine(client.run(18517))
        ((_host, _port, factory, *_),) = reactor.tcpClients
        factory.clientConnectionFailed(cast(Any, None), Failure(ConnectionRefusedError()))
        reactor.advance(1)  # until there is no other address to try
        error = self.failureResultOf(running, DeviceUnavailable).value
        self.assertIn("no server at TCP port 18517 of 192.0.2.1: Connection was refused", str(error))
        self.assertIn("txrdma verify --serve", str(error))
