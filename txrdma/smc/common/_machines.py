"""
State machines that are built when one is used first, and whose transitions are found by hash.

Automat evaluates the signatures of all transitions when it builds a machine, which with its own imports takes
a third of the time of all imports of SMC: who imports SMC and has no connection yet does not pay that. And it
looks through all transitions for each input; a connection hears about seven inputs from its first to its
last, and that was a sixth of the CPU time of a connect. Where a version of Automat keeps its transitions
otherwise than those that are known here, its own search is as good.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from automat import TypeMachineBuilder

_Core = TypeVar("_Core")


@lru_cache(1)
def _indexedAutomaton() -> tuple[type, type] | None:
    """The class of Automat's automatons, and one of ours that finds transitions by their state and input."""
    try:
        from automat._core import Automaton
    except ImportError:  # no interface of Automat names it
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

    return Automaton, Indexed


def machineBuilder(inputs: Any, core: type[_Core]) -> TypeMachineBuilder[Any, _Core]:
    """
    Make a builder of machines that find their transitions by hash.

    @param inputs: the protocol class whose methods are inputs.
    """
    from automat import TypeMachineBuilder  # when a machine is built: see the head of the module

    builder: TypeMachineBuilder[Any, _Core] = TypeMachineBuilder(inputs, core)
    known = _indexedAutomaton()
    if known is not None and isinstance(getattr(builder, "_automaton", None), known[0]):
        builder._automaton = known[1]()
    return builder
