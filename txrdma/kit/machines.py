"""
State machines, declared as Automat's are and run without it.

L{machineBuilder} is used like Automat's C{TypeMachineBuilder} and is typed as one; states keep no data, so
there is nothing but states, inputs and functions. Automat itself took a third of the CPU time of a process's
first connect (half of it to be imported, half to evaluate the signatures of all transitions), and it looks
through all transitions for each input. It is imported for its L{NoTransition}, and tests hold that both do
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast, Generic, Protocol, TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from automat import TypeMachineBuilder

_Core = TypeVar("_Core")


class Placed(Protocol):
    """Data of a state machine that know the name of the state they are in."""

    _place: str


_Data = TypeVar("_Data", bound=Placed)
_Inputs = TypeVar("_Inputs")

Row = tuple[str, Callable[[_Inputs], None], str, tuple[Callable[[_Data], None], ...]]
"""A transition: the state before it, its input, the state after it, and the actions on the way."""


class _Machine:
    """
    A machine of one instance, without its inputs: these are methods of a class that is made for each builder.

    @ivar postponed: inputs that came during a transition, for when it is over; None outside of transitions.
    """

    __slots__ = ("core", "postponed", "state")

    def __init__(self, core: Any, state: _State) -> None:
        self.core = core
        self.state = state
        self.postponed: list[Callable[[], Any]] | None = None


_Found = dict["_State", "tuple[_State, Callable[..., Any]]"]
"""The transitions of one input: by the state before it the state after it, and what is done on the way."""


def _input(method: Callable[..., Any], found: _Found) -> Callable[..., Any]:
    """Make the method of machines that takes an input."""
    name = method.__name__
    returnsNone = method.__annotations__.get("return") in (None, "None")

    def taken(self: _Machine, *args: Any, **named: Any) -> Any:
        if self.postponed is not None:
            if not returnsNone:
                raise RuntimeError(f"{method.__qualname__} returns something, and a transition is under way")
            self.postponed.append(partial(taken, self, *args, **named))
            return None
        transition = found.get(self.state)
        if transition is None:
            from automat import NoTransition  # our own mistake: seldom

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

    taken.__name__, taken.__qualname__ = name, method.__qualname__
    return taken


class _Transition:
    """A transition that waits for its function, as C{state.upon(input).to(state)} gives it."""

    def __init__(self, found: _Found, before: _State, after: _State) -> None:
        self._found, self._before, self._after = found, before, after

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """
        Do this on the way; a decorator.

        @raise ValueError: there is such a transition already.
        """
        if self._before in self._found:
            raise ValueError(f"{self._before.name} has a transition for this input already")
        self._found[self._before] = self._after, function
        return function

    def returns(self, result: object) -> None:
        """Call nothing, and return a constant."""
        self(lambda *args, **named: result)


class _Upon:
    """A state and an input, which are to get a transition."""

    def __init__(self, found: _Found, before: _State) -> None:
        self._found, self._before = found, before

    def to(self, after: _State) -> _Transition:
        """A transition to another state."""
        return _Transition(self._found, self._before, after)

    def loop(self) -> _Transition:
        """A transition back to the same state."""
        return _Transition(self._found, self._before, self._before)


class _State:
    """A state of a machine."""

    __slots__ = ("_transitions", "name")

    def __init__(self, name: str, transitions: dict[str, _Found]) -> None:
        self.name = name
        self._transitions = transitions

    def upon(self, method: Callable[..., Any]) -> _Upon:
        """Begin a transition of this state by an input."""
        return _Upon(self._transitions[method.__name__], self)

    def __repr__(self) -> str:
        return f"<state {self.name}>"


class _Builder:
    """Makes machines, as L{TypeMachineBuilder} does."""

    def __init__(self, inputs: Any) -> None:
        self._methods = {name: what for name, what in vars(inputs).items() if not name.startswith("_")}
        self._transitions: dict[str, _Found] = {name: {} for name in self._methods}
        self._states: list[_State] = []

    def state(self, name: str) -> _State:
        """Add a state; the first one is that in which machines begin."""
        self._states.append(_State(name, self._transitions))
        return self._states[-1]

    def build(self) -> Machines:
        """Make what makes machines."""
        taken = {name: _input(what, self._transitions[name]) for name, what in self._methods.items()}
        return Machines(
            type("Machine", (_Machine,), {"__slots__": (), **taken}), self._states, self._transitions
        )


class Machines:
    """
    What makes machines of one kind: called with their core, and perhaps with a state to begin in.

    @ivar states: names of all states; the first one is that in which machines begin.
    """

    def __init__(self, kind: type[_Machine], states: list[_State], transitions: dict[str, _Found]) -> None:
        self._kind, self._first, self._transitions = kind, states[0], transitions
        self.states = tuple(state.name for state in states)

    def __call__(self, core: Any, state: _State | None = None) -> Any:
        """Make the machine of one instance."""
        return self._kind(core, state or self._first)

    def transitions(self) -> Iterable[tuple[str, str, str]]:
        """All transitions: the name of the state before it, the input's, and of the state after it."""
        for name, found in self._transitions.items():
            for before, (after, _function) in found.items():
                yield before.name, name, after.name


def machineBuilder(inputs: Any, core: type[_Core]) -> TypeMachineBuilder[Any, _Core]:
    """
    Make a builder of machines whose states keep no data.

    @param inputs: the protocol class whose methods are inputs.
    """
    return cast("TypeMachineBuilder[Any, _Core]", _Builder(inputs))


class Table(Generic[_Inputs, _Data]):
    """
    A state machine by its rows. An input for which a state has no row changes nothing there.

    The machine is built when the first instance begins.

    @ivar rows: all transitions, in order; the first one begins in the state in which instances begin.
    @ivar places: names of all states, in the order of the rows.
    """

    def __init__(
        self,
        inputs: Any,
        core: type[_Data],
        rows: Iterable[Row[_Inputs, _Data]],
        ours: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        """
        @param inputs: the protocol class whose methods are inputs.
        @param ours: states with inputs that only a mistake of ours can bring about: C{NoTransition}.
        """
        self.rows = tuple(rows)
        self.places = tuple(dict.fromkeys(name for row in self.rows for name in (row[0], row[2])))
        self._inputs, self._core, self._ours = inputs, core, ours
        self._known = {(here, what.__name__) for here, what, _there, _actions in self.rows}
        self._machine: Callable[..., _Inputs] | None = None
        self._states: dict[str, Any] = {}

    def begin(self, core: _Data, place: str | None = None) -> _Inputs:
        """
        Make the inputs of one instance, and put its data into a state.

        @param place: the state to begin in; None is the first one.
        """
        machine = self._machine or self._build()
        core._place = place or self.places[0]
        return machine(core, self._states[core._place])

    def has(self, place: str, what: str) -> bool:
        """Whether a state has a row for the input of that name."""
        return (place, what) in self._known

    def _build(self) -> Callable[..., _Inputs]:
        builder = machineBuilder(self._inputs, self._core)
        self._states = {place: builder.state(place) for place in self.places}
        for here, what, there, actions in self.rows:
            turn = _outputs(there, actions)
            self._states[here].upon(what).to(self._states[there])(turn)
        names = self._known | self._ours
        every = [what for name, what in vars(self._inputs).items() if not name.startswith("_")]
        for place, state in self._states.items():
            for what in every:
                if (place, what.__name__) not in names:
                    state.upon(what).loop().returns(None)
        self._machine = builder.build()
        return self._machine

    def diagram(self, name: str, without: frozenset[str] = frozenset()) -> str:
        """
        The state machine as a graph in the DOT language, but for transitions that lead nowhere else.

        @param without: names of inputs that are left out.
        """
        edges: dict[tuple[str, str], list[str]] = {}
        for here, what, there, actions in self.rows:
            if here != there and what.__name__ not in without:
                done = ", ".join(each.__name__.lstrip("_") for each in actions)
                label = what.__name__ + (f" / {done}" if done else "")
                edges.setdefault((here, there), []).append(label)
        lines = [f"digraph {name} {{", "  node [shape=box, style=rounded];", "  edge [fontsize=10];"]
        lines += [f'  "{place}";' for place in self.places]
        for (here, there), labels in edges.items():
            text = "\\n".join(labels)
            lines.append(f'  "{here}" -> "{there}" [label="{text}"];')
        return "\n".join([*lines, "}", ""])


def _outputs(there: str, actions: tuple[Callable[[_Data], None], ...]) -> Callable[[object, _Data], None]:
    def turn(_: object, core: _Data) -> None:
        core._place = there
        for action in actions:
            action(core)

    return turn
