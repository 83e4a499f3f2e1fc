"""
State machines whose transitions are found by hash.

Automat looks through all transitions of a machine for each input; a connection hears about seven inputs from
its first to its last, and that was a sixth of the CPU time of a connect.
"""

from __future__ import annotations

from typing import Any, TypeVar

from automat import TypeMachineBuilder
from automat._core import Automaton
from automat._runtimeproto import ProtocolAtRuntime

_Inputs = TypeVar("_Inputs")
_Core = TypeVar("_Core")


class _Indexed(Automaton[Any, Any, Any]):
    """An automaton that finds a transition by its state and input."""

    def __init__(self) -> None:
        super().__init__()
        self._index: dict[tuple[Any, Any], tuple[Any, Any]] = {}

    def addTransition(self, inState: Any, inputSymbol: Any, outState: Any, outputSymbols: Any) -> None:
        """See L{Automaton}: a transition, of which there is none yet."""
        if (inState, inputSymbol) in self._index:
            raise ValueError(f"already have transition from {inState} via {inputSymbol}")
        self._index[inState, inputSymbol] = outState, tuple(outputSymbols)
        self._transitions.add((inState, inputSymbol, outState, tuple(outputSymbols)))

    def outputForInput(self, inState: Any, inputSymbol: Any) -> tuple[Any, Any]:
        """See L{Automaton}: the next state, and what is done on the way there."""
        found = self._index.get((inState, inputSymbol))
        return super().outputForInput(inState, inputSymbol) if found is None else found


def machineBuilder(
    inputs: ProtocolAtRuntime[_Inputs], core: type[_Core]
) -> TypeMachineBuilder[_Inputs, _Core]:
    """What builds machines whose transitions are found by hash."""
    builder = TypeMachineBuilder(inputs, core)
    builder._automaton = _Indexed()
    return builder
