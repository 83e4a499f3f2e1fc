"""
State machines whose transitions are found by hash.

Automat looks through all transitions of a machine for each input; a connection hears about seven inputs from
its first to its last, and that was a sixth of the CPU time of a connect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from automat import TypeMachineBuilder
from automat._core import Automaton

_Inputs = TypeVar("_Inputs")
_Core = TypeVar("_Core")


class _Indexed(Automaton[Any, Any, Any]):
    """The transitions of an automaton that is complete."""

    def __init__(self, whole: Automaton[Any, Any, Any]) -> None:
        super().__init__(whole.initialState)
        self._transitions = set(whole.allTransitions())
        self._index = {(state, symbol): (to, outputs) for state, symbol, to, outputs in self._transitions}

    def outputForInput(self, inState: Any, inputSymbol: Any) -> tuple[Any, Any]:
        """See L{Automaton}: the next state, and what is done on the way there."""
        found = self._index.get((inState, inputSymbol))
        return super().outputForInput(inState, inputSymbol) if found is None else found


def build(builder: TypeMachineBuilder[_Inputs, _Core]) -> Callable[[_Core], _Inputs]:
    """Build the function that makes machines, from a builder that is complete."""
    machine: Any = builder.build()
    return type(machine)(machine.__automat_type__, _Indexed(machine.__automat_automaton__))  # type: ignore[no-any-return]
