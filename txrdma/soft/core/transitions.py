"""
The permitted changes of a queue pair's state and attributes.

Follows InfiniBand Architecture vol. 1, 10.3.1 (states) and 11.2.4.2 (tables 91 to 96), as far as both the
specification and the Linux verbs agree.
"""

from __future__ import annotations

from functools import lru_cache
from operator import index
from typing import Final

from txrdma.error import InvalidRequest
from txrdma.iba.verbs import MigrationState, QPAttributes, QPKind, QPState

_RESET, _INIT, _RTR, _RTS, _SQD, _SQE, _ERR = QPState

_Rule = tuple[frozenset[str], frozenset[str]]


def _rule(required: str = "", optional: str = "") -> _Rule:
    return frozenset(required.split()), frozenset(optional.split())


_LOADING = "alternateAddress alternatePKeyIndex alternateTimeout"
_PATH = f"{_LOADING} migrationState"

_ALLOWED: Final[dict[QPKind, dict[tuple[QPState, QPState], _Rule]]] = {
    QPKind.RC: {
        (_RESET, _INIT): _rule("pkeyIndex port access"),
        (_INIT, _INIT): _rule("", "pkeyIndex port access"),
        (_INIT, _RTR): _rule(
            "address pathMTU destinationQPN rqPSN maxDestRDAtomic minRNRTimer",
            f"{_LOADING} access pkeyIndex",
        ),
        (_RTR, _RTS): _rule(
            "timeout retryCount rnrRetry sqPSN maxRDAtomic", f"currentState access minRNRTimer {_PATH}"
        ),
        (_RTS, _RTS): _rule("", f"currentState access minRNRTimer {_PATH}"),
        (_RTS, _SQD): _rule(),
        (_SQD, _RTS): _rule("", f"currentState access minRNRTimer {_PATH}"),
        (_SQD, _SQD): _rule(
            "",
            "port address timeout retryCount rnrRetry maxRDAtomic maxDestRDAtomic access pkeyIndex "
            f"minRNRTimer {_PATH}",
        ),
    },
    QPKind.UD: {
        (_RESET, _INIT): _rule("pkeyIndex port qkey"),
        (_INIT, _INIT): _rule("", "pkeyIndex port qkey"),
        (_INIT, _RTR): _rule("", "pkeyIndex qkey"),
        (_RTR, _RTS): _rule("sqPSN", "currentState qkey"),
        (_RTS, _RTS): _rule("", "currentState qkey"),
        (_RTS, _SQD): _rule(),
        (_SQD, _RTS): _rule("", "currentState qkey"),
        (_SQD, _SQD): _rule("", "pkeyIndex qkey"),
        (_SQE, _RTS): _rule("", "currentState qkey"),
    },
}

_RANGES: Final = {
    "access": (0, 15),
    "pathMTU": (1, 5),
    "qkey": (0, 0xFFFFFFFF),
    "destinationQPN": (0, 0xFFFFFF),
    "rqPSN": (0, 0xFFFFFF),
    "sqPSN": (0, 0xFFFFFF),
    "maxRDAtomic": (0, 255),
    "maxDestRDAtomic": (0, 255),
    "minRNRTimer": (0, 31),
    "timeout": (0, 31),
    "alternateTimeout": (0, 31),
    "retryCount": (0, 7),
    "rnrRetry": (0, 7),
}

_RANGED: Final = frozenset(_RANGES)


def transition(kind: QPKind, current: QPState, attributes: QPAttributes) -> QPState:
    """
    Return the state after C{modify}; raises L{InvalidRequest} for invalid transitions and attributes.

    @raise TypeError: a number is not an integer.
    """
    target = current if attributes.state is None else attributes.state
    if not isinstance(target, QPState):
        raise InvalidRequest(f"{target!r} is not a state")
    specified = attributes.specified()
    given = frozenset(specified) - {"state"}
    if attributes.currentState not in (None, current):
        raise InvalidRequest(f"the queue pair is in {current.name}, not in {attributes.currentState!r}")
    if why := _whyImpossible(kind, current, target, given):
        raise InvalidRequest(why)
    for name in given & _RANGED:
        low, high = _RANGES[name]
        value = specified[name]
        if not low <= index(value) <= high:
            raise InvalidRequest(f"{name} is {value}, not from {low} to {high}")
    if given & {"alternatePKeyIndex", "alternateTimeout"} and attributes.alternateAddress is None:
        raise InvalidRequest("alternatePKeyIndex and alternateTimeout need alternateAddress")
    return target


@lru_cache(maxsize=256)
def _whyImpossible(kind: QPKind, current: QPState, target: QPState, given: frozenset[str]) -> str:
    """Return why a transition is impossible with these attributes; C{""} if it is possible."""
    transition = f"{kind.name} {current.name} to {target.name}"
    if target is _RESET or (target is _ERR and current is not _RESET):
        required, optional = _rule("", "currentState")
    else:
        try:
            required, optional = _ALLOWED[kind][current, target]
        except KeyError:
            return f"there is no transition {transition}"
    if missing := required - given:
        return f"{transition} needs {', '.join(sorted(missing))}"
    if excess := given - required - optional:
        return f"{transition} does not take {', '.join(sorted(excess))}"
    return ""


def checkMigration(requested: QPAttributes, current: QPAttributes) -> None:
    """Check a change of the migration state (IBA 17.2.8); raises L{InvalidRequest}."""
    state = current.migrationState or MigrationState.MIGRATED
    if requested.alternateAddress is not None and state is not MigrationState.MIGRATED:
        raise InvalidRequest(f"an alternate path is loaded in MIGRATED, not in {state.name}")
    if requested.migrationState is None:
        return
    if requested.migrationState is MigrationState.REARM:
        if state is not MigrationState.MIGRATED:
            raise InvalidRequest(f"REARM follows MIGRATED, not {state.name}")
        if requested.alternateAddress is None and current.alternateAddress is None:
            raise InvalidRequest("REARM needs an alternate path, and none is loaded")
    elif requested.migrationState is not MigrationState.MIGRATED:
        # ARMED follows REARM when the peer is ready.
        raise InvalidRequest(f"{requested.migrationState!r} can't be set")
    elif state is not MigrationState.ARMED:
        raise InvalidRequest(f"there is no path to migrate to in {state.name}")
