"""Connections of managers of which one function raises an exception, beside another connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from twisted.internet.defer import maybeDeferred

from txrdma.cm.connections.adapter import Adapter, adapterOf, SharedCompletionQueue
from txrdma.messages.protocol import MessageFactory
from txrdma.test.support.cm.messaging import MessagingCase
from txrdma.test.support.interruptions import Interruptions

SECONDS = 200.0
"""Time in which an attempt ends, with all retransmissions and time-wait."""


def partsOf(whole: object, packages: tuple[str, ...], depth: int = 3) -> Iterator[object]:
    """Return an object of a connection, and those of some packages that its attributes refer to."""
    yield whole
    names = (*getattr(type(whole), "__slots__", ()), *getattr(whole, "__dict__", ()))
    for each in [getattr(whole, name, None) for name in names] if depth else ():
        isShared = isinstance(each, (Adapter, SharedCompletionQueue))
        if not isShared and type(each).__module__.startswith(packages):
            yield from partsOf(each, packages, depth - 1)


class InterruptionCase(MessagingCase):
    """
    Connections of managers of which one call raises, with their functions.

    @cvar OWNERS: classes and modules of a manager; C{TRIVIAL}: names of functions that do not raise.
    @cvar STRIDE: only every call whose number in the list of calls has this distance raises.
    """

    OWNERS: tuple[Any, ...]
    TRIVIAL: tuple[str, ...]
    STRIDE = 1

    def setUp(self) -> None:
        super().setUp()
        self.isSelected = False
        self.interruptions = Interruptions(self.patch, self.OWNERS, self.isAffected, self.TRIVIAL)

    def isAffected(self, *arguments: object) -> bool:
        """Return whether a call with these arguments may raise."""
        return self.isSelected

    def others(self, manager: Any) -> list[Any]:
        """Return what a manager has in its tables, apart from one connection."""
        raise NotImplementedError

    def until(self, condition: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
        """Wait until a condition holds; the reactor logs exceptions of its calls."""
        end = self.clock.seconds() + seconds
        while not condition():
            if self.clock.seconds() > end:
                self.wrong.append(what)
                return
            try:
                self.clock.step()
            except ZeroDivisionError:
                self.count += 1

    def do(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a method that may raise."""
        try:
            function(*arguments)
        except ZeroDivisionError:
            pass

    def begun(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Make a request; return a list to which its result is appended, None if it fails."""
        results: list[Any] = []
        maybeDeferred(function, *arguments).addErrback(lambda _: None).addBoth(results.append)
        return results

    def converse(self, client: Any) -> None:
        """Send a message, and disconnect."""
        if client is None:
            return
        self.do(client.transport.sendMessage, b"hello")
        self.until(
            lambda: (
                client.lost
                or any(each.messages.pop() if each.messages else each.lost for each in self.served)
            ),
            "no message",
        )
        self.do(client.transport.loseConnection)
        self.until(lambda: client.lost, "the client's connection stays open")

    def connections(self) -> None:
        """Connect, exchange a message and disconnect."""
        (port,) = self.begun(self.ends().listen, MessageFactory(self.made))
        found = self.begun(self.ask)
        self.until(lambda: found, "the attempt hangs")
        for client in found:
            self.converse(client)
        if port is not None:
            self.do(port.stopListening)

    def play(self, work: Callable[[], None]) -> list[str]:
        """Work while another connection of the same managers is open; return what is wrong."""
        self.wrong: list[str] = []
        self.count = 0
        client, server = self.connected()
        self.served.clear()
        self.isSelected = True
        work()
        for each in self.served:
            self.until(lambda each=each: each.lost or not each.isMade, "the server's stays open")  # type: ignore[misc]
        self.isSelected = False
        for here, there in ((client, server), (server, client)):
            there.messages.clear()
            here.transport.sendMessage(b"still open")
            self.until(lambda there=there: there.messages, "the bystander is lost", 10)  # type: ignore[misc]
        self.closed(*self.connected())
        managers = [adapterOf(self.clock, device).manager for device in self.devices]
        self.until(lambda: not any(map(self.others, managers)), "tables have entries")
        self.closed(client, server)
        self.count += len(self.flushLoggedErrors(ZeroDivisionError))
        if self.count > 1:
            self.wrong.append(f"it was logged {self.count} times")
        self.assertNothingLeft(SECONDS)
        return self.wrong

    def playEach(self, work: Callable[[], None], most: int) -> None:
        """Play once for each function that is called, and let some of its calls raise."""
        self.interruptions.begin()
        self.assertEqual(self.play(work), [])
        self.assertGreater(len(self.interruptions.counts), 25)
        found = self.interruptions.findings(lambda: self.play(work), most, self.STRIDE)
        self.assertEqual(found, {}, "\n".join(f"{key}: {value}" for key, value in found.items()))
