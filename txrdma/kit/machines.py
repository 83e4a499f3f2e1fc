"""
State machines with Automat's declaration syntax, run without Automat.

L{machineBuilder} returns a builder with the interface of Automat's C{TypeMachineBuilder}; states have no
data. Automat itself took a third of the CPU time of a process's first connect (half of it to be imported,
half to evaluate the signatures of all transitions), and it searches all transitions for each input. It is
imported only for L{NoTransition}; tests check that both behave the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast, Generic, TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from automat import TypeMachineBuilder

_Core = TypeVar("_Core")


class MachineCore:
    """Base class of the core of a state machine, which stores the name of its current state."""

    __slots__ = ()
    _stateName: str


_Data = TypeVar("_Data", bound=MachineCore)
_Inputs = TypeVar("_Inputs")

Row = tuple[str, Callable[[_Inputs], None], str, tuple[Callable[[_Data], None], ...]]
"""A transition: the old state, the input, the new state, and the actions to call."""


class _Machine:
    """
    The state machine of one instance. Each builder makes a subclass, whose methods are the inputs.

    @ivar postponed: inputs during a transition, which are processed after it; None outside of transitions.
    """

    __slots__ = ("core", "postponed", "state")

    def __init__(self, core: Any, state: _State) -> None:
        self.core = core
        self.state = state
        self.postponed: list[Callable[[], Any]] | None = None


_Transitions = dict["_State", "tuple[_State, Callable[..., Any]]"]
"""The transitions of one input: maps the old state to the new state and the function to call."""


def _input(method: Callable[..., Any], transitions: _Transitions) -> Callable[..., Any]:
    """Return the method of machines that processes an input, which C{method} declares."""
    name = method.__name__
    returnsNone = method.__annotations__.get("return") in (None, "None")

    def process(self: _Machine, *args: Any, **named: Any) -> Any:
        if self.postponed is not None:
            if not returnsNone:
                raise RuntimeError(f"{method.__qualname__} returns something, and a transition is under way")
            self.postponed.append(partial(process, self, *args, **named))
            return None
        transition = transitions.get(self.state)
        if transition is None:
            from automat import NoTransition  # a bug in txrdma: rare, so imported late

            raise NoTransition(self.state, name)
        postponed = self.postponed = []
        self.state, function = transition
        try:
            result = function(self, self.core, *args, **named)
        finally:
            self.postponed = None
        while postponed:
            postponed.pop(0)()
        return result

    process.__name__, process.__qualname__ = name, method.__qualname__
    return process


class _Transition:
    """A transition without a function yet, as C{state.upon(input).to(state)} returns it."""

    def __init__(self, transitions: _Transitions, before: _State, after: _State) -> None:
        self._transitions, self._before, self._after = transitions, before, after

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """
        Add the transition, which calls the decorated function.

        @raise ValueError: the state has a transition for this input already.
        """
        if self._before in self._transitions:
            raise ValueError(f"{self._before.name} has a transition for this input already")
        self._transitions[self._before] = self._after, function
        return function

    def returns(self, result: object) -> None:
        """Add the transition; its input returns a constant and calls nothing."""
        self(lambda *args, **named: result)


class _Upon:
    """A state and an input for which a transition is declared."""

    def __init__(self, transitions: _Transitions, before: _State) -> None:
        self._transitions, self._before = transitions, before

    def to(self, after: _State) -> _Transition:
        return _Transition(self._transitions, self._before, after)

    def loop(self) -> _Transition:
        return self.to(self._before)


class _State:
    """A state of a machine."""

    __slots__ = ("_transitions", "name")

    def __init__(self, name: str, transitions: dict[str, _Transitions]) -> None:
        self.name = name
        self._transitions = transitions

    def upon(self, method: Callable[..., Any]) -> _Upon:
        """Begin to declare the transition of this state for an input."""
        return _Upon(self._transitions[method.__name__], self)

    def __repr__(self) -> str:
        return f"<state {self.name}>"


class _Builder:
    """Collects states and transitions, as L{TypeMachineBuilder} does."""

    def __init__(self, inputs: Any) -> None:
        self._methods = {method.__name__: method for method in _inputsOf(inputs)}
        self._transitions: dict[str, _Transitions] = {name: {} for name in self._methods}
        self._states: list[_State] = []

    def state(self, name: str) -> _State:
        """Add a state; the first one is the initial state of machines."""
        self._states.append(_State(name, self._transitions))
        return self._states[-1]

    def build(self) -> Machines:
        inputs = {name: _input(method, self._transitions[name]) for name, method in self._methods.items()}
        kind = type("Machine", (_Machine,), {"__slots__": (), **inputs})
        return Machines(kind, self._states, self._transitions)


def _inputsOf(declaration: Any) -> list[Callable[..., Any]]:
    """Return the public methods of the protocol class that declares the inputs of a machine."""
    return [method for name, method in vars(declaration).items() if not name.startswith("_")]


class Machines:
    """
    A factory of machines of one kind, called with a core and, optionally, the initial state.

    @ivar states: names of all states; the first one is the default initial state.
    """

    def __init__(
        self, kind: type[_Machine], states: list[_State], transitions: dict[str, _Transitions]
    ) -> None:
        self._kind, self._first, self._transitions = kind, states[0], transitions
        self.states = tuple(state.name for state in states)

    def __call__(self, core: Any, state: _State | None = None) -> Any:
        return self._kind(core, state or self._first)

    def transitions(self) -> Iterable[tuple[str, str, str]]:
        """Yield all transitions as names: the old state, the input, and the new state."""
        for name, transitions in self._transitions.items():
            for before, (after, _function) in transitions.items():
                yield before.name, name, after.name


def machineBuilder(inputs: Any, core: type[_Core]) -> TypeMachineBuilder[Any, _Core]:
    """
    Return a builder of machines whose states have no data.

    @param inputs: the protocol class whose methods are the inputs.
    """
    return cast("TypeMachineBuilder[Any, _Core]", _Builder(inputs))


class StateTable(Generic[_Inputs, _Data]):
    """
    A state machine, declared as a table of transitions. A state ignores inputs for which it has no row.

    The machine is built when the first instance begins.

    @ivar rows: all transitions, in order; the first one starts from the initial state.
    @ivar stateNames: names of all states, in the order of the rows.
    """

    def __init__(self, inputs: Any, core: type[_Data], rows: Iterable[Row[_Inputs, _Data]]) -> None:
        """@param inputs: the protocol class whose methods are the inputs."""
        self.rows = tuple(rows)
        self.stateNames = tuple(dict.fromkeys(name for row in self.rows for name in (row[0], row[2])))
        self._inputs, self._core = inputs, core
        self._known = {(here, what.__name__) for here, what, _there, _actions in self.rows}
        self._machine: Callable[..., _Inputs] | None = None
        self._states: dict[str, Any] = {}

    def begin(self, core: _Data, stateName: str | None = None) -> _Inputs:
        """
        Return the machine of one instance, and store its initial state in the core.

        @param stateName: the initial state; None for the first one.
        """
        machine = self._machine or self._build()
        core._stateName = stateName or self.stateNames[0]
        return machine(core, self._states[core._stateName])

    def has(self, stateName: str, what: str) -> bool:
        """Return whether a state has a row for the input of that name."""
        return (stateName, what) in self._known

    def _build(self) -> Callable[..., _Inputs]:
        builder = machineBuilder(self._inputs, self._core)
        self._states = {stateName: builder.state(stateName) for stateName in self.stateNames}
        for here, what, there, actions in self.rows:
            self._states[here].upon(what).to(self._states[there])(_output(there, actions))
        for stateName, state in self._states.items():
            for what in _inputsOf(self._inputs):
                if (stateName, what.__name__) not in self._known:
                    state.upon(what).loop().returns(None)
        self._machine = builder.build()
        return self._machine


def _output(there: str, actions: tuple[Callable[[_Data], None], ...]) -> Callable[[object, _Data], None]:
    """Return the function of a transition, which stores the name of the new state and calls the actions."""

    def output(_: object, core: _Data) -> None:
        core._stateName = there
        for action in actions:
            action(core)

    return output
