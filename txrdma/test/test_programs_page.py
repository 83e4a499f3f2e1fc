"""
The page about programs: its strings can be parsed, and those of its examples that need Twisted and treq only serve and
fetch over SMC-R. The others need programs that are not installed for tests; of these the imports are looked at.
"""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import SkipTest

from twisted.application.service import IService, IServiceCollection
from twisted.internet.endpoints import clientFromString, connectProtocol, serverFromString
from twisted.protocols.basic import LineReceiver
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.test.smc.ends import EndsTestCase, reactor
from txrdma.testing.streams.certificate import makeCertificate

PAGE = Path(txrdma.__file__).parents[1] / "docs" / "programs.md"


def blocks() -> list[str]:
    """The page's examples in Python."""
    if not PAGE.exists():
        raise SkipTest("not a checkout")
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def block(word: str) -> str:
    """The only example with a word; its port is one that is free."""
    (found,) = [each for each in blocks() if word in each]
    return re.sub(r"\"smc:\d+\"", '"smc:0:interface=127.0.0.1"', found)


class StringTests(SynchronousTestCase):
    """What can be seen without running anything."""

    def test_strings(self) -> None:
        """Each C{smc:} string is one, to listen or to connect."""
        blocks()
        listening = connecting = 0
        for string in re.findall(r"(?<![\\\w:=.])smc:[\w.:]+\d", PAGE.read_text()):
            if string.count(":") == 1:
                serverFromString(reactor, string)
                listening += 1
            else:
                clientFromString(reactor, string)
                connecting += 1
        self.assertGreater(listening, 20)
        self.assertGreater(connecting, 3)

    def test_imports(self) -> None:
        """What the examples import from Twisted and from here is there."""
        names = 0
        for text in blocks():
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in ("twisted", "txrdma"):
                    module = import_module(str(node.module))
                    for name in node.names:
                        self.assertTrue(hasattr(module, name.name), f"{node.module}.{name.name}")
                        names += 1
        self.assertGreater(names, 20)


class Lines(LineReceiver):
    """Remembers the first line."""

    def __init__(self) -> None:
        self.line: Deferred[bytes] = Deferred()

    def lineReceived(self, line: bytes) -> None:
        if not self.line.called:
            self.line.callback(line)


class ServingTests(EndsTestCase):
    """Examples that serve or fetch."""

    async def start(self, application: Any) -> int:
        """Start the only service of an application; its port."""
        (service,) = IServiceCollection(application)
        IService(service).startService()
        self.addCleanup(service.stopService)
        port = await service._waitingForPort
        return int(port.getHost().port)
