"""Runs an exchange repeatedly, and cancels it one step of time later in each run."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectingCancelledError
from twisted.internet.interfaces import IListeningPort

from txrdma.cm.connections import adapter as adapters
from txrdma.cm.connections.endpoints import USUAL
from txrdma.cm.manager import ConnectionManager
from txrdma.cm.rdmacm import manager as kernels
from txrdma.cm.terms import Terms
from txrdma.messages.interfaces import IMessageProtocolFactory
from txrdma.messages.protocol import MessageFactory
from txrdma.sim.network import Faults
from txrdma.test.support.cm.librdmacm import useFakeKernel
from txrdma.test.support.cm.messaging import MessagingCase, PORT
from txrdma.testing.protocols import MessageRecorder

MOST_STEPS = 400
"""Maximum number of steps of time of a conversation."""

TIMEWAIT_SECONDS = 300.0
"""Maximum simulated time until the IDs of an abandoned connection are free."""

BESIDE = 7999
"""The port of the other connection, which must not be affected."""

SLOW = Faults(delaySeconds=1e-3, jitterSeconds=1e-3, merging=0.0)
"""A network with a step of time for each packet, which may overtake each other."""

NOTING = MessageFactory(MessageRecorder)

Begin = Callable[[], Deferred[Any]]
End = Callable[[Any], None]


def lose(made: Any) -> None:
    """Close a connection in order, if there is one."""
    if made is not None:
        made.transport.loseConnection()


def abort(made: Any) -> None:
    """Abort a connection, if there is one."""
    if made is not None:
        made.transport.abortConnection()


class CancelCase(MessagingCase):
    """
    Two hosts with a connection between them, while other attempts are cancelled.

    Resources are compared before and after: queue pairs, memory, completion queues and address handles of
    both devices; IDs, names, requests and listeners of both managers; timers and readers.
    """

    def setUp(self) -> None:
        super().setUp()
        self.network.faults = SLOW
        port = self.listening(BESIDE)
        client = self.result(self.connecting(BESIDE))
        self.wait(lambda: self.served[-1].isMade)
        self.beside: tuple[MessageRecorder, MessageRecorder] = client, self.served[-1]
        port.stopListening()
        self.talk(0)  # memory of messages is made for the first of them

    def listening(self, number: int = PORT, terms: Terms = USUAL) -> Any:
        """Listen to a port of the second host."""
        return self.listenAt(port=number, terms=terms)

    def connecting(
        self, number: int = PORT, terms: Terms = USUAL, factory: IMessageProtocolFactory = NOTING
    ) -> Deferred[Any]:
        """Connect to a port of the second host."""
        return self.connectTo(factory, port=number, terms=terms)

    def opened(self, terms: Terms = USUAL) -> tuple[MessageRecorder, MessageRecorder]:
        """Open another connection, and return both protocols."""
        port = self.listening(terms=terms)
        client = self.result(self.connecting(terms=terms))
        self.wait(lambda: self.served[-1].isMade)
        port.stopListening()
        return client, self.served[-1]

    def held(self) -> dict[str, object]:
        """Return the numbers of all resources that an exchange may use."""
        found: dict[str, object] = {
            "timers": len(self.clock.getDelayedCalls()),
            "readers": len(self.clock.readers),
        }
        for device in self.devices:
            found[device.name] = (
                *(len(device._queuePairs), len(device._numbers), len(device.keys)),
                *(len(device._completionQueues), len(device._channels), len(device.addressHandles)),
            )
            adapter = adapters.adapterOf(self.clock, device)
            queues = [shared.free for shared in adapter._queues]
            found[f"{device.name}'s adapter"] = (adapter._holders, len(adapter._pairs), queues)
            found[f"{device.name}'s manager"] = self.heldBy(adapter.manager)
        return found

    def heldBy(self, manager: object) -> tuple[object, ...]:
        """Return the numbers of all resources of a manager."""
        if isinstance(manager, kernels.KernelManager):
            return len(manager._connections), len(manager._handlers), len(manager.channel.identifiers)
        assert isinstance(manager, ConnectionManager)
        core = manager._core
        tables: tuple[Sized, ...] = (
            core._connections,
            core._byPeer,
            core._byQP,
            core._resolutions,
            core._sidrRequests,
            core._peerToPeer,
        )
        waiting = [len(each.waiting) for some in core._listeners.values() for each in some]
        return (
            *map(len, tables),
            len(manager._connections),
            len(manager._resolving),
            manager.listeners,
            waiting,
        )

    def everywhere(self, begin: Begin, end: End) -> None:
        """
        Begin, and cancel after no step of time, after one, and so on, until cancelling comes too late.

        Each time the Deferred fails with L{CancelledError}, all resources are free again, at the latest after
        time-wait, and the other connection carries messages in both directions.

        @param end: ends what was made; called with the result, or with None after a cancellation.
        """
        end(self.result(begin()))
        before = self.atRest()
        for steps in range(MOST_STEPS):
            asked = begin()
            taken = 0
            while taken < steps and not asked.called:
                self.clock.step()
                taken += 1
            isOver = asked.called
            asked.cancel()
            if isOver:
                end(self.successResultOf(asked))
            else:
                self.failureResultOf(asked, CancelledError, ConnectingCancelledError)
                end(None)
            self.assertHeld(before, steps)
            self.talk(steps)
            if isOver:
                self.assertGreaterEqual(steps, 2)
                return
        self.fail(f"it has not ended after {MOST_STEPS} steps")

    def attempted(self, listen: Callable[[], IListeningPort], begin: Begin, end: End) -> None:
        """Listen, and cancel an attempt to connect C{everywhere}."""
        listen()
        self.everywhere(begin, end)
        self.part()

    def atRest(self) -> dict[str, object]:
        """Return the resources in use after time-wait, when everything that is created once exists."""
        self.pause(TIMEWAIT_SECONDS)
        return self.held()

    def stopped(self, listen: Callable[[], IListeningPort], connect: Begin) -> None:
        """
        Stop listening after no step of time of a connect, after one, and so on, until that comes too late.

        Each client gets its connection or an error; both occur, and neither leaves anything behind.
        """
        port = listen()
        lose(self.result(connect()))
        port.stopListening()
        before = self.atRest()
        outcomes: set[bool] = set()
        for steps in range(100):
            port, asked = listen(), connect().addErrback(lambda _: None)
            for _ in range(steps):
                if not asked.called:
                    self.clock.step()
            isOver = asked.called
            stopping = port.stopListening()
            assert stopping is not None
            self.successResultOf(stopping)
            made = self.result(asked, 300.0)
            outcomes.add(made is None)
            lose(made)
            self.assertHeld(before, steps)
            self.talk(steps)
            if isOver:
                break
        self.assertTrue(isOver)
        self.assertEqual(outcomes, {False, True})
        self.part()

    def assertHeld(self, before: dict[str, object], steps: int) -> None:
        """Assert that no more resources are in use than before, immediately or after time-wait."""
        end = self.clock.seconds() + TIMEWAIT_SECONDS
        while self.held() != before and self.clock.seconds() < end:
            self.clock.step()
        self.assertEqual(self.held(), before, f"after {steps} steps")

    def talk(self, number: int) -> None:
        """Send a message in each direction of the other connection."""
        message = b"%d" % number
        for sender, receiver in (self.beside, self.beside[::-1]):
            receiver.messages.clear()
            sender.transport.sendMessage(message)
            self.wait(lambda end=receiver: end.messages)  # type: ignore[misc]  # a lambda
            self.assertEqual(receiver.messages, [(message, None)])
        self.pause(0.1)  # until the last acknowledgement

    def part(self) -> None:
        """Close the other connection, after which no resources are in use."""
        self.beside[0].transport.loseConnection()
        self.assertNothingLeft(TIMEWAIT_SECONDS)
        self.pause(1.0)  # until the last event of the fake kernel, if there is one
        self.assertEqual(self.clock.getDelayedCalls(), [])


class KernelCancelCase(CancelCase):
    """The same tests with connections of the kernel's manager, through a fake librdmacm."""

    def setUp(self) -> None:
        useFakeKernel(self.patch, lambda: self.clock)
        super().setUp()
