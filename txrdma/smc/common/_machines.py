"""
State machines whose transitions are found by hash.

Automat looks through all transitions of a machine for each input; a connection hears about seven inputs from
its first to its last, and that was a sixth of the CPU time of a connect. Where a version of Automat keeps its
transitions otherwise than those that are known here, its own search is as good.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING, TypeVar

from automat import TypeMachineBuilder

if TYPE_CHECKING:
    from automat._core import Automaton
else:
    try:
        from automat._core import Automaton
    except ImportError:  # no interface of Automat names it
        Automaton = None

_Core = TypeVar("_Core")

if Automaton is not None:

    class _Indexed(Automaton[Any, Any, Any]):
        """An automaton that finds a transition by its state and input."""

        def __init__(self) -> None:
            super().__init__()
            self._index: dict[tuple[Any, Any], tuple[Any, Any]] = {}

        def addTransition(self, inState: Any, inputSymbol: Any, outState: Any, outputSymbols: Any) -> None:
            """See L{Automaton}: add a transition, of which there is none yet."""
            if (inState, inputSymbol) in self._index:
                raise ValueError(f"already have transition from {inState} via {inputSymbol}")
            outputs = tuple(outputSymbols)
            self._index[inState, inputSymbol] = outState, outputs
            self._transitions.add((inState, inputSymbol, outState, outputs))

        def outputForInput(self, inState: Any, inputSymbol: Any) -> tuple[Any, Any]:
            """See L{Automaton}: the next state, and what is done on the way there."""
            found = self._index.get((inState, inputSymbol))
            return super().outputForInput(inState, inputSymbol) if found is None else found


def machineBuilder(inputs: Any, core: type[_Core]) -> TypeMachineBuilder[Any, _Core]:
    """
    Make a builder of machines that find their transitions by hash.

    @param inputs: the protocol class whose methods are inputs.
    """
    builder: TypeMachineBuilder[Any, _Core] = TypeMachineBuilder(inputs, core)
    if Automaton is not None and isinstance(getattr(builder, "_automaton", None), Automaton):
        builder._automaton = _Indexed()
    return builder
