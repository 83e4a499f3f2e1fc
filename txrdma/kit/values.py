"""
Dataclasses with slots, frozen or mutable, whose methods are compiled after some calls.

A C{dataclass(frozen=True, slots=True)} compiles eight functions from text when its module is imported, which
took a third of the time of all imports of SMC. A process uses few of the classes that it imports, and most of
those once or twice; compiling their methods took a fifth of the time of a process's first connect.
Together with L{txrdma.kit.machines} this saves 39 of the 197 milliseconds of processor time that the imports
of a process with C{smc:} endpoints take otherwise (medians of ten processes, CPython 3.11).

C{dataclasses.replace}, C{fields}, C{asdict}, C{copy}, C{pickle} and C{match} work as for other dataclasses;
the attributes that they need are computed on first use. L{replace} is faster than that of C{dataclasses}.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, Field, field, FrozenInstanceError, MISSING
from inspect import get_annotations
from typing import Any, Final, NoReturn, overload, TypeVar

from typing_extensions import dataclass_transform

_T = TypeVar("_T")

_GENERIC_CALLS: Final = 16
"""Number of generic calls of a method before it is compiled, which takes as long as about twenty."""

_ALWAYS: Final = ("__init__", "__replace__")
_FIELDS = "__value_fields__"
_set: Final = object.__setattr__
_ORDER = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}
_COMPARED = {"__eq__": "==", **_ORDER}
_OPERATORS: Final = {name: getattr(operator, name) for name in _COMPARED}


@overload
def frozen(cls: type[_T], /) -> type[_T]: ...
@overload
def frozen(*, eq: bool = True, order: bool = False) -> Callable[[type[_T]], type[_T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[Any] | None = None, /, *, eq: bool = True, order: bool = False) -> Any:
    """
    Make a class with annotated fields a frozen dataclass with slots.

    Methods that the class defines itself are not replaced.

    @param eq: whether instances are compared by their fields; otherwise each equals only itself.
    @param order: whether instances can also be ordered by their fields.
    """

    def decorate(cls: type[_T]) -> type[_T]:
        names = (*_ALWAYS, *(("__eq__", "__hash__") if eq else ()), *(_ORDER if order else ()))
        return _build(cls, names, isFrozen=True)

    return decorate if cls is None else decorate(cls)


@overload
def record(cls: type[_T], /) -> type[_T]: ...
@overload
def record(*, eq: bool = True) -> Callable[[type[_T]], type[_T]]: ...


@dataclass_transform(field_specifiers=(field,))
def record(cls: type[Any] | None = None, /, *, eq: bool = True) -> Any:
    """
    Make a class with annotated fields a mutable dataclass with slots.

    @param eq: whether instances are compared by their fields, and are not hashable.
    """

    def decorate(cls: type[_T]) -> type[_T]:
        return _build(cls, (*_ALWAYS, *(("__eq__",) if eq else ())), isFrozen=False)

    return decorate if cls is None else decorate(cls)


def replace(value: _T, /, **changes: Any) -> _T:
    """Return a copy of a value of this module with some fields changed, as C{dataclasses.replace} does."""
    changed: _T = value.__replace__(**changes)  # type: ignore[attr-defined]  # L{_build} makes it
    return changed


def _build(cls: type[_T], names: tuple[str, ...], isFrozen: bool) -> type[_T]:
    """Return a class with slots for the fields, and with methods that are compiled later."""
    own, usual = dict(vars(cls)), _FROZEN if isFrozen else _MUTABLE
    declared = [_field(name, text, own) for name, text in get_annotations(cls).items() if not _isShared(text)]
    slots, fields = [each.name for each in declared], {each.name: each for each in declared}
    if cls.__bases__ == (object,):
        own = {**usual, **own}
    else:
        bases = cls.__mro__[1:]
        inherited = [each for base in bases[::-1] for each in vars(base).get(_FIELDS, ())]
        fields = {each.name: each for each in inherited} | fields
        inheritedSlots = {name for base in bases for name in vars(base).get("__slots__", ())}
        slots = [name for name in slots if name not in inheritedSlots]
        for name, function in usual.items():
            if getattr(cls, name, None) is getattr(object, name, None):
                own[name] = function
    for name in (*fields, "__dict__", "__weakref__"):
        own.pop(name, None)
    own["__slots__"], own["__qualname__"] = tuple(slots), cls.__qualname__
    own["__dataclass_fields__"], own["__dataclass_params__"] = _Fields(cls), _PARAMETERS
    own["__match_args__"] = tuple([each.name for each in fields.values() if each.init])
    own[_FIELDS] = tuple(fields.values())
    kind: list[type[_T]] = []  # the new class, as soon as it exists
    for name in names:
        if own.get(name) is None:
            own[name] = _compiledLater(kind, name, cls.__qualname__)
    kind.append(type(cls)(cls.__name__, cls.__bases__, own))  # type: ignore[misc]  # this makes a class
    return kind[0]


def _isShared(annotation: Any) -> bool:
    """Return whether an annotation declares a class variable, not a field."""
    text = annotation if isinstance(annotation, str) else repr(annotation)
    return text.startswith(("ClassVar", "typing.ClassVar"))


def _field(name: str, annotation: Any, own: dict[str, Any]) -> Field[Any]:
    """Return a declared field as C{dataclasses} represents it; C{own} has the attributes of the class."""
    given = own.get(name, MISSING)
    found: Field[Any] = given if isinstance(given, Field) else field(default=given)
    found.name, found.type = name, annotation
    return found


class _Fields:
    """The attribute C{__dataclass_fields__} of a class, which C{dataclass} computes on first use."""

    def __init__(self, declared: type[Any]) -> None:
        self._declared = declared

    def __get__(self, value: object, owner: type[Any]) -> Any:
        kind = next(kind for kind in owner.__mro__ if vars(kind).get("__dataclass_fields__") is self)
        usual: Any = dataclass(init=False, repr=False, eq=False)(self._declared)
        setattr(kind, "__dataclass_fields__", usual.__dataclass_fields__)  # noqa: B010 (unknown to mypy)
        return usual.__dataclass_fields__


class _Parameters:
    """The attribute C{__dataclass_params__}, which is the same for all classes of this module."""

    def __get__(self, value: object, owner: type[Any]) -> Any:
        usual: Any = dataclass(init=False, repr=False, eq=False)(type("Usual", (), {}))
        return usual.__dataclass_params__


_PARAMETERS: Final = _Parameters()


def _fieldsOf(cls: type[Any]) -> tuple[Field[Any], ...]:
    """Return the fields of a class, those of its bases first."""
    fields: tuple[Field[Any], ...] = getattr(cls, _FIELDS)
    return fields


def _compiledLater(kind: Sequence[type[Any]], name: str, qualname: str) -> Callable[..., Any]:
    """Return a method that uses generic code for some calls, and then is replaced by compiled code."""
    left = _GENERIC_CALLS

    def method(self: Any, *args: Any, **values: Any) -> Any:
        nonlocal left
        cls = kind[0]
        if left:
            left -= 1
            if name == "__init__":
                if _initGenerically(cls, self, args, dict(values)):
                    return None
            elif name == "__replace__":
                old = {each.name: getattr(self, each.name) for each in _fieldsOf(cls) if each.init}
                return type(self)(**{**old, **values})
            else:
                return _compareGenerically(cls, name, self, *args)
        _compile(cls, name)
        return vars(cls)[name](self, *args, **values)

    method.__name__, method.__qualname__ = name, f"{qualname}.{name}"
    return method


def _compile(cls: type[Any], name: str) -> None:
    """Replace a method of a class by code for its fields."""
    scope: dict[str, Any] = {"_missing": MISSING}
    compared = [each.name for each in _fieldsOf(cls) if each.compare]
    own, other = (", ".join(f"{of}.{each}" for each in compared) for of in ("self", "other"))
    own, other = (f"({each},)" if each else "()" for each in (own, other))
    if name == "__init__":
        lines = _constructor(cls, scope)
    elif name == "__replace__":
        names = [each.name for each in _fieldsOf(cls) if each.init]
        given = ", ".join(f"{each}=self.{each} if {each} is _missing else {each}" for each in names)
        parameters = "".join(f", {each}=_missing" for each in names)
        lines = [
            f"def __replace__(self{', *' if names else ''}{parameters}):",
            f"    return self.__class__({given})",
        ]
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
    exec(compile(text, f"<value {cls.__module__}.{cls.__qualname__}>", "exec"), scope)  # noqa: S102 (generated here)
    scope[name].__qualname__ = f"{cls.__qualname__}.{name}"
    scope[name].__module__ = cls.__module__
    setattr(cls, name, scope[name])


def _constructor(cls: type[Any], scope: dict[str, Any]) -> list[str]:
    """Return the source lines of C{__init__}, and add the values that they use to their globals."""
    isFrozen = cls.__setattr__ is _refuse
    parameters, body = ["self"], []
    for number, each in enumerate(_fieldsOf(cls)):
        if isFrozen:  # the slot's setter is faster than object.__setattr__
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
            continue  # set by the class itself
        body.append(f"    _set{number}(self, {given})" if isFrozen else f"    self.{each.name} = {given}")
    if hasattr(cls, "__post_init__"):
        body.append("    self.__post_init__()")
    return [f"def __init__({', '.join(parameters)}):", *(body or ["    pass"])]


# Methods that are not compiled, or not for the first calls.


def _initGenerically(cls: type[Any], self: Any, args: tuple[Any, ...], values: dict[str, Any]) -> bool:
    """Initialize a value; return False for wrong arguments, which the compiled C{__init__} reports."""
    given = iter(args)
    for each in _fieldsOf(cls):
        name = each.name
        value = next(given, MISSING) if each.init else MISSING
        if value is not MISSING:
            if name in values:
                return False
        elif each.init and name in values:
            value = values.pop(name)
        elif each.default is not MISSING:
            value = each.default
        elif each.default_factory is not MISSING:
            value = each.default_factory()
        elif each.init:
            return False
        else:
            continue  # set by the class itself
        _set(self, name, value)
    if values or next(given, MISSING) is not MISSING:
        return False
    if hasattr(cls, "__post_init__"):
        self.__post_init__()
    return True


def _compareGenerically(cls: type[Any], name: str, self: Any, other: Any = None) -> Any:
    """Return the hash of a value, or compare two."""
    names = [each.name for each in _fieldsOf(cls) if each.compare]
    own = tuple([getattr(self, each) for each in names])
    if name == "__hash__":
        return hash(own)
    if other.__class__ is not self.__class__:
        return NotImplemented
    return _OPERATORS[name](own, tuple([getattr(other, each) for each in names]))


def _refuse(self: object, name: str, *_: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot change {name!r}: a {type(self).__name__} is frozen")


def _represent(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in _fieldsOf(type(self)) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _getState(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in _fieldsOf(type(self))]


def _setState(self: Any, state: list[Any]) -> None:
    for each, one in zip(_fieldsOf(type(self)), state, strict=True):
        _set(self, each.name, one)


_MUTABLE: Final[dict[str, Callable[..., Any]]] = {"__repr__": _represent}
_FROZEN: Final = {
    **_MUTABLE,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__getstate__": _getState,
    "__setstate__": _setState,
}
