"""
What processes report about their connections, and to which users.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from txrdma.test.support.processes import suspend
from txrdma.test.support.smc.control import AskingCase, NAMESPACE, reactor
from txrdma.unix.answers import askAll, processesIn

SERVE = """
import sys
from twisted.internet import reactor
from txrdma.smc.status import control as introspection
from txrdma.smc.status.control import answer
from txrdma.test.support.smc.control import ReportedStatus

introspection.NAMESPACE = sys.argv[2]
reported = {"connections": [ReportedStatus().toDict()] * int(sys.argv[1])}
assert answer(reactor, lambda: reported) is not None
reactor.callWhenRunning(lambda: print("ready", flush=True))
reactor.run()
"""


SERVICE = """
import os
from twisted.application.internet import StreamServerEndpointService
from twisted.application.service import Application
from twisted.internet import reactor
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory, Protocol

endpoint = serverFromString(reactor, "smc:0:interface=127.0.0.1")
application = Application("test")
StreamServerEndpointService(endpoint, Factory.forProtocol(Protocol)).setServiceParent(application)
reactor.callWhenRunning(reactor.callLater, 0, os.write, 1, b"ready\\n")
"""

ASK = """
import os, sys
from twisted.internet import reactor
from twisted.internet.task import react
from txrdma.smc.status.control import NAMESPACE
from txrdma.unix.answers import askAll

os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))

async def main(reactor):
    for answer in await askAll(NAMESPACE, reactor, 5.0):
        print(answer["pid"], answer.get("error", ""))

react(main)
"""

NOBODY = 65534


@contextmanager
def otherProcess(connections: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process of the same user that answers."""
    command = [sys.executable, "-c", SERVE, str(connections), NAMESPACE]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


class AskingTests(AskingCase):
    slowBecause = "starts processes"

    async def test_otherProcessIsFoundAndLongAnswerArrives(self) -> None:
        with otherProcess(3000) as process:
            [reported] = await self.ours(process.pid)
        self.assertEqual(len(reported["connections"]), 3000)
        self.assertEqual(reported["command"][1], "-c")

    def test_serviceAnswersNewUserAfterGivingUpPrivileges(self) -> None:
        if os.geteuid() != 0:
            self.skipTest("only root can become somebody else")
        tac = os.path.abspath(self.mktemp())
        with open(tac, "w") as file:
            file.write(SERVICE)
        twistd = "from twisted.scripts.twistd import run; run()"
        command = [sys.executable, "-c", twistd, "--nodaemon", "--pidfile=", "--no_save"]
        command += ["--logfile=/dev/null", f"--uid={NOBODY}", f"--gid={NOBODY}", f"--python={tac}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as service:
            self.addCleanup(service.kill)
            assert service.stdout is not None
            self.assertEqual(service.stdout.readline(), b"ready\n")
            reported = [
                subprocess.run(
                    [sys.executable, "-c", ASK, str(user)], capture_output=True, text=True, timeout=50
                ).stdout.splitlines()
                for user in (NOBODY, 0)
            ]
            service.kill()
        self.assertIn(f"{service.pid} ", reported[0])
        self.assertEqual([line for line in reported[1] if line.startswith(f"{service.pid} ")], [])

    async def test_killedProcessIsNotFound(self) -> None:
        with otherProcess(1) as process:
            process.kill()
            process.wait()
            self.assertNotIn(process.pid, processesIn(NAMESPACE))

    async def test_silentProcessIsListedWithReason(self) -> None:
        with otherProcess(1) as process:
            suspend(process.pid)
            [reported] = [
                each for each in await askAll(NAMESPACE, reactor, 0.2) if each["pid"] == process.pid
            ]
        self.assertEqual(reported["error"], "no answer: it is stopped or busy: no answer in 0.2 seconds")
