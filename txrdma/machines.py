"""
State machines that are built when one is used first, and whose transitions are found by hash.

Automat evaluates the signatures of all transitions when it builds a machine, for data that states may keep:
ours keep none. That was a third of the CPU time of a process's first connect. And it looks through all
transitions for each input; a connection hears about seven inputs from its first to its last, and that was a
sixth of the CPU time of a connect. Where a version of Automat is made otherwise than those that are known
here, its own ways are as good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Generic, Protocol, TYPE_CHECKING, TypeVar

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

_OUTPUT_FIELDS = ("method", "requiresData", "_assertion")


def _noData(data: object) -> None:
    """Check the data that a state keeps: there is none."""


@lru_cache(1)
def _quickBuilder() -> type[TypeMachineBuilder[Any, Any]] | None:
    """A builder of Automat's whose states ask for no signatures, and find transitions by state and input."""
    try:  # no interface of Automat names what is imported here
        from automat._core import Automaton
        from automat._typed import MethodOutput, TypedState, TypeMachineBuilder
    except ImportError:
        return None
    known = getattr(MethodOutput, "__match_args__", ()) == _OUTPUT_FIELDS and hasattr(
        TypedState, "_produceOutputs"
    )
    if not known:
        return None

    class Indexed(Automaton[Any, Any, Any]):
        """An automaton that finds a transition by its state and input."""

        def __init__(self) -> None:
            super().__init__()
            self._index: dict[tuple[Any, Any], tuple[Any, Any]] = {}

        def addTransition(self, inState: Any, inputSymbol: Any, outState: Any, outputSymbols: Any) -> None:
            """Add a transition, of which there is none yet, as L{Automaton} asks."""
            if (inState, inputSymbol) in self._index:
                raise ValueError(f"already have transition from {inState} via {inputSymbol}")
            outputs = tuple(outputSymbols)
            self._index[inState, inputSymbol] = outState, outputs
            self._transitions.add((inState, inputSymbol, outState, outputs))

        def outputForInput(self, inState: Any, inputSymbol: Any) -> tuple[Any, Any]:
            """Find the next state, and what is done on the way there, as L{Automaton} asks."""
            found = self._index.get((inState, inputSymbol))
            return super().outputForInput(inState, inputSymbol) if found is None else found

    class State(TypedState[Any, Any]):
        """A state without data, which is equal to none but itself."""

        __eq__ = object.__eq__
        __hash__ = object.__hash__

        def _produceOutputs(
            self, impl: Callable[..., object], old: Any, nodata: bool = False
        ) -> tuple[MethodOutput[Any], ...]:
            return (MethodOutput(impl, False, _noData),)

    class Builder(TypeMachineBuilder[Any, Any]):
        """Makes machines of such states."""

        def __init__(self, inputs: Any, core: type[Any]) -> None:
            super().__init__(inputs, core)
            self._automaton = Indexed()

        def state(self, name: str) -> State:  # type: ignore[override]  # without data
            """Add a state; the first one is that in which machines begin."""
            state = State(name, self)
            if self._initial:
                self._initial = False
                self._automaton.initialState = state
            return state

    return Builder


def machineBuilder(inputs: Any, core: type[_Core]) -> TypeMachineBuilder[Any, _Core]:
    """
    Make a builder of machines whose states keep no data.

    @param inputs: the protocol class whose methods are inputs.
    """
    from automat import TypeMachineBuilder  # when a machine is built: see the head of the module

    return (_quickBuilder() or TypeMachineBuilder)(inputs, core)


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
        said = self._known | self._ours
        every = [what for name, what in vars(self._inputs).items() if not name.startswith("_")]
        for place, state in self._states.items():
            for what in every:
                if (place, what.__name__) not in said:
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
