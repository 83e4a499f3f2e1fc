"""C{txrdma pingpong}: measures latency and bandwidth between two ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, ExitStack, suppress
from enum import Enum
from functools import partial
from typing import cast, Final, TextIO

from twisted.internet.abstract import isIPv6Address
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import clientFromString, HostnameEndpoint, ProcessEndpoint, serverFromString
from twisted.internet.error import ConnectError
from twisted.internet.interfaces import (
    IListeningPort,
    IProtocolFactory,
    IReactorCore,
    IReactorProcess,
    IStreamClientEndpoint,
)
from twisted.internet.task import LoopingCall
from twisted.python import usage

from txrdma.commands.common.interruption import Interruption
from txrdma.commands.common.options import INTERRUPTED, IReactor, TableOptions
from txrdma.commands.common.rows import printJSON
from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.interfaces import IVerbsDevice
from txrdma.kit.connectionlog import describe
from txrdma.kit.serverstrings import mistakeIn
from txrdma.pingpong.compatible import Game, OneGame, playFirst
from txrdma.pingpong.compatible import PORT as COMPATIBLE_PORT
from txrdma.pingpong.link import ACK_TIMEOUT, TestSide
from txrdma.pingpong.measurement import Measurement
from txrdma.pingpong.plan import DEEPEST, LARGEST, Measure, Test, Transfer
from txrdma.pingpong.report import asDict, CSVReport, sizeFrom, sizesFrom
from txrdma.pingpong.run import ALL_SIZES, Running, Series
from txrdma.pingpong.session import Client, connect, Limits, PingpongServer, PORT
from txrdma.ports.softdevices import softDeviceAt
from txrdma.verbs.completions import ReaderReactor
from txrdma.verbs.devices import openDevice

_COMPATIBLE_SIZES: Final = {Transfer.SEND: 4096, Transfer.UD: 2048}
_COMPATIBLE_MTU: Final = 1024


class IPingPongReactor(IReactor, IReactorCore, IReactorProcess):
    """Parts of the reactor that C{txrdma pingpong} uses."""


def _choices(kinds: type[Transfer] | type[Measure], text: str) -> tuple[Enum, ...]:
    """Parse values of an enumeration, separated by commas, or C{all}."""
    known = [str(kind.value) for kind in kinds]
    words = known if text == "all" else text.split(",")
    for word in words:
        if word not in known:
            raise ValueError(f"{word!r} is not one of {', '.join(known)}, all")
    return tuple(kinds(word) for word in words)


_transfers = partial(_choices, Transfer)
_measures = partial(_choices, Measure)


class CommandOptions(TableOptions):
    """Options of C{txrdma pingpong}: tests, peer, device, and output."""

    isCancelledByInterrupts = False
    synopsis = "[options] [HOST]"
    longdesc = (
        "Measure latency and bandwidth between two hosts, over any RDMA device. Without HOST, run as the "
        "server: it waits for clients, which choose the tests. HOST is a name, an address, or a client "
        "endpoint string such as tcp:192.0.2.1:18516. Ctrl-C ends a client and prints the results so "
        "far."
    )
    optFlags = [
        ["local", "L", "Measure between two processes on this host; needs no server."],
        ["all", "a", "All sizes from 2 bytes to 8 MiB, in powers of two."],
        ["check", "c", "Verify the contents of messages, which adds time."],
        ["events", "e", "Wait for completion events instead of polling."],
        ["histogram", None, "Also show the distribution of latencies."],
        ["once", None, "Server: exit after the first client."],
        ["compatible", None, "Interoperate with ibv_rc_pingpong or, with --test ud, ibv_ud_pingpong."],
    ]
    optParameters = [
        ["device", "d", None, "RDMA device, as pyverbs:mlx5_0. [default: soft: at the connection's address]"],
        ["port", "p", 1, "Port number of the device.", int],
        ["gid-index", "g", None, "Index of the port's GID. [default: of an IPv4 address, if any]", int],
        ["listen", "l", None, f"Server: a TCP port ({PORT}), or an endpoint string.", str],
        ["max-size", None, 64 << 20, "Server: maximum message length.", sizeFrom],
        ["test", "t", None, "send, write, read, atomic, ud, all. [default: send; --local: all]", _transfers],
        ["measure", "m", None, "latency, bandwidth, bidirectional, all. [default: the first two]", _measures],
        ["size", "s", None, "Lengths in bytes, as 64,4K,1M. [default: 64; for bandwidth 64K]", sizesFrom],
        ["iterations", "n", None, "Messages per test. [default: as many as --seconds allow]", int],
        ["seconds", None, 0.5, "Duration of a test.", float],
        ["warmup", None, 10, "Unmeasured messages before each test.", int],
        ["depth", None, 64, "Number of outstanding requests, for bandwidth.", int],
        ["mtu", None, 0, "Path MTU in bytes; 0 for the maximum of both ports.", int],
        ["inline", None, 0, "Send messages up to this length inline.", sizeFrom],
        ["qp-timeout", None, ACK_TIMEOUT, "Local ACK timeout: 4.096 us * 2^N.", int],
        ["csv", None, None, "Also write the results as CSV to this file; - for standard output.", str],
    ]

    def parseArgs(self, host: str | None = None) -> None:
        self["host"] = host

    def postOptions(self) -> None:
        self.checkRanges(
            ("port", 1, 255),
            ("gid-index", 0, 1 << 16),
            ("iterations", 1, 1 << 40),
            ("seconds", 0.01, 86400),
            ("warmup", 0, 1 << 40),
            ("depth", 1, DEEPEST),
            ("qp-timeout", 1, 31),
            ("max-size", 1, LARGEST),
        )
        if self["mtu"] not in (0, 256, 512, 1024, 2048, 4096):
            raise usage.UsageError(f"--mtu {self['mtu']}: expected 256, 512, 1024, 2048 or 4096")
        if self["size"] and not all(0 < size <= LARGEST for size in self["size"]):
            raise usage.UsageError(f"--size: expected 1 to {LARGEST} bytes")
        if self["listen"] and self["listen"].isdigit():
            self["listen"] = f"tcp:{self['listen']}"
        if self["listen"] and (mistake := mistakeIn(self["listen"])):
            raise usage.UsageError(f"--listen {self['listen']}: {mistake}")
        if self["size"] and self["all"]:
            raise usage.UsageError("--size and --all exclude each other")
        if self["csv"] == "-" and self["json"]:
            raise usage.UsageError("--csv - and --json both use the standard output")
        if self["host"] and (self["local"] or self["listen"]):
            raise usage.UsageError(f"{self['host']} is the server, so there is no --local and no --listen")
        if self["local"] and (self["listen"] or self["compatible"]):
            raise usage.UsageError("--local needs neither --listen nor --compatible")
        if self["compatible"] and (
            self["all"]
            or len(self["size"] or (0,)) > 1
            or self["measure"]
            or self["test"] not in (None, (Transfer.SEND,), (Transfer.UD,))
        ):
            raise usage.UsageError("--compatible is for one --size, and for --test send or ud")

    @property
    def isServer(self) -> bool:
        """Whether this is the server; its clients choose the tests."""
        return not self["host"] and not self["local"]

    @property
    def showsTables(self) -> bool:
        """Whether tables will be printed: not by a server, except with C{--compatible}."""
        listens = self.isServer and not self["compatible"]
        return not listens and not self["json"] and self["csv"] != "-"

    def series(self) -> Series:
        """Return the requested series of measurements."""
        return Series(
            transfers=self["test"] or (tuple(Transfer) if self["local"] else (Transfer.SEND,)),
            measures=self["measure"] or (Measure.LATENCY, Measure.BANDWIDTH),
            sizes=ALL_SIZES if self["all"] else self["size"] or (),
            iterations=self["iterations"] or 0,
            seconds=self["seconds"],
            warmup=self["warmup"],
            depth=self["depth"],
            mtu=self["mtu"],
            inline=self["inline"],
            check=bool(self["check"]),
        )

    def game(self) -> Test:
        """Return the test for C{--compatible}, with the other program's defaults."""
        (transfer,) = self["test"] or (Transfer.SEND,)
        (size,) = self["size"] or (_COMPATIBLE_SIZES[transfer],)
        return Test(
            transfer, size=size, iterations=self["iterations"] or 1000, warmup=0, check=bool(self["check"])
        )

    def side(self, reactor: IPingPongReactor) -> TestSide:
        """Return the local end of a test: its device, and the settings of its queue pairs."""

        def open(address: object) -> IVerbsDevice:
            return openDevice(reactor, self["device"] or deviceAt(address))

        return TestSide(
            *(cast(ReaderReactor, reactor), open),
            port=self["port"],
            gidIndex=self["gid-index"],
            events=bool(self["events"]),
            timeout=self["qp-timeout"],
        )


def prepare(options: CommandOptions) -> None:
    """Install a reactor that polls completion queues, unless C{--events} is given."""
    if not options["events"]:
        from txrdma.verbs.polling import install

        install()


def deviceAt(address: object) -> str:
    """Return the string of the software device at a connection's local address, which reaches its peer."""
    return softDeviceAt(getattr(address, "host", "127.0.0.1"))


async def run(reactor: IPingPongReactor, options: CommandOptions) -> None:
    """Run C{txrdma pingpong} as client or server; a client exits with 130 after Ctrl-C."""
    async with Interruption(reactor) as interruption:
        if options["compatible"]:
            await play(reactor, options, interruption)
        elif options.isServer:
            await serve(reactor, options, interruption)
        else:
            await measure(reactor, options, interruption)
    if interruption.has and (options["compatible"] or not options.isServer):
        raise SystemExit(INTERRUPTED)


async def serve(reactor: IPingPongReactor, options: CommandOptions, interruption: Interruption) -> None:
    """Serve until Ctrl-C; with C{--once}, until one client was served."""
    over: Deferred[None] = Deferred()

    def end() -> None:
        if not over.called:
            over.callback(None)

    def idle(error: Exception | None) -> None:
        if error is not None:
            report(f"{error}")
        if options["once"]:
            end()

    server = PingpongServer(
        options.side(reactor), Limits(options["max-size"]), lambda client: report(f"{client} measures"), idle
    )
    interruption.then = end
    async with _listening(reactor, options, server, PORT):
        await over
        await server.close()


@asynccontextmanager
async def _listening(
    reactor: IPingPongReactor, options: CommandOptions, factory: IProtocolFactory, usualPort: int
) -> AsyncIterator[None]:
    """Listen with a factory while the context is active."""
    description = options["listen"] or f"tcp:{usualPort}"
    try:
        endpoint = serverFromString(reactor, description)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"--listen {description}: {error}") from error
    port: IListeningPort = await endpoint.listen(factory)
    if description == "stdio:":
        yield  # no port to report or to close
        return
    try:
        report(f"waiting at {describe(port.getHost())}")
        yield
    finally:
        await maybeDeferred(port.stopListening)


async def play(reactor: IPingPongReactor, options: CommandOptions, interruption: Interruption) -> None:
    """Run one test with C{ibv_rc_pingpong} or C{ibv_ud_pingpong}, as client or server."""
    side, test = options.side(reactor), options.game()
    mtu = options["mtu"] or (0 if test.transfer is Transfer.UD else _COMPATIBLE_MTU)
    factory = OneGame(side, test, mtu, lambda game: playing(game))

    def playing(game: Game) -> None:
        interruption.then = game.interrupt

    if options["host"]:
        endpoint = endpointFor(reactor, options, COMPATIBLE_PORT)
        measurement = await playFirst(endpoint, side, test, mtu, playing)
    else:
        interruption.then = factory.done.cancel
        async with _listening(reactor, options, factory, COMPATIBLE_PORT):
            measurement = await factory.done
    with ExitStack() as closing:
        _printer(options, closing)(measurement)
    _printAll([measurement], options)


def report(line: str) -> None:
    """Print a message on standard error, separate from results."""
    with suppress(OSError):  # the parent process may have closed the pipe
        print(f"txrdma pingpong: {line}", file=sys.stderr, flush=True)


def endpointFor(
    reactor: IPingPongReactor, options: CommandOptions, usualPort: int = PORT
) -> IStreamClientEndpoint:
    """Return the endpoint for connections to the server; raise L{InvalidRequest} for an invalid string."""
    host = options["host"]
    if options["local"]:
        return _localServer(reactor, options)
    if ":" not in host or isIPv6Address(host):
        return HostnameEndpoint(reactor, host, usualPort)
    try:
        return cast(IStreamClientEndpoint, clientFromString(reactor, host))
    except (TypeError, ValueError) as error:  # of an unknown kind, or with too many or too few parts
        raise InvalidRequest(f"{host} is not a client endpoint string: {error}") from error


def _localServer(reactor: IPingPongReactor, options: CommandOptions) -> IStreamClientEndpoint:
    """Return an endpoint that starts a local server process, connected by its standard input and output."""
    command = [sys.executable, "-m", "txrdma", "pingpong", "--listen", "stdio:", "--once"]
    command += ["--port", str(options["port"]), "--max-size", str(LARGEST)]
    command += ["--qp-timeout", str(options["qp-timeout"])]
    for name in ("device", "gid-index"):
        if options[name] is not None:
            command += [f"--{name}", str(options[name])]
    if options["events"]:
        command.append("--events")
    return ProcessEndpoint(reactor, sys.executable, command, env=dict(os.environ))


async def measure(reactor: IPingPongReactor, options: CommandOptions, interruption: Interruption) -> None:
    """Run all tests in sequence; print the measurements, even after an error."""
    measurements: list[Measurement] = []
    with ExitStack() as closing:
        printOne = _printer(options, closing)

        def measured(measurement: Measurement) -> None:
            measurements.append(measurement)
            printOne(measurement)

        try:
            client = await _connected(reactor, options)
            closing.callback(client.close)
            running = Running(client, options.series(), measured, report)
            interruption.then = running.interrupt
            if interruption.has:
                return
            if sys.stderr.isatty():
                progress = LoopingCall(_showProgress, running)
                progress.start(0.2, now=False)
                closing.callback(print, "\r\x1b[K", end="", file=sys.stderr, flush=True)
                closing.callback(progress.stop)
            await running.run()
        finally:
            _printAll(measurements, options)


def _printer(options: CommandOptions, closing: ExitStack) -> Callable[[Measurement], None]:
    """Return a function that writes a measurement as a row of CSV, if C{--csv} is given."""
    if not options["csv"]:
        return lambda measurement: None
    out: TextIO = sys.stdout
    if options["csv"] != "-":
        out = closing.enter_context(open(options["csv"], "w", newline=""))
    return CSVReport(out).add


async def _connected(reactor: IPingPongReactor, options: CommandOptions) -> Client:
    endpoint = endpointFor(reactor, options)
    # The server process inherits the mask, so that Ctrl-C stops only this process.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]) if options["local"] else None
    try:
        connecting = Deferred.fromCoroutine(connect(endpoint, options.side(reactor)))
    finally:
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        return await connecting
    except ConnectError as error:
        raise DeviceUnavailable(f"no server at {options['host']}: {error}") from error
    except ValueError as error:
        raise DeviceUnavailable(str(error)) from error


def _showProgress(running: Running) -> None:
    test = running.test
    if test is not None:
        what = f"{test.transfer.value} {test.measure.value}, {test.size} bytes: {running.progress()} messages"
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)


def _printAll(measurements: Sequence[Measurement], options: CommandOptions) -> None:
    if options["json"]:
        printJSON([asDict(measurement) for measurement in measurements])
    elif measurements and options.showsTables:
        from txrdma.commands.formats.pingpongtables import showAll

        showAll(measurements, bool(options["histogram"]))
