"""
Servers that find no module any more when they begin to listen, as in another root directory.
"""

from __future__ import annotations

import subprocess
import sys
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
