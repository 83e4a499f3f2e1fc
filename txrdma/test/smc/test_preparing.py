"""
Servers that find no module any more when they begin to listen, and real ones in another root directory.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Final

from twisted.trial.unittest import TestCase

ECHO: Final = """
import sys
from twisted.internet import reactor
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.python import log

log.startLogging(sys.stderr, setStdout=False)

class Echo(Protocol):
    def dataReceived(self, data):
        self.transport.write(data)

def listening(port):
    print(port.getHost().port, flush=True)

endpoint = serverFromString(reactor, sys.argv[1])
sys.path.clear()
sys.path_importer_cache.clear()
sys.meta_path[:] = sys.meta_path[:2]  # modules of the interpreter itself
endpoint.listen(Factory.forProtocol(Echo)).addCallback(listening)
reactor.run()
"""

CLIENT: Final = """
import sys
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import react

class Client(Protocol):
    def connectionMade(self):
        self.heard, self.ended = Deferred(), Deferred()
        self.transport.write(b"hello")

    def dataReceived(self, data):
        self.heard.callback(data)

    def connectionLost(self, reason):
        self.ended.callback(reason.type.__name__)

async def main(reactor, string):
    for _ in range(20):
        client = await clientFromString(reactor, string).connect(Factory.forProtocol(Client))
        print(client.transport.smc.route, (await client.heard).decode(), end=" ")
        client.transport.loseConnection()
        print(await client.ended)

react(lambda reactor, *words: Deferred.fromCoroutine(main(reactor, *words)), sys.argv[1:])
"""


GET: Final = """
import sys
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import react

class Client(Protocol):
    heard = b""

    def connectionMade(self):
        self.ended = Deferred()
        self.transport.write(b"GET /page HTTP/1.0\\r\\n\\r\\n")

    def dataReceived(self, data):
        self.heard += data

    def connectionLost(self, reason):
        self.ended.callback(reason.type.__name__)

async def main(reactor, string):
    for _ in range(3):
        client = await clientFromString(reactor, string).connect(Factory.forProtocol(Client))
        smc = getattr(client.transport, "smc", None)
        print(smc and smc.route, await client.ended, client.heard.partition(b"\\r\\n\\r\\n")[2].decode())

react(lambda reactor, *words: Deferred.fromCoroutine(main(reactor, *words)), sys.argv[1:])
"""

NULL: Final = os.makedev(1, 3)
"""The number of C{/dev/null}, which Twisted's own ports of TCP open: without it C{tcp:} does not listen."""


class PreparedTests(TestCase):
    """All that a server's connections need is imported when its string is parsed."""

    def serve(self, route: str, keys: str = "") -> None:
        """Have twenty connections served by a process that has lost its modules, and read its log."""
        words = [sys.executable, "-c", ECHO, f"smc:127.0.0.1:0{keys}"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                number = server.stdout.readline().strip()
                self.assertNotEqual(number, "", "nobody listens")
                string = f"smc:127.0.0.1:{number}:fallback=no{keys}"
                words = [sys.executable, "-c", CLIENT, string]
                client = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
            finally:
                server.terminate()
                log = server.communicate()[1]
        self.assertEqual(client.stdout, f"{route} hello ConnectionDone\n" * 20, client.stderr + log)
        self.assertNotIn("Traceback", log)

    def test_sharedMemory(self) -> None:
        """By shared memory, with C{device=auto}."""
        self.serve("shared-memory")

    def test_rocev2(self) -> None:
        """By UDP, with a device of that route."""
        self.serve("rocev2", r":device=soft\:route\=rocev2")


class ChrootTests(TestCase):
    """C{twistd --chroot} serves a page from a directory with nothing else in it, not even C{/proc}."""

    timeout = 60

    def setUp(self) -> None:
        self.root = Path(self.mktemp())
        (self.root / "dev").mkdir(parents=True)
        (self.root / "page").write_text("a page")
        try:
            os.mknod(self.root / "dev/null", stat.S_IFCHR | 0o666, NULL)
            (self.root / "dev/null").read_bytes()
        except OSError as error:
            self.skipTest(f"only root can make a root directory with a device in it: {error.strerror}")

    def serve(self, scheme: str, route: str | None, keys: str = "") -> None:
        """Have a page served three times, and read the server's log."""
        twistd = "from twisted.scripts.twistd import run; run()"
        words = [sys.executable, "-c", twistd, "--nodaemon", "--pidfile=", "--no_save"]
        words += [f"--chroot={self.root}", "web", "--path=/"]
        words += ["--listen", f"{scheme}:0:interface=127.0.0.1{keys}"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
            assert server.stdout is not None
            log = ""
            try:
                while "Site starting on " not in log:
                    line = server.stdout.readline()
                    self.assertNotEqual(line, "", f"nobody listens: {log}")
                    log += line
                number = log.rpartition(" ")[2].strip()
                words = [sys.executable, "-c", GET, f"{scheme}:127.0.0.1:{number}{keys}"]
                client = subprocess.run(words, capture_output=True, text=True, timeout=50, check=False)
            finally:
                server.terminate()
                log += server.communicate()[0]
        self.assertEqual(client.stdout, f"{route} ConnectionDone a page\n" * 3, client.stderr + log)
        self.assertNotIn("Error", log)

    def test_tcp(self) -> None:
        """So does C{tcp:}."""
        self.serve("tcp", None)

    def test_auto(self) -> None:
        """By shared memory, with C{device=auto}."""
        self.serve("smc", "shared-memory")

    def test_soft(self) -> None:
        """By shared memory, with a device that speaks RoCE v2, too."""
        self.serve("smc", "shared-memory", ":device=soft")

    def test_rocev2(self) -> None:
        """By UDP."""
        self.serve("smc", "rocev2", r":device=soft\:route\=rocev2")
