"""
Programs that can import nothing more when they listen or connect, and services in another root directory.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Final

from twisted.trial.unittest import TestCase

from txrdma.test.support.processes import loopbackAddress, printed, serving
from txrdma.unix.sockets import unmapped

LOSE: Final = "sys.path.clear(); sys.path_importer_cache.clear(); sys.meta_path[:] = sys.meta_path[:2]"
"""A line after which a program can import only built-in modules."""

ECHO: Final = f"""
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
{LOSE}
def failed(reason):
    log.err(reason)
    reactor.callLater(0, reactor.stop)

endpoint.listen(Factory.forProtocol(Echo)).addCallbacks(listening, failed)
reactor.run()
"""

CLIENT: Final = f"""
import sys
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import react

class Client(Protocol):
    def connectionMade(self):
        self.received, self.ended = Deferred(), Deferred()
        self.transport.write(b"hello")

    def dataReceived(self, data):
        self.received.callback(data)

    def connectionLost(self, reason):
        self.ended.callback(reason.type.__name__)

async def main(reactor, endpoint):
    for _ in range(5):
        client = await endpoint.connect(Factory.forProtocol(Client))
        smc = getattr(client.transport, "smc", None)
        print(smc and smc.route, (await client.received).decode(), end=" ")
        client.transport.loseConnection()
        print(await client.ended)

endpoint = clientFromString(reactor, sys.argv[1])
if sys.argv[2:] == ["loses"]:
    {LOSE}
react(lambda reactor: Deferred.fromCoroutine(main(reactor, endpoint)))
"""


GET: Final = """
import os, sys
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString
from twisted.internet.protocol import Factory
from twisted.internet.task import react
from txrdma.testing.protocols import Recorder

class Client(Recorder):
    greeting = b"GET /page HTTP/1.0\\r\\n\\r\\n"

async def main(reactor, user, *strings):
    endpoints = [clientFromString(reactor, string) for string in strings for _ in range(3)]
    if user:
        os.setuid(int(user))
    for endpoint in endpoints:
        client = await endpoint.connect(Factory.forProtocol(Client))
        await client.lost
        print(client.smc and client.smc.route, client.reason.type.__name__, end=" ")
        print(client.received.partition(b"\\r\\n\\r\\n")[2].decode())

react(lambda reactor, *words: Deferred.fromCoroutine(main(reactor, *words)), sys.argv[1:])
"""

NULL: Final = os.makedev(1, 3)
"""The device number of C{/dev/null}, which Twisted's TCP ports open: without it C{tcp:} cannot listen."""


class PreparedTests(TestCase):
    """
    Everything that connections need is imported when the string is parsed, at both ends.

    Clients of C{smc:} are prepared in processes of root only, which may lose their modules.
    """

    slowBecause = "starts two processes that import all of the package"

    def serve(self, route: str | None, listen: str, connect: str) -> None:
        """Serve five connections between processes that can import nothing."""
        isPrepared = not listen.startswith("smc:") or not os.geteuid()
        with serving(ECHO, listen, stderr=subprocess.PIPE) as (server, number):
            client = printed(CLIENT, connect.format(number), *["loses"] * isPrepared)
            server.terminate()
            log = server.communicate()[1]
        self.assertEqual(client.stdout, f"{route} hello ConnectionDone\n" * 5, client.stderr + log)
        self.assertNotIn("Traceback", log)

    def test_sharedMemory(self) -> None:
        """Connections use shared memory, with C{device=auto}."""
        self.serve("shared-memory", "smc:127.0.0.1:0", "smc:127.0.0.1:{}:fallback=no")

    def test_rocev2(self) -> None:
        """Connections use UDP, with a device of that route."""
        udp = r":device=soft\:route\=rocev2"
        self.serve("rocev2", f"smc:127.0.0.1:0{udp}", f"smc:127.0.0.1:{{}}:fallback=no{udp}")

    def test_btl(self) -> None:
        """Connections use the byte transfer layer."""
        self.serve(None, "btl:127.0.0.1:0", "btl:127.0.0.1:{}")

    def test_rsocket(self) -> None:
        """Connections use messages of an address of their own."""
        address = loopbackAddress()
        self.serve(None, f"rsocket:{address}:0", f"rsocket:{address}:{{}}")


class ChrootTests(TestCase):
    """C{twistd --chroot} serves a page from an otherwise empty directory, without C{/proc}."""

    slowBecause = "starts two processes that import all of the package"

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

    def serve(self, *listeners: tuple[str, str, str | None], user: str = "") -> None:
        """
        Have a page served three times by each listener, by and to another user if one is given.

        @param listeners: for each its scheme, further keys, and the route of its connections.
        """
        twistd = "from twisted.scripts.twistd import run; run()"
        words = [sys.executable, "-c", twistd, "--nodaemon", "--pidfile=", "--no_save"]
        words += [f"--chroot={self.root}"]
        words += [f"--uid={user}", f"--gid={user}"] if user else []
        words += ["web", "--path=/"]
        for scheme, keys, _route in listeners:
            words += ["--listen", f"{scheme}:0:interface=127.0.0.1{keys}"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
            assert server.stdout is not None
            log = ""
            try:
                while len(found := re.findall(r"Site(?: \(btl\))? starting on (\d+)", log)) < len(listeners):
                    line = server.stdout.readline()
                    self.assertNotEqual(line, "", f"a listener is missing: {log}")
                    log += line
                ports = zip(listeners, found, strict=True)
                strings = [f"{scheme}:127.0.0.1:{port}{keys}" for (scheme, keys, _route), port in ports]
                client = printed(GET, user, *strings)
            finally:
                server.terminate()
                log += server.communicate()[0]
        expected = "".join(f"{route} ConnectionDone a page\n" * 3 for _scheme, _keys, route in listeners)
        self.assertEqual(client.stdout, expected, client.stderr + log)
        self.assertNotIn("Error", log)

    def test_routes(self) -> None:
        """
        C{smc:} serves the page through shared memory, with C{device=auto} and with a device that also has
        RoCE v2, and over UDP; so does C{btl:}.
        """
        self.serve(
            ("smc", "", "shared-memory"),
            ("smc", ":device=soft", "shared-memory"),
            ("smc", r":device=soft\:route\=rocev2", "rocev2"),
            ("btl", "", None),
        )

    def test_nobody(self) -> None:
        """C{smc:} shares memory as C{nobody}, whose ID may be that of unmapped users without C{/proc}."""
        if 65534 in unmapped():
            self.skipTest("this user namespace does not map nobody")
        (self.root / "etc").mkdir()
        (self.root / "etc/passwd").write_text("nobody:x:65534:65534::/:/bin/false\n")
        self.serve(("smc", "", "shared-memory"), user="65534")
