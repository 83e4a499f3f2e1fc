"""C{txrdma pingpong} in real processes."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Sequence
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.pingpong.plan import Measure, Transfer
from txrdma.test.support.processes import started

PATIENCE = 120


class ProcessTests(SynchronousTestCase):
    """Real processes of the command, on this host."""

    slowBecause = "two or three processes start, and measure for a second"

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        options = {
            "stdin": subprocess.DEVNULL,
            "stderr": subprocess.PIPE,
            "start_new_session": True,
            **options,
        }
        options["env"] = {**os.environ, "PYTHONUNBUFFERED": "1"}
        # A process in the background may have SIGINT ignored.
        options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
        return started(self, "-m", "txrdma", "pingpong", *words, **options)

    def server(self, *words: str) -> tuple[subprocess.Popen[str], str]:
        """Start a server; return it and its port."""
        process = self.start("--listen", r"tcp:0:interface=127.0.0.1", *words)
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"waiting at 127\.0\.0\.1:(\d+)", line)
        assert found is not None, line
        return process, f"tcp:127.0.0.1:{found[1]}"

    def rows(self, text: str) -> Sequence[dict[str, str]]:
        """Return the rows of CSV output."""
        return list(csv.DictReader(io.StringIO(text)))

    def test_interruptedAtTerminal(self) -> None:
        """Ctrl-C, which a terminal sends to both processes of C{--local}, ends it as any other client."""
        client, first = self.underWay("--local", "--test", "send")
        os.killpg(client.pid, signal.SIGINT)
        out, err = client.communicate(timeout=PATIENCE)
        self.assertEqual((client.returncode, err), (130, ""))
        self.checkUnfinished(first + out)

    def underWay(self, *words: str) -> tuple[subprocess.Popen[str], str]:
        """Start a client and wait for its second test, which is long; return it and its output."""
        client = self.start(
            "--csv", "-", "--measure", "latency", "--size", "64,4M", "--iterations", "5000", *words
        )
        assert client.stdout is not None
        return client, client.stdout.readline() + client.stdout.readline()

    def checkUnfinished(self, text: str) -> None:
        """Check that the first test is complete, the second partial or missing, the third missing."""
        first, *others = self.rows(text)
        self.assertEqual(first["interrupted"], "False")
        self.assertLessEqual(len(others), 1)
        for other in others:
            self.assertEqual((other["bytes"], other["interrupted"]), (str(4 << 20), "True"))
            self.assertGreater(int(other["messages"]), 0)

    def test_oneCommandRunsAllTestsAndLeavesNoProcess(self) -> None:
        process = self.start("--local", "--json", "--check", "--iterations", "30", "--measure", "all")
        out, err = process.communicate(timeout=PATIENCE)
        self.assertEqual((process.returncode, err), (0, ""))
        reported = json.loads(out)
        kinds = {(each["test"], each["measure"]) for each in reported}
        self.assertEqual(kinds, {(t.value, m.value) for t in Transfer for m in Measure})
        for each in reported:
            self.assertEqual(each["wrong"], 0, each)
            if each["test"] != "ud":
                expected = 60 if each["measure"] == "bidirectional" else 30
                self.assertEqual((each["messages"], each["lost"]), (expected, 0))
                self.assertEqual(each["route"], "shared-memory")

    def test_serverForOne(self) -> None:
        """A server serves all clients over the route of its device; with C{--once}, only one."""
        server, where = self.server("--once", "--device", "soft:127.0.0.1:route=rocev2")
        client = self.start("--csv", "-", "-n", "20", "-t", "send,ud", where)
        out, err = client.communicate(timeout=PATIENCE)
        self.assertEqual((client.returncode, err), (0, ""))
        self.assertEqual({row["route"] for row in self.rows(out)}, {"rocev2"})
        _out, err = server.communicate(timeout=PATIENCE)
        self.assertEqual((server.returncode, err), (0, "txrdma pingpong: 127.0.0.1 measures\n"))

    def test_interruptedClientPrintsResultsAndServerServesNext(self) -> None:
        server, where = self.server()
        client, first = self.underWay(where)
        client.send_signal(signal.SIGINT)
        out, err = client.communicate(timeout=PATIENCE)
        self.assertEqual((client.returncode, err), (130, ""))
        self.checkUnfinished(first + out)
        after = self.start("-n", "20", "--json", where)
        out, err = after.communicate(timeout=PATIENCE)
        self.assertEqual((after.returncode, err, len(json.loads(out))), (0, "", 2))
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=PATIENCE)
        self.assertEqual(server.returncode, 0)

    def test_interruptedServerEndsWithoutErrorAndClientPrintsReason(self) -> None:
        server, where = self.server()
        client, first = self.underWay(where)
        server.send_signal(signal.SIGINT)
        out, err = client.communicate(timeout=PATIENCE)
        self.assertEqual(client.returncode, 1)
        self.assertEqual(err, "txrdma pingpong: the other end reports: the server is stopped\n")
        self.checkUnfinished(first + out)
        server.communicate(timeout=PATIENCE)
        self.assertEqual(server.returncode, 0)

    def test_killedServerIsOneLineErrorAfterResults(self) -> None:
        server, where = self.server()
        client, first = self.underWay(where)
        server.kill()
        out, err = client.communicate(timeout=PATIENCE)
        self.assertEqual(client.returncode, 1)
        self.assertRegex(err, r"\Atxrdma pingpong: (the other end has gone|the peer does not answer.*)\n\Z")
        self.checkUnfinished(first + out)

    def test_longTestsShowProgressOnTerminal(self) -> None:
        terminal, terminalEnd = os.openpty()
        try:
            process = self.start(
                "--local", "-t", "read", "--json", stdout=subprocess.DEVNULL, stderr=terminalEnd
            )
            self.assertEqual(process.wait(PATIENCE), 0)
            output = os.read(terminal, 1 << 16).decode()
        finally:
            os.close(terminalEnd)
            os.close(terminal)
        self.assertRegex(output, r"\r\x1b\[Kread (latency|bandwidth), \d+ bytes: \d+ messages")
        self.assertTrue(output.endswith("\r\x1b[K"))

    def test_serverWithClosedStandardErrorEndsNormally(self) -> None:
        server, where = self.server("--once")
        assert server.stderr is not None
        server.stderr.close()
        host, port = where.split(":")[1:]
        with socket.create_connection((host, int(port))) as unknownPeer:
            unknownPeer.sendall(b"nonsense\n")
            self.assertIn(b"trouble", unknownPeer.recv(4096))
        self.assertEqual(server.wait(PATIENCE), 0)

    def test_missingServerIsOneLineError(self) -> None:
        client = self.start("tcp:127.0.0.1:1")
        out, err = client.communicate(timeout=PATIENCE)
        self.assertEqual((client.returncode, out), (1, ""))
        self.assertRegex(err, r"\Atxrdma pingpong: no server at tcp:127.0.0.1:1: .*refused.*\n\Z")

    def test_compatible(self) -> None:
        """Two processes use the protocol of C{ibv_rc_pingpong}, at addresses where RoCE's port is free."""
        more = ("--compatible", "--check", "--json", "-n", "20")
        high, low = divmod(os.getpid() & 0xFFFF, 256)
        server, where = self.server("--device", f"soft:127.{high}.{low}.2", *more)
        client = self.start("--device", f"soft:127.{high}.{low}.3", *more, where)
        for process in (client, server):
            out, err = process.communicate(timeout=PATIENCE)
            self.assertEqual(process.returncode, 0, err)
            (reported,) = json.loads(out)
            self.assertEqual(reported["wrong"], 0)
            self.assertIn(reported["messages"], (19, 20))
