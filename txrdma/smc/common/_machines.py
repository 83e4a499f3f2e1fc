"""
State machines by tables: what is declared as with Automat's C{TypeMachineBuilder}, and found by hash.

Automat evaluates the signatures of all transitions when a machine is built, which was a third of the time of
all imports of SMC, and passes each input through seven calls; a connection hears about seven inputs from its
first to its last. Of Automat's machines only what is used here remains::

    builder = machineBuilder(Inputs, Core)      # the first state is the initial one
    closed, open = builder.state("closed"), builder.state("open")

    @closed.upon(Inputs.opened).to(open)
    def opened(inputs: Inputs, core: Core, now: float) -> None: ...

    open.upon(Inputs.opened).loop().returns(None)
    make = builder.build()                      # make(core) is a machine with the methods of Inputs
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast, Concatenate, Generic, TypeVar

from typing_extensions import ParamSpec

_Inputs = TypeVar("_Inputs")
_Core = TypeVar("_Core")
_P = ParamSpec("_P")

_Rows = dict[str, tuple["_Rows", Callable[..., None] | None]]
"""Of one state: input to the rows of the next state, and what is done on the way there, if anything."""


class NoTransition(Exception):
    """A machine has no transition for an input in its state: a mistake of ours, never of a peer's."""


class State(Generic[_Inputs, _Core]):
    """A state of a machine that is being built."""

    def __init__(self, name: str, builder: MachineBuilder[_Inputs, _Core]) -> None:
        self.name = name
        self.rows: _Rows = {}
        self.builder = builder

    def upon(self, what: Callable[Concatenate[_Inputs, _P], None]) -> Upon[_Inputs, _Core, _P]:
        """Begin to declare what happens upon an input in this state."""
        if getattr(self.builder.inputs, what.__name__, None) is not what:
            raise ValueError(f"{what!r} is no input of {self.builder.inputs!r}")
        return Upon(self, what.__name__)


class Upon(Generic[_Inputs, _Core, _P]):
    """An input in a state: where does it lead?"""

    def __init__(self, state: State[_Inputs, _Core], name: str) -> None:
        self._state = state
        self._name = name

    def to(self, state: State[_Inputs, _Core]) -> Transition[_Inputs, _Core, _P]:
        """Declare that the input leads to that state."""
        return Transition(self._state, self._name, state)

    def loop(self) -> Transition[_Inputs, _Core, _P]:
        """Declare that the input leads to no other state."""
        return self.to(self._state)


class Transition(Generic[_Inputs, _Core, _P]):
    """A way from a state to another: what is done there? A decorator."""

    def __init__(self, old: State[_Inputs, _Core], name: str, new: State[_Inputs, _Core]) -> None:
        self._old, self._name, self._new = old, name, new
        old.builder.unfinished.add(self)

    def __repr__(self) -> str:
        return f"{self._old.name} upon {self._name} to {self._new.name}"

    def __call__(
        self, action: Callable[Concatenate[_Inputs, _Core, _P], None]
    ) -> Callable[Concatenate[_Inputs, _Core, _P], None]:
        """Do that; the new state is taken before."""
        self._finish(action)
        return action

    def returns(self, result: None) -> None:
        """Do nothing on the way."""
        self._finish(None)

    def _finish(self, action: Callable[..., None] | None) -> None:
        if self._name in self._old.rows:
            raise ValueError(f"{self!r}: there is a transition already")
        self._old.rows[self._name] = self._new.rows, action
        self._old.builder.unfinished.discard(self)


class _Machine:
    """A machine: its state, and what it is about."""

    __slots__ = ("_core", "_rows")

    def __init__(self, rows: _Rows, core: object) -> None:
        self._rows = rows
        self._core = core


def _method(name: str, states: list[State[Any, Any]]) -> Callable[..., None]:
    def hear(self: _Machine, *args: object) -> None:
        row = self._rows.get(name)
        if row is None:
            here = next(state.name for state in states if state.rows is self._rows)
            raise NoTransition(f"no transition upon {name} in state {here!r}")
        self._rows, action = row
        if action is not None:
            action(self, self._core, *args)

    hear.__name__ = name
    return hear


class MachineBuilder(Generic[_Inputs, _Core]):
    """
    A machine that is being declared.

    @ivar unfinished: transitions whose action is not said so far.
    """

    def __init__(self, inputs: Any) -> None:
        self.inputs = inputs
        self.unfinished: set[Transition[_Inputs, _Core, Any]] = set()
        self._states: list[State[_Inputs, _Core]] = []

    def state(self, name: str) -> State[_Inputs, _Core]:
        """Another state; the first one is that of a new machine."""
        state = State(name, self)
        self._states.append(state)
        return state

    def build(self) -> Callable[[_Core], _Inputs]:
        """Make a function that makes machines."""
        if self.unfinished:
            raise ValueError(f"nobody said what is done: {sorted(map(repr, self.unfinished))}")
        states = self._states
        names = [name for name in vars(self.inputs) if not name.startswith("_")]
        methods: dict[str, Any] = {name: _method(name, states) for name in names}
        kind = cast(
            "type[_Machine]",
            type(f"{self.inputs.__name__}Machine", (_Machine,), {"__slots__": (), **methods}),
        )
        first = states[0].rows
        return lambda core: cast(_Inputs, kind(first, core))


def machineBuilder(inputs: Callable[[], _Inputs], core: type[_Core]) -> MachineBuilder[_Inputs, _Core]:
    """
    Make a builder of machines.

    @param inputs: the protocol class whose methods are inputs; arguments are given by place, not by name. To
        types it is what makes one: C{type} would ask for a class that is not abstract.
    @param core: the class of what machines are about.
    """
    return MachineBuilder(inputs)
