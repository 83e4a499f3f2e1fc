"""
L{txrdma.smc.common._machines}: state machines by tables.
"""

from __future__ import annotations

from typing import Protocol

from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.common._machines import MachineBuilder, machineBuilder, NoTransition


class Inputs(Protocol):
    """What doors hear."""

    def push(self, force: int) -> None:
        """Somebody pushes."""

    def slam(self) -> None:
        """Somebody slams it."""


class Core:
    """What there is of a door."""

    def __init__(self) -> None:
        self.heard: list[object] = []


def push(inputs: Inputs, core: Core, force: int) -> None:
    """Note that somebody pushed."""
    core.heard.append(force)


class MachineTests(SynchronousTestCase):
    """What is promised of machines."""

    def setUp(self) -> None:
        self.builder: MachineBuilder[Inputs, Core] = machineBuilder(Inputs, Core)
        self.shut, self.open = self.builder.state("shut"), self.builder.state("open")

    def test_transitions(self) -> None:
        """An input does what its state says of it, with the arguments, and leads to the next state."""
        core = Core()
        self.shut.upon(Inputs.push).to(self.open)(push)
        self.open.upon(Inputs.push).loop().returns(None)

        @self.open.upon(Inputs.slam).to(self.shut)
        def slam(inputs: Inputs, core: Core) -> None:
            core.heard.append("bang")

        door = self.builder.build()(core)
        for _ in range(2):
            door.push(3)
            door.push(4)
            door.slam()
        self.assertEqual(core.heard, [3, "bang", 3, "bang"])

    def test_reentrant(self) -> None:
        """An input that comes while another acts is in the new state already."""
        core = Core()
        self.shut.upon(Inputs.slam).loop().returns(None)

        @self.shut.upon(Inputs.push).to(self.open)
        def swing(inputs: Inputs, core: Core, force: int) -> None:
            inputs.slam()
            core.heard.append("pushed")

        @self.open.upon(Inputs.slam).to(self.shut)
        def slam(inputs: Inputs, core: Core) -> None:
            core.heard.append("bang")

        door = self.builder.build()(core)
        door.push(1)
        door.slam()
        self.assertEqual(core.heard, ["bang", "pushed"])

    def test_apart(self) -> None:
        """Each machine has a state of its own."""
        self.shut.upon(Inputs.push).to(self.open)(push)
        make = self.builder.build()
        cores = [Core(), Core()]
        doors = [make(core) for core in cores]
        doors[0].push(1)
        doors[1].push(2)
        self.assertEqual([core.heard for core in cores], [[1], [2]])

    def test_noTransition(self) -> None:
        """An input that a state has nothing for is an error that names both, and changes nothing."""
        self.shut.upon(Inputs.push).to(self.open)(push)
        door = self.builder.build()(Core())
        error = self.assertRaises(NoTransition, door.slam)
        self.assertIn("slam in state 'shut'", str(error))
        door.push(1)
        error = self.assertRaises(NoTransition, door.push, 1)
        self.assertIn("push in state 'open'", str(error))

    def test_doubled(self) -> None:
        """A second transition for the same input in the same state is refused."""
        self.shut.upon(Inputs.push).to(self.open)(push)
        self.assertRaises(ValueError, self.shut.upon(Inputs.push).loop().returns, None)

    def test_unfinished(self) -> None:
        """A transition of which nobody says what is done is found when the machine is built."""
        self.shut.upon(Inputs.push).to(self.open)
        error = self.assertRaises(ValueError, self.builder.build)
        self.assertIn("shut upon push to open", str(error))

    def test_noInput(self) -> None:
        """What is no input of the machine is refused."""
        self.assertRaises(ValueError, self.shut.upon, push)
