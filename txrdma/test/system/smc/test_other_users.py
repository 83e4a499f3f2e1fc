"""
What processes of other users attempt against a listener, with real sockets.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from twisted.internet.endpoints import serverFromString
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from txrdma.smc.signalling.local import listenerName
from txrdma.smc.signalling.owners import TCPAddress
from txrdma.smc.wire.clc import Diagnosis
from txrdma.test.support.smc.ends import EndsTestCase, reactor
from txrdma.testing.protocols import Echo, Greeter, Recorders
from txrdma.testing.reactors import unqueuedSeconds

NOBODY = 65534

SQUATTER = """
import os, selectors, socket, sys
os.setgid(USER)
os.setuid(USER)
listener = socket.socket(socket.AF_INET6)
listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
listener.bind(("::", int(sys.argv[1])))
listener.listen()
selector = selectors.DefaultSelector()
for text in sys.argv[2:]:
    name = socket.socket(socket.AF_UNIX)
    name.bind("\\0" + text)
    name.listen()
    selector.register(name, selectors.EVENT_READ)
print("ready", flush=True)
while True:
    for key, _ in selector.select():
        connection, _ = key.fileobj.accept()
        connection.settimeout(2)
        try:
            while data := connection.recv(1000):
                connection.sendall(b"expected 1 %d\\naccepted 1\\n" % os.getuid())
        except OSError:
            pass
""".replace("USER", str(NOBODY))

CLAIMER = """
import os, socket, sys
os.setgid(USER)
os.setuid(USER)
held = []
for line in sys.stdin:
    name, host, port = line.split()
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].connect("\\0" + name)
    held[-1].settimeout(1)
    try:
        held[-1].sendall(b"connecting 1 %s %s\\n" % (host.encode(), port.encode()))
        answer = held[-1].recv(100)
    except OSError:
        answer = b""
    print(answer, flush=True)
""".replace("USER", str(NOBODY))


class StrangerTests(EndsTestCase):
    """Another user of this host."""

    if os.geteuid() != 0:
        skip = "only root can start processes of other users"

    def another(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        self.addCleanup(self._end, process)
        return process

    def _end(self, process: subprocess.Popen[str]) -> None:
        process.kill()
        process.communicate()

    async def test_squatterOfAllNamesChangesNoByte(self) -> None:
        factory = Recorders(Echo)
        listening = await serverFromString(reactor, "tcp:0:interface=127.0.0.1").listen(factory)
        self.addCleanup(listening.stopListening)
        port = listening.getHost().port
        places = (TCPAddress("127.0.0.1", port), TCPAddress("0.0.0.0", port), TCPAddress("::", port))
        names = [listenerName(place)[1:] for place in places]
        squatter = self.another(SQUATTER, str(port), *names)
        assert squatter.stdout is not None
        self.assertEqual(squatter.stdout.readline(), "ready\n")
        with socket.create_connection(("::1", port)):
            pass  # the squatter does listen there
        one = await self.connect(f"smc:127.0.0.1:{port}")
        self.assertEqual((one.smc.mode, one.smc.fallbackReason), ("TCP", Diagnosis.PEERNOSMC))
        one.transport.write(b"mine")
        self.assertEqual(await one.receiving(4), b"mine")
        self.assertEqual(factory.protocols[0].received, b"mine")

    async def test_announcementOfOtherUserDelaysNoWriter(self) -> None:
        for keys, answer in (("", "b''\n"), (r":device=soft\:route\=rocev2", f"b'expected 1 {os.geteuid()}")):
            _, port = await self.serve(f"smc:127.0.0.1:0{keys}", Greeter)
            with socket.socket() as client:
                client.bind(("127.0.0.1", 0))
                client.setblocking(False)
                claimer = self.another(CLAIMER)
                assert claimer.stdin is not None and claimer.stdout is not None
                name = listenerName(TCPAddress("127.0.0.1", port))[1:]
                claimer.stdin.write(f"{name} 127.0.0.1 {client.getsockname()[1]}\n")
                claimer.stdin.flush()
                output = await deferToThread(claimer.stdout.readline)
                self.assertTrue(output.startswith(answer), output)
                client.connect_ex(("127.0.0.1", port))
                begun = unqueuedSeconds()
                greeting = b""
                while not greeting and unqueuedSeconds() - begun < 5:
                    await deferLater(reactor, 0.01)
                    try:
                        greeting = client.recv(100)
                    except BlockingIOError:
                        pass
                self.assertEqual(greeting, Greeter.greeting)
                self.assertLess(unqueuedSeconds() - begun, 1.0)
