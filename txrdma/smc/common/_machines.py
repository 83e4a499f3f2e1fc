"""
State machines that are built when one is used first, and whose transitions are found by hash.

Automat evaluates the signatures of all transitions when it builds a machine, for data that states may keep:
ours keep none. That was a third of the CPU time of a process's first connect. And it looks through all
transitions for each input; a connection hears about seven inputs from its first to its last, and that was a
sixth of the CPU time of a connect. Where a version of Automat is made otherwise than those that are known
here, its own ways are as good.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from automat import TypeMachineBuilder

_Core = TypeVar("_Core")

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
