"""The C{txrdma} command."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, cast

from twisted.internet.error import CannotListenError, DNSLookupError
from twisted.trial.unittest import SynchronousTestCase

from txrdma import commands
from txrdma.command import main, run, TxrdmaOptions
from txrdma.commands import devices
from txrdma.commands.common.options import IReactor, OUTPUT_CUT
from txrdma.commands.common.registry import COMMANDS, GROUPS
from txrdma.commands.connections import connectionsTable, flat
from txrdma.error import DeviceUnavailable
from txrdma.test.support.processes import printed, started
from txrdma.test.support.tables import shown

WITHOUT_TLS = """
import sys
from txrdma.command import main
try:
    main(["discover", "--device", "sim:fattree:2"])
except SystemExit:
    pass
print([name for name in sys.modules if name.split(".")[0] in ("OpenSSL", "cryptography")])
try:
    import OpenSSL
except ImportError:
    print("not installed")
else:
    print("found later")
"""

LIGHT = {
    f"txrdma.commands{name}"
    for name in ("", ".common", ".common.interruption", ".common.options", ".common.registry")
}

SMC: dict[str, object] = {
    "mode": "SMC-R",
    "state": "ACTIVE",
    "role": "client",
    "local": "127.0.0.1:1234",
    "peer": "127.0.0.1:80",
    "fallbackReason": None,
    "peerDiagnosis": None,
    "version": 1,
    "eid": "",
    "device": "soft",
    "route": "shared-memory",
    "linkGroup": "group 7",
    "bytesSent": 12_345,
    "bytesReceived": 2_000_000,
    "writes": 41,
    "messagesSent": 42,
    "messagesReceived": 43,
    "bufferSize": 16384,
    "peerBufferSize": 65536,
    "cursors": {"produced": 501, "peerConsumed": 502, "arrived": 503, "consumed": 504, "reported": 505},
}

TCP: dict[str, object] = {
    **SMC,
    "mode": "TCP",
    "state": "TCP",
    "fallbackReason": "PEERDECL",
    "peerDiagnosis": "NOSMCRDEV",
    "device": "",
    "route": "",
    "linkGroup": "",
    "cursors": None,
}


class OptionsTests(SynchronousTestCase):
    slowBecause = "reads the options of every command"

    def refused(self, *arguments: str) -> str:
        return str(self.assertRaises(SystemExit, main, list(arguments)))

    def test_mistakes(self) -> None:
        """Every usage error prints the mistake and where to find help, without a traceback."""
        for arguments, words in (
            ([], "no command is given"),
            (["conections"], "Unknown command"),
            (["connection"], "Unknown command"),  # not accepted as an abbreviation
            (["connections", "--nope"], "not recognized"),
            (["connections", "--watch", "0"], "0.05"),
            (["connections", "--watch", "soon"], "soon"),
            (["linkgroups", "5"], "only --watch"),
            (["smc-stats", "--watch", "1", "2"], "only --watch"),
            (["smc-stats", "--timeout", "0"], "0.05"),
            (["btl-ping", "host", "--interval", "-1"], "0 to 3600"),
            (["btl-ping", "host", "--count", "9" * 400], "1 to 1099511627776"),
            (["pingpong", "--listen", "99999"], "0 to 65535"),
            (["pingpong", "--listen", "nothing:1"], "no kind of endpoint"),
            (["verify", "--tcp-port", "99999"], "0 to 65535"),
            (["verify", "--patience", "nan"], "0.01 to 1000"),
            (["verify", "--port", "first"], "--port first: expected a whole number"),
            (["routes", "--lids", "x"], "a range such as 3-9"),
            (["nodes", "--mkey", f"{1 << 64}"], "64 bits"),
            (["discover", "-f", ""], "--format : expected one of"),
            (["verify", "--output", "/nowhere/report"], "folder"),
        ):
            output = self.refused(*arguments)
            self.assertIn(words, output)
            self.assertIn("--help", output)

    def test_registry(self) -> None:
        """Each command has a module with options and a function, and each such module is a command."""
        folder = Path(commands.__file__).parent
        withOptions = {
            path.stem for path in folder.glob("*.py") if "class CommandOptions(" in path.read_text()
        }
        self.assertEqual(withOptions - {"options"}, {each.name.replace("-", "_") for each in COMMANDS})
        for each in COMMANDS:
            self.assertIn(each.group, GROUPS)
            self.assertTrue(callable(each.load().run))
            self.assertIn(f"Usage: txrdma {each.name} ", self.help(each.name, "--help"))

    def test_help(self) -> None:
        """Help shows every command, under the name of its group."""
        text = self.help("--help")
        for each in COMMANDS:
            self.assertIn(f"{each.group}:", text)
            self.assertIn(each.summary, text)

    def test_narrow(self) -> None:
        """The help is complete on narrow terminals, and if their width is not a number."""
        for columns in ("0", "-1", "wide", "", "8"):
            self.patch(os, "environ", {**os.environ, "COLUMNS": columns})
            self.assertIn("exit.", self.help("--help"))
        for each in COMMANDS:
            self.assertIn("exit.", self.help(each.name, "--help"))

    def help(self, *arguments: str) -> str:
        out = io.StringIO()
        with redirect_stdout(out):
            self.assertRaises(SystemExit, main, list(arguments))
        return out.getvalue()

    def test_helpIsLight(self) -> None:
        """C{--help} imports no command."""
        done = printed(
            "import sys; from txrdma.command import TxrdmaOptions; str(TxrdmaOptions()); print(*sys.modules)"
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        loaded = {name for name in done.stdout.split() if name.startswith("txrdma.")}
        self.assertEqual(loaded - {"txrdma.command", "txrdma.error"} - LIGHT, set())

    def test_withoutTLS(self) -> None:
        """A fabric command starts without OpenSSL, which can still be imported afterwards."""
        done = printed(WITHOUT_TLS)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        listing, loaded, later = done.stdout.rstrip().rsplit("\n", 2)
        self.assertIn("Ca\t1", listing)
        self.assertEqual(loaded, "[]")
        self.assertIn(later, ("found later", "not installed"))

    def test_failure(self) -> None:
        """Errors of devices, files, names and ports are reported in one line with the name of the command."""
        options = TxrdmaOptions()
        options.parseOptions(["devices"])
        for error in (
            *(DeviceUnavailable("it is gone"), FileNotFoundError(2, "not there", "report.csv")),
            *(DNSLookupError("no such host"), CannotListenError("", 80, OSError(13, "not permitted"))),
        ):

            async def fail(reactor: object, options: object, error: Exception = error) -> None:
                raise error

            self.patch(devices, "run", fail)
            failure = self.failureResultOf(run(cast(IReactor, None), options), SystemExit)
            self.assertEqual(failure.value.code, f"txrdma devices: {error}")

    def test_standardStreams(self) -> None:
        """Closed standard streams, a full disk, and names that cannot be encoded cause no traceback."""
        for words, ending, status, errors in (
            ("devices", "<&- >&-", 0, ""),
            ("decode", "<&-", 1, "not a management datagram"),
            ("pnet", ">/dev/full", 1, "txrdma pnet: [Errno 28] No space left"),
            ("pnet --help", ">/dev/full", 1, "txrdma pnet: [Errno 28] No space left"),
            ("--version", ">/dev/full", 1, "txrdma: [Errno 28] No space left"),
            ("check -d sim:fattree:2", ">/dev/full", 2, "No space left"),
            ("check -d sim:fattree:2:managed=no", ">/dev/full", 2, "No space left"),
            ("check --load /nonexistent", "", 2, "No such file"),
            ("diff --json /nonexistent", "", 2, "No such file"),
            ("diff --json /nonexistent", "2>/dev/full", 2, ""),
            ("sminfo -d nothing", "2>/dev/full", 1, ""),
            (f"nodes --load {self.snapshot()}", "| grep -qF 'h\\xf6st'", 0, ""),
        ):
            command = f"{sys.executable} -m txrdma {words} {ending}"
            environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUNBUFFERED": ""}
            settings: dict[str, Any] = {"env": environment, "timeout": 60}
            done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, **settings)
            lines = len(done.stderr.splitlines())
            self.assertEqual((done.returncode, lines), (status, bool(errors)), done.stderr)
            self.assertIn(errors, done.stderr)

    def snapshot(self) -> str:
        """Return the path of a net file with a host whose name is not in ASCII."""
        path: str = self.mktemp()
        Path(path).write_text('Switch 1 "S"\n[1] "H"[1]\nHca 1 "H" # "h\xf6st"\n[1] "S"[1]\n', "utf-8")
        return path


class ConnectionsTests(SynchronousTestCase):
    """Connections of processes, as text and as JSON."""

    def test_flat(self) -> None:
        """Each connection has its process; a process that did not answer is reported once."""
        answers = [
            {"pid": 1, "command": ["python", "a"], "connections": [SMC, TCP]},
            {"pid": 2, "error": "no answer: late"},
            {"pid": 3, "command": [], "connections": []},
        ]
        self.assertEqual(
            flat(answers),
            [
                {"pid": 1, "command": ["python", "a"], **SMC},
                {"pid": 1, "command": ["python", "a"], **TCP},
                {"pid": 2, "error": "no answer: late"},
            ],
        )

    def test_silent(self) -> None:
        """A peer that does not answer handshakes is shown with the time left without further attempts."""
        silent = {"peer": "127.0.0.1:8080", "seconds": 41.7}
        entries = flat([{"pid": 5, "command": ["python", "a"], "silent": [silent]}])
        self.assertEqual(entries, [{"pid": 5, "command": ["python", "a"], **silent}])
        text = shown(connectionsTable(entries))
        for words in ("5", "to 127.0.0.1:8080", "TCP", "no answer", "42 s"):
            self.assertIn(words, text)

    def test_table(self) -> None:
        """The table shows mode, reasons by name, addresses, device, route, link group, rings, counts."""
        answers = [
            {"pid": 77, "command": ["python", "[x]"], "connections": [SMC, TCP]},
            {"pid": 78, "error": "hm"},
        ]
        text = shown(connectionsTable(flat(answers)))
        for words in (
            *"77 [x] SMC-R ACTIVE 127.0.0.1:1234 127.0.0.1:80 soft shared-memory".split(),
            *"41 42 43 501 502 503 504".split(),
            *("group 7", "12.3 kB", "2.0 MB", "16.4 kB", "65.5 kB"),
            *("TCP", "PEERDECL", "NOSMCRDEV", "78", "hm"),
        ):
            self.assertIn(words, text)


class SignalTests(SynchronousTestCase):
    """Signals for commands in separate processes."""

    slowBecause = "starts processes"

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command, in which SIGHUP is not ignored as it is by C{nohup}."""
        restore = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
        options: dict[str, Any] = {"cwd": None, "stderr": subprocess.STDOUT, "preexec_fn": restore}
        return started(self, "-m", "txrdma", *words, **options)

    def assertEnds(self, words: str, number: int, status: int) -> None:
        """Assert that a signal ends this command with this status, and without a traceback."""
        process = self.start(*words.split())
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(number)
        output = first + process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, status, output)
        self.assertNotIn("Traceback", output)

    def test_interrupted(self) -> None:
        """Ctrl-C ends a command with status 130, and a server with that of success."""
        for words, status in (
            ("connections --json --watch 0.05 --timeout 0.1", 130),
            ("perfquery -d sim:fattree:2 --watch 0.05", 130),
            ("monitor -d sim:fattree:2 --json --interval 0.2", 130),
            ("ping -d sim:fattree:2 --server", 0),
        ):
            self.assertEnds(words, signal.SIGINT, status)

    def test_interruptedPings(self) -> None:
        """Measuring servers wait for a peer that never connects."""
        for words in ("rping -s -P -a 127.0.0.1 -d", "btl-ping --server --bind 127.0.0.1"):
            self.assertEnds(words, signal.SIGINT, 130)

    def test_terminated(self) -> None:
        """SIGTERM ends a command with status 143, and a server with that of success."""
        for words, status in (
            ("perfquery -d sim:fattree:2 --watch 0.05", 143),
            ("monitor -d sim:fattree:2 --json --interval 0.2", 143),
            ("ping -d sim:fattree:2 --server", 0),
        ):
            self.assertEnds(words, signal.SIGTERM, status)

    def test_interruptedReading(self) -> None:
        """Signals end commands that read a pipe whose writer does not write."""
        for words, number, status in (
            ("decode", signal.SIGINT, 130),
            ("check --load", signal.SIGTERM, 143),
            ("check -d sim:fattree:2 --topology", signal.SIGINT, 130),
            ("nodes -d sim:fattree:2 --node-names", signal.SIGHUP, 129),
            ("errors -d sim:fattree:2 --thresholds", signal.SIGINT, 130),
        ):
            path = self.mktemp()
            os.mkfifo(path)
            process = self.start(*words.split(), path)
            with open(path, "w"):  # waits for the reader
                process.send_signal(number)
                output = process.communicate(timeout=60)[0]
            self.assertEqual((process.returncode, output), (status, ""))

    def test_interruptedAgain(self) -> None:
        """Further signals change neither the end that the first one began, nor its exit status."""
        for numbers in ((signal.SIGINT, signal.SIGINT, signal.SIGTERM), (signal.SIGHUP,)):
            script = "trap '' INT HUP; echo; exec sleep 100"
            process = self.start("btl-run", "-n", "1", "sh", "-c", script)
            assert process.stdout is not None
            process.stdout.readline()
            for number in numbers:
                process.send_signal(number)
                time.sleep(0.1)
            output = process.communicate(timeout=60)[0]  # the program has ended when its output is closed
            self.assertEqual((process.returncode, output), (128 + numbers[0], ""))

    def test_signalMask(self) -> None:
        """Programs that a command starts do not inherit blocked signals."""
        process = self.start("btl-run", "-n", "1", "grep", "SigBlk", "/proc/self/status")
        output = process.communicate(timeout=60)[0]
        self.assertEqual(output.split(), ["SigBlk:", "0" * 16])

    def test_interruptedImports(self) -> None:
        """Ctrl-C during the imports ends the command without output."""
        arguments = [sys.executable, "-X", "importtime", "-m", "txrdma", "devices"]
        with subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            for line in process.stderr:
                if "twisted.python" in line:  # the first of many that the command needs
                    break
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(60), -signal.SIGINT)
            self.assertNotIn("KeyboardInterrupt", process.stderr.read())
            self.assertEqual(process.stdout.read(), "")


class DevicesTests(SynchronousTestCase):
    slowBecause = "each test starts several processes"

    def test_closedPipe(self) -> None:
        """A closed pipe, as with C{head}, ends a command with the status of SIGPIPE, without a message."""
        for words in (
            ("devices", "--json"),
            ("devices",),
            ("saquery", "--help"),
            ("monitor", "-d", "sim:fattree:2", "--interval", "0.1"),
        ):
            reading, writing = os.pipe()
            os.close(reading)
            try:
                arguments = [sys.executable, "-m", "txrdma", *words]
                done = subprocess.run(
                    arguments, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60
                )
            finally:
                os.close(writing)
            self.assertEqual((done.returncode, done.stderr), (OUTPUT_CUT, ""))

    def test_cutOutput(self) -> None:
        """A pipe that is closed while a long text is written is recognized, also without Python's buffers."""
        for unbuffered in ("", "1"):
            arguments = [sys.executable, "-m", "txrdma", "discover", "-d", "sim:fattree:256"]
            environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
            with subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment) as process:
                assert process.stdout is not None
                self.assertEqual(process.stdout.read(1), b"#")
                process.stdout.close()
                self.assertEqual(process.wait(60), OUTPUT_CUT)

    def test_closedErrors(self) -> None:
        """A closed standard error changes neither the output nor the exit status."""
        path: str = self.mktemp()
        problem = {"kind": "unreachable", "where": "0,1", "text": "no answer"}
        Path(path).write_text(json.dumps({"nodes": [], "problems": [problem]}))
        arguments = [sys.executable, "-m", "txrdma", "nodes", "--load", path]
        complete = subprocess.run(arguments, capture_output=True, timeout=60)
        self.assertEqual(complete.returncode, 1)
        self.assertIn(b"no answer", complete.stderr)
        reading, writing = os.pipe()
        os.close(reading)
        with open(writing, "w"):
            done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=writing, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (1, complete.stdout))

    def test_noErrors(self) -> None:
        """An error without a standard error has the documented exit status."""
        path: str = self.mktemp()
        words = ["/bin/sh", "-c", '"$@" 2>&-', "sh", sys.executable, "-m", "txrdma", "diff", path, path]
        self.assertEqual(subprocess.run(words, timeout=60).returncode, 2)
