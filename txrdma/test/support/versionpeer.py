"""
One end of conversations between two versions of txrdma: C{versionpeer.py TREE listen STRING...}, or
C{connect}.

It is run by its path, and imports txrdma from the given tree only. A listener prints the ports of its
strings. A client sends bytes, expects them back, closes, and prints a line of JSON for each string.
"""

import json
import os
import sys

TREE, ROLE, *STRINGS = sys.argv[1:]
sys.path[:] = [TREE, *(each for each in sys.path[1:] if not os.path.exists(f"{each}/txrdma/__init__.py"))]

from twisted.internet.defer import Deferred  # noqa: E402
from twisted.internet.endpoints import clientFromString, connectProtocol, serverFromString  # noqa: E402
from twisted.internet.protocol import Factory, Protocol  # noqa: E402
from twisted.internet.task import react  # noqa: E402
from twisted.logger import capturedLogs, formatEvent  # noqa: E402

import txrdma  # noqa: E402

DATA = bytes(range(256)) * 1024


class Echo(Protocol):
    """Returns received bytes."""

    def dataReceived(self, data):
        self.transport.write(data)


class Asker(Protocol):
    """Sends data, and closes when as many bytes have been echoed."""

    def __init__(self):
        self.received, self.smc, self.ended = bytearray(), None, Deferred()

    def connectionMade(self):
        self.smc = getattr(self.transport, "smc", None)
        self.transport.write(DATA)

    def dataReceived(self, data):
        self.received += data
        if len(self.received) >= len(DATA):
            self.transport.loseConnection()

    def connectionLost(self, reason):
        self.ended.callback(reason.type.__name__)


async def ask(reactor, string):
    """Return the result of a conversation, and the log entries meanwhile."""
    result = {"error": "", "mode": "", "isEqual": False}
    with capturedLogs() as log:
        try:
            asker = await connectProtocol(clientFromString(reactor, string), Asker())
            result["reason"] = await asker.ended
            result["isEqual"] = asker.received == DATA
            result["mode"] = asker.smc.mode if asker.smc is not None else ""
        except Exception as error:
            result["error"] = str(error)
    return {**result, "log": [formatEvent(event) for event in log]}


async def main(reactor):
    """Run one end."""
    assert os.path.samefile(os.path.dirname(os.path.dirname(txrdma.__file__)), TREE), txrdma.__file__
    if ROLE == "connect":
        for string in STRINGS:
            print(json.dumps(await ask(reactor, string)), flush=True)
        return
    ports = [await serverFromString(reactor, each).listen(Factory.forProtocol(Echo)) for each in STRINGS]
    print(*(port.getHost().port for port in ports), flush=True)
    await Deferred()


react(lambda reactor: Deferred.fromCoroutine(main(reactor)))
