"""
The endpoint strings C{smc:...}.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from twisted.internet.endpoints import clientFromString, quoteStringArgument, serverFromString
from twisted.internet.protocol import Factory
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.error import MalformedDevice
from txrdma.smc.endpoints import SMCClientEndpoint, SMCServerEndpoint
from txrdma.smc.terms.options import Options, USUAL


def assertNamed(test: SynchronousTestCase, parse: Any, text: str, key: str, value: str) -> None:
    """Assert that a string is refused, and that the error names the key and the value."""
    error = test.assertRaises(ValueError, parse, MemoryReactorClock(), text)
    test.assertIn(key, str(error), text)
    test.assertIn(value, str(error), text)


class ClientStringTests(SynchronousTestCase):
    """Client endpoints from C{smc:} strings, by C{clientFromString}."""

    def parse(self, text: str) -> dict[str, Any]:
        endpoint = clientFromString(MemoryReactorClock(), text)
        self.assertIsInstance(endpoint, SMCClientEndpoint)
        return {name.lstrip("_"): value for name, value in vars(endpoint).items()}

    def test_positional(self) -> None:
        output = self.parse("smc:example.com:80")
        self.assertEqual((output["host"], output["port"], output["options"]), ("example.com", 80, Options()))

    def test_keywords(self) -> None:
        output = self.parse(
            r"smc:host=\:\:1:port=80:device=soft\:127.0.0.2:peer=smc:timeout=2.5:fallback=no:backend=own"
            r":bindAddress=\:\:1"
        )
        options = Options(
            "soft:127.0.0.2", agreed=True, timeout=2.5, fallback=False, bindAddress="::1", backend="own"
        )
        self.assertEqual((output["host"], output["port"], output["options"]), ("::1", 80, options))

    def test_versionsAndEnterpriseIDs(self) -> None:
        for text, options in (
            ("version=auto", Options()),
            ("version=1", Options(versions=(1,))),
            ("version=2:ueid=A", Options(versions=(2,), ueids=("A",))),
            ("links=8", Options(links=8)),
            ("ueid=EXAMPLE.COM,2-B", Options(ueids=("EXAMPLE.COM", "2-B"))),
        ):
            self.assertEqual(self.parse(f"smc:host:80:{text}")["options"], options)
            server = serverFromString(MemoryReactorClock(), f"smc:80:{text}")
            assert isinstance(server, SMCServerEndpoint)
            self.assertEqual(server._options, options)
        for wrong in (
            {"versions": ()},
            {"versions": (1, 3)},
            {"versions": (2,)},
            {"ueids": ("a",)},
            {"links": 0},
            {"links": 9},
            {"ueids": ("A", "B", "C", "D", "E")},
        ):
            self.assertRaises(ValueError, Options, **wrong)

    def test_wrongArguments(self) -> None:
        """Endpoints that cannot connect anywhere are refused when they are made."""
        for port in (-1, 1 << 16):
            self.assertRaises(ValueError, SMCClientEndpoint, None, "127.0.0.1", port)
        for host in (None, b"host"):
            self.assertRaises(TypeError, SMCClientEndpoint, None, host, 80)
        self.assertRaises(TypeError, Options, device=5)
        for field in ("sndbuf", "handshakes", "maxgroups", "maxmemory"):
            self.assertRaises(TypeError, Options, **{field: None})

    def test_optionCanBeDisabled(self) -> None:
        for text, isOn in (("option=auto", True), ("option=no", False)):
            self.assertEqual(self.parse(f"smc:host:80:{text}")["options"], Options(option=isOn))
            server = serverFromString(MemoryReactorClock(), f"smc:80:{text}")
            assert isinstance(server, SMCServerEndpoint)
            self.assertEqual(server._options, Options(option=isOn))

    def test_invalidKeysAndValuesAreNamed(self) -> None:
        for text, key, value in (
            ("smc:host:http", "port", "http"),
            ("smc:host:65536", "port", "65536"),
            ("smc:host:-1", "port", "-1"),
            ("smc:host", "port", "missing"),
            ("smc::80", "host", "missing"),
            ("smc:host:80:timeout=soon", "timeout", "soon"),
            ("smc:host:80:timeout=0", "timeout", "0"),
            ("smc:host:80:timeout=inf", "timeout", "inf"),
            ("smc:host:80:peer=tcp", "peer", "tcp"),
            ("smc:host:80:fallback=maybe", "fallback", "maybe"),
            ("smc:host:80:backend=magic", "backend", "magic"),
            ("smc:host:80:backend=txrdma", "backend", "txrdma"),
            ("smc:host:80:backend=kernel:device=soft", "device", "soft"),
            ("smc:host:80:backend=kernel:peer=smc", "peer", "smc"),
            ("smc:host:80:backend=kernel:version=2", "version", "2"),
            ("smc:host:80:backend=kernel:ueid=TXRDMA", "ueid", "TXRDMA"),
            ("smc:host:80:backend=kernel:option=no", "option", "no"),
            ("smc:host:80:option=yes", "option", "yes"),
            ("smc:host:80:backend=kernel:runtime=/run/txrdma", "runtime", "/run/txrdma"),
            ("smc:host:80:runtime=txrdma", "runtime", "txrdma"),
            ("smc:host:80:device=", "device", ""),
            ("smc:host:80:bindAddress=here", "bindAddress", "here"),
            ("smc:host:80:version=3", "version", "3"),
            ("smc:host:80:backend=kernel:links=2", "links", "2"),
            ("smc:host:80:links=0", "links", "0"),
            ("smc:host:80:links=9", "links", "9"),
            ("smc:host:80:links=two", "links", "two"),
            ("smc:host:80:version=2", "ueid", "version=2"),
            ("smc:host:80:version=1:ueid=A", "ueid", "version=1"),
            ("smc:host:80:ueid=", "ueid", "''"),
            ("smc:host:80:ueid=small", "ueid", "small"),
            ("smc:host:80:ueid=.A", "ueid", ".A"),
            ("smc:host:80:ueid=A,,B", "ueid", "A,,B"),
            (f"smc:host:80:ueid={33 * 'A'}", "ueid", 33 * "A"),
            ("smc:host:80:ueid=A,B,C,D,E", "ueid", "A,B,C,D,E"),
            ("smc:host:80:colour=blue", "colour", "blue"),
            ("smc:host:80:backlog=5", "backlog", "5"),
            ("smc:host:80:90", "90", "too many"),
            ("smc:host:80:host=other", "host", "other"),
            ("smc:host:80:rcvbuf=0", "rcvbuf", "0"),
            ("smc:host:80:rcvbuf=1G", "rcvbuf", "1G"),
            ("smc:host:80:sndbuf=64k", "sndbuf", "64k"),
            ("smc:host:80:autocork=1", "autocork", "1"),
            ("smc:host:80:latency=high", "latency", "high"),
            ("smc:host:80:keepalive=-1", "keepalive", "-1"),
            ("smc:host:80:maxgroups=many", "maxgroups", "many"),
            ("smc:host:80:handshakes=5", "handshakes", "listeners"),
            ("smc:host:80:backend=kernel:rcvbuf=64K", "rcvbuf", "kernel"),
        ):
            assertNamed(self, clientFromString, text, key, value)

    def test_sizesLimitsAndTimes(self) -> None:
        text = "autocork=no:latency=low:sndbuf=128K:rcvbuf=1M:keepalive=5:maxgroups=4:maxmemory=1G"
        options = Options(
            autocork=False,
            lowLatency=True,
            sndbuf=128 << 10,
            rcvbuf=1 << 20,
            keepalive=5.0,
            maxgroups=4,
            maxmemory=1 << 30,
        )
        self.assertEqual(self.parse(f"smc:host:80:{text}")["options"], options)
        server = serverFromString(MemoryReactorClock(), f"smc:80:{text}:handshakes=7")
        assert isinstance(server, SMCServerEndpoint)
        self.assertEqual(server._options, replace(options, handshakes=7))

    def test_numbersOfProgram(self) -> None:
        """Options of a program that are out of range are refused as keys of a string are."""
        for field, values in {
            "timeout": (-1, 0, float("nan")),
            "keepalive": (-1, 0, float("nan")),
            "links": (0, 9),
            "sndbuf": (-1, 1 << 41),
            "handshakes": (-1, 1 << 32),
            "maxgroups": (-1, 1 << 32),
            "maxmemory": (-1, 1 << 51),
        }.items():
            for value in values:
                with self.assertRaisesRegex(ValueError, field):
                    replace(USUAL, **{field: value})  # type: ignore[arg-type]  # values of several types
        self.assertRaises(TypeError, Options, sndbuf=1.5)

    def test_malformedDevice(self) -> None:
        """A malformed device string is refused like other values, also beside a valid one."""
        for device in ("nosuch", "soft:mtu=5", "soft+soft:port=many"):
            reactor: Any = MemoryReactorClock()
            quoted = quoteStringArgument(device)
            self.assertRaises(MalformedDevice, clientFromString, reactor, f"smc:127.0.0.1:80:device={quoted}")
            self.assertRaises(MalformedDevice, serverFromString, reactor, f"smc:80:device={quoted}")
            client = SMCClientEndpoint(reactor, "127.0.0.1", 80, Options(device=device))
            self.failureResultOf(client.connect(Factory()), MalformedDevice)
            server = SMCServerEndpoint(reactor, 80, options=Options(device=device))
            self.failureResultOf(server.listen(Factory()), MalformedDevice)
            self.assertEqual((reactor.tcpClients, reactor.tcpServers), ([], []))

    def test_ringSizeIsRoundedUp(self) -> None:
        largest = 512 << 20
        for size, ring in ((1, 16384), (16384, 16384), (16385, 32768), (10**6, 1 << 20), (largest, largest)):
            self.assertEqual(Options(rcvbuf=size).ring, ring)
        self.assertIsNone(Options().ring)
        for wrong in (0, (512 << 20) + 1):
            self.assertRaises(ValueError, Options, rcvbuf=wrong)

    def test_kernelStackByNameOnly(self) -> None:
        self.assertEqual(self.parse("smc:host:80")["options"].backend, "auto")
        self.assertEqual(
            self.parse("smc:host:80:backend=kernel:fallback=no:timeout=3")["options"],
            Options(backend="kernel", fallback=False, timeout=3.0),
        )

    def test_runtimeDirectory(self) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "TXRDMA_RUNTIME"}
        self.patch(os, "environ", environment)
        strings = ("smc:host:80", "smc:host:80:runtime=/srv/x", "smc:host:80:runtime=")
        options = [self.parse(each)["options"] for each in strings]
        self.assertEqual([each.meetingDirectory for each in options], ["", "/srv/x", ""])
        environment["TXRDMA_RUNTIME"] = "/run/txrdma"
        self.assertEqual([each.meetingDirectory for each in options], ["/run/txrdma", "/srv/x", ""])

    def test_tls(self) -> None:
        if find_spec("OpenSSL") is None:
            raise SkipTest("pyOpenSSL is not installed: the extra tls brings it")
        endpoint = clientFromString(MemoryReactorClock(), r"tls:example.com:443:endpoint=smc\:host\:443")
        wrapped = endpoint._wrappedEndpoint
        self.assertIsInstance(wrapped, SMCClientEndpoint)


class ServerStringTests(SynchronousTestCase):
    """Server endpoints from C{smc:} strings, by C{serverFromString}."""

    def parse(self, text: str) -> tuple[str, int, int, Options]:
        endpoint = serverFromString(MemoryReactorClock(), text)
        assert isinstance(endpoint, SMCServerEndpoint)
        return endpoint._interface, endpoint._port, endpoint._backlog, endpoint._options

    def test_portMeansEveryInterface(self) -> None:
        self.assertEqual(self.parse("smc:8080"), ("", 8080, 50, Options()))
        self.assertEqual(self.parse("smc:port=8080"), ("", 8080, 50, Options()))

    def test_interface(self) -> None:
        expected = ("127.0.0.1", 8080, 50, Options())
        self.assertEqual(self.parse("smc:8080:interface=127.0.0.1"), expected)
        self.assertEqual(self.parse("smc:127.0.0.1:8080"), expected)
        self.assertEqual(self.parse(r"smc:\:\:1:8080"), ("::1", 8080, 50, Options()))

    def test_keywords(self) -> None:
        self.assertEqual(
            self.parse("smc:8080:backlog=5:peer=smc:fallback=no:timeout=3:device=soft"),
            ("", 8080, 5, Options(device="soft", agreed=True, timeout=3.0, fallback=False)),
        )

    def test_invalidKeysAndValuesAreNamed(self) -> None:
        for text, key, value in (
            ("smc:http", "port", "http"),
            ("smc:", "port", "missing"),
            ("smc:80:127.0.0.1", "port", "127.0.0.1"),
            ("smc:80:backlog=many", "backlog", "many"),
            ("smc:80:backend=kernel:timeout=5", "timeout", "5"),
            ("smc:80:bindAddress=127.0.0.1", "bindAddress", "127.0.0.1"),
            ("smc:80:host=example.com", "host", "example.com"),
            ("smc:127.0.0.1:80:interface=10.0.0.1", "interface", "127.0.0.1"),
            ("smc:127.0.0.1:80:90", "90", "too many"),
        ):
            assertNamed(self, serverFromString, text, key, value)

    def test_haproxy(self) -> None:
        endpoint = serverFromString(MemoryReactorClock(), "haproxy:smc:8080")
        wrapped = endpoint._wrappedEndpoint
        self.assertIsInstance(wrapped, SMCServerEndpoint)
