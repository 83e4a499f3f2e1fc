"""
Values: frozen dataclasses with slots, whose code is made when it has been used a few times.

A C{dataclass(frozen=True, slots=True)} makes eight functions out of text when its module is imported, which
took a third of the time of all imports of SMC. A process uses few of the values that it imports, and most of
these once or twice: to make code for them took a fifth of the time of a process's first connect. For
C{dataclasses.replace}, C{fields}, C{asdict}, for C{copy}, C{pickle} and C{match} values are dataclasses like
any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, Field, field, fields, FrozenInstanceError, MISSING
from typing import Any, Final, NoReturn, overload, TypeVar

from typing_extensions import dataclass_transform

_T = TypeVar("_T")

_SELDOM: Final = 16
"""Values of a class that are made without code; making the code takes as long as about twenty of them."""

_ALWAYS = ("__init__", "__eq__", "__hash__")
_ORDER = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}
_COMPARED = {"__eq__": "==", **_ORDER}


@overload
def frozen(cls: type[_T], /) -> type[_T]: ...
@overload
def frozen(*, order: bool = False) -> Callable[[type[_T]], type[_T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[Any] | None = None, /, *, order: bool = False) -> Any:
    """
    Make a frozen dataclass with slots of a class with annotated fields.

    What the class defines itself is left as it is.

    @param order: whether values of the class can be compared by C{<}, too, field by field.
    """

    def decorate(cls: type[_T]) -> type[_T]:
        return _build(cls, (*_ALWAYS, *(_ORDER if order else ())))

    return decorate if cls is None else decorate(cls)


def _build(cls: type[_T], names: tuple[str, ...]) -> type[_T]:
    made = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    own = vars(made)
    ready: dict[str, Any] = {"__setattr__": _refuse, "__delattr__": _refuse, "__repr__": _represent}
    ready |= {"__getstate__": _state, "__setstate__": _restore}
    postponed = [name for name in names if name not in own or own[name] is None]
    for name, function in ready.items():
        if getattr(made, name, None) is getattr(object, name, None):
            setattr(made, name, function)
    for name in postponed:
        setattr(made, name, _maker(made, name))
    return made


def _maker(cls: type[Any], name: str) -> Callable[..., Any]:
    """A method that makes the code, which takes its place, and goes on with that; __init__ may do without."""
    without = _SELDOM if name == "__init__" else 0

    def method(self: Any, *args: Any, **values: Any) -> Any:
        nonlocal without
        if without:
            without -= 1
            if _filled(cls, self, args, dict(values)):
                return None
        _compile(cls, name)
        return vars(cls)[name](self, *args, **values)

    method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
    return method


def _compile(cls: type[Any], name: str) -> None:
    scope: dict[str, Any] = {"_missing": MISSING}
    compared = [each.name for each in fields(cls) if each.compare]
    own, other = (", ".join(f"{of}.{one}" for one in compared) for of in ("self", "other"))
    own, other = (f"({each},)" if each else "()" for each in (own, other))
    if name == "__init__":
        lines = _constructor(cls, scope)
    elif name == "__hash__":
        lines = ["def __hash__(self):", f"    return hash({own})"]
    else:
        lines = [
            f"def {name}(self, other):",
            "    if other.__class__ is not self.__class__:",
            "        return NotImplemented",
            f"    return {own} {_COMPARED[name]} {other}",
        ]
    text = "\n".join(lines)
    exec(compile(text, f"<value {cls.__module__}.{cls.__qualname__}>", "exec"), scope)  # noqa: S102 (our own text)
    scope[name].__qualname__ = f"{cls.__qualname__}.{name}"
    scope[name].__module__ = cls.__module__
    setattr(cls, name, scope[name])


def _constructor(cls: type[Any], scope: dict[str, Any]) -> list[str]:
    found: tuple[Field[Any], ...] = fields(cls)
    parameters, body = ["self"], []
    for number, each in enumerate(found):
        # The slot's own setter, which is quicker than object's by name.
        scope[f"_set{number}"] = getattr(cls, each.name).__set__
        given = each.name
        if each.default_factory is not MISSING:
            scope[f"_default{number}"], scope[f"_make{number}"] = MISSING, each.default_factory
            given = f"_make{number}() if {each.name} is _missing else {each.name}"
        elif each.default is not MISSING:
            scope[f"_default{number}"] = each.default
        hasDefault = f"_default{number}" in scope
        if each.init:
            parameters.append(f"{each.name}=_default{number}" if hasDefault else each.name)
        elif hasDefault:
            given = f"_make{number}()" if f"_make{number}" in scope else f"_default{number}"
        else:
            continue  # its class sets it
        body.append(f"    _set{number}(self, {given})")
    if hasattr(cls, "__post_init__"):
        body.append("    self.__post_init__()")
    return [f"def __init__({', '.join(parameters)}):", *(body or ["    pass"])]


# What needs no code of its own, or not at once.


def _filled(cls: type[Any], self: Any, args: tuple[Any, ...], values: dict[str, Any]) -> bool:
    """Initialize a value; False, where the arguments are not what C{__init__} takes: it can say why."""
    found: tuple[Field[Any], ...] = fields(cls)
    order = [each.name for each in found if each.init]
    positional = dict(zip(order, args, strict=False))
    if len(args) > len(order) or positional.keys() & values.keys():
        return False
    values |= positional
    for each in found:
        if each.init and each.name in values:
            value = values.pop(each.name)
        elif each.default_factory is not MISSING:
            value = each.default_factory()
        elif each.default is not MISSING:
            value = each.default
        elif each.init:
            return False
        else:
            continue  # its class sets it
        object.__setattr__(self, each.name, value)
    if values:
        return False
    if hasattr(cls, "__post_init__"):
        self.__post_init__()
    return True


def _refuse(self: object, name: str, *_: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot change {name!r}: a {type(self).__name__} is frozen")


def _represent(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for each, one in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, one)
