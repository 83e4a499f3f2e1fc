"""State machines, compared with Automat's machines of the same declarations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from automat import NoTransition, TypeMachineBuilder
from hypothesis import given, strategies

from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.machines import machineBuilder


class Inputs(Protocol):
    def push(self, force: int) -> None:
        """Push the door."""

    def turn(self) -> None:
        """Turn the key."""

    def ask(self) -> str:
        """Return the state of the door."""


class Door:
    """The data of a door: recorded actions."""

    def __init__(self) -> None:
        self.done: list[object] = []


def machine(builder: TypeMachineBuilder[Any, Door]) -> Callable[[Door], Any]:
    """Return the machine of a door that can be opened and locked, but not pushed while it is open."""
    closed, locked, opened = (builder.state(name) for name in ("closed", "locked", "opened"))

    @closed.upon(Inputs.push).to(opened)
    def openDoor(inputs: Inputs, door: Door, force: int) -> None:
        door.done.append(force)
        if force > 2:
            inputs.turn()  # processed after this transition

    @closed.upon(Inputs.turn).to(locked)
    @locked.upon(Inputs.turn).to(closed)
    def turned(inputs: Inputs, door: Door) -> None:
        door.done.append("turned")

    locked.upon(Inputs.push).loop().returns(None)
    opened.upon(Inputs.turn).to(locked).returns(None)
    for state in (closed, locked, opened):
        state.upon(Inputs.ask).loop().returns(state.name)
    return builder.build()


class MachineTests(SynchronousTestCase):
    """State machines behave like Automat's."""

    @given(strategies.lists(strategies.sampled_from(["turn", "ask", 1, 2, 3])))
    def test_same(self, inputs: list[str | int]) -> None:
        """Each input has the same result and effect as with Automat, or fails with both."""
        reported = []
        for builder in (machineBuilder(Inputs, Door), TypeMachineBuilder(Inputs, Door)):
            door = Door()
            inside = machine(builder)(door)
            results: list[object] = []
            for each in inputs:
                try:
                    results.append(inside.push(each) if isinstance(each, int) else getattr(inside, each)())
                except NoTransition as error:
                    results.append((error.state.name, error.symbol))
            reported.append((results, door.done))
        self.assertEqual(reported[0], reported[1])

    def test_twice(self) -> None:
        """A state has one transition for an input."""
        builder = machineBuilder(Inputs, Door)
        state = builder.state("closed")
        state.upon(Inputs.turn).loop().returns(None)
        self.assertRaises(ValueError, state.upon(Inputs.turn).loop().returns, None)
