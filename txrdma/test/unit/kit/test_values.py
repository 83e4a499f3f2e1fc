"""L{txrdma.kit.values}: frozen dataclasses with slots whose methods are generated on first use."""

from __future__ import annotations

import copy
import operator
import pickle
from dataclasses import asdict, dataclass, field, fields, FrozenInstanceError, replace
from typing import Any, ClassVar

from hypothesis import given, strategies

from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit import values
from txrdma.kit.values import frozen, record


@dataclass(frozen=True, slots=True, order=True)
class Usual:
    """Python's dataclass, with which values are compared."""

    first: int
    second: str = "two"
    third: tuple[int, ...] = field(default_factory=tuple)

    SHARED: ClassVar[int] = 5


@frozen(order=True)
class Late:
    """The same fields, generated on first use."""

    first: int
    second: str = "two"
    third: tuple[int, ...] = field(default_factory=tuple)

    SHARED: ClassVar[int] = 5


@frozen
class Base:
    """A value with a field and a method."""

    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("below zero")

    def __repr__(self) -> str:
        return f"<{self.number}>"


@frozen
class Derived(Base):
    """A derived value with one more field."""

    more: int = 7


@frozen
class Other:
    """Another class with the same fields as L{Base}."""

    number: int


@frozen
class Empty:
    """A value without fields."""


@frozen
class Particular:
    """A value with its own C{__eq__}."""

    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Particular) and self.name.lower() == other.name.lower()

    def __hash__(self) -> int:
        return hash(self.name.lower())


@frozen
class Computed:
    """A value with a computed field that is not compared."""

    one: int
    double: int = field(init=False, compare=False)
    listed: list[int] = field(init=False, compare=False, default_factory=list)

    def __post_init__(self) -> None:
        object.__setattr__(self, "double", 2 * self.one + len(COMPUTED))
        COMPUTED.append(self.one)


COMPUTED: list[int] = []

ARGUMENTS = strategies.tuples(
    strategies.integers(0, 2),
    strategies.sampled_from(["", "two"]),
    strategies.sampled_from([(), (1,), (1, 2)]),
)


class FrozenTests(SynchronousTestCase):
    @given(ARGUMENTS, ARGUMENTS)
    def test_asDataclasses(self, one: tuple[int, str, tuple[int, ...]], other: Any) -> None:
        """Values compare, hash and order like Python's dataclasses with the same fields."""
        self.assertEqual(Late(*one) == Late(*other), Usual(*one) == Usual(*other))
        self.assertEqual(Late(*one) != Late(*other), Usual(*one) != Usual(*other))
        self.assertEqual(hash(Late(*one)), hash(Usual(*one)))
        for compare in (operator.lt, operator.le, operator.gt, operator.ge):
            self.assertEqual(
                compare(Late(*one), Late(*other)), compare(Usual(*one), Usual(*other)), compare.__name__
            )
        self.assertEqual(repr(Late(*one)), repr(Usual(*one)).replace("Usual", "Late"))
        self.assertEqual(asdict(Late(*one)), asdict(Usual(*one)))
        self.assertEqual(Late(*one).SHARED, 5)

    def test_construction(self) -> None:
        """Fields are given by position, by name or by default."""
        self.assertEqual(Late(1), Late(first=1, second="two", third=()))
        self.assertEqual(Late(1, third=(3,)).third, (3,))

    def test_frozen(self) -> None:
        """No field can be changed, deleted or added."""
        late: Any = Late(1)
        self.assertRaises(FrozenInstanceError, setattr, late, "first", 2)
        self.assertRaises(FrozenInstanceError, delattr, late, "first")
        self.assertRaises(AttributeError, setattr, late, "another", 2)
        self.assertEqual(late, Late(1))
        self.assertFalse(hasattr(late, "__dict__"))

    def test_dataclassFunctions(self) -> None:
        """Values work with Python's functions for dataclasses and with pattern matching."""
        self.assertEqual(replace(Late(1), second="x"), Late(1, "x"))
        self.assertEqual([each.name for each in fields(Late)], ["first", "second", "third"])
        match Late(4, "four"):
            case Late(number, text):
                self.assertEqual((number, text), (4, "four"))
            case _:
                self.fail("no match")

    def test_replace(self) -> None:
        """A copy differs in the given fields only, before and after its method is compiled."""

        class Fresh:
            """An unused class."""

            one: int
            two: tuple[int, ...] = ()

        tested: Any = frozen(Fresh)
        value = tested(1, two=(2,))
        for number in range(2 * values._GENERIC_CALLS):
            self.assertEqual(values.replace(value, one=number), tested(number, (2,)))
            self.assertEqual(values.replace(value), value)
            self.assertRaises(TypeError, values.replace, value, three=3)
        self.assertIsInstance(values.replace(Derived(1), number=2), Derived)
        self.assertRaises(ValueError, values.replace, Derived(1), number=-1)

    def test_copies(self) -> None:
        for made in (Late(1, "x", (2,)), Derived(1, 2), Empty()):
            self.assertEqual(copy.copy(made), made)
            self.assertEqual(copy.deepcopy(made), made)
            for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
                self.assertEqual(pickle.loads(pickle.dumps(made, protocol)), made)

    def test_inheritance(self) -> None:
        """A derived value has the fields, the check and the methods of its base."""
        self.assertEqual((Derived(1).number, Derived(1).more, Derived(1, 2).more), (1, 7, 2))
        self.assertRaises(ValueError, Derived, -1)
        self.assertEqual(repr(Derived(3)), "<3>")

    def test_kinds(self) -> None:
        """Values of different classes differ, empty values are true, and own methods are not replaced."""
        for one, other in (
            (Base(1), Other(1)),
            (Other(1), (1,)),
            (Derived(1), Base(1)),
            (Base(1), Derived(1)),
        ):
            self.assertNotEqual(one, other)
        self.assertEqual(Empty(), Empty())
        self.assertTrue(Empty())
        self.assertEqual({Particular("A"), Particular("a")}, {Particular("A")})

    def test_fieldOptions(self) -> None:
        """A field may be excluded from construction and from comparisons."""
        first, second = Computed(1), Computed(1)
        self.assertEqual(second.double - first.double, 1)
        self.assertEqual(first, second)
        self.assertEqual(hash(first), hash(second))
        self.assertEqual(first.listed, [])
        self.assertRaises(TypeError, Computed, 1, 2)

    def test_late(self) -> None:
        """Values and errors are the same before and after the methods of a class are generated."""

        class Fresh:
            """An unused class."""

            one: int
            two: list[int] = field(default_factory=list)
            three: int = 3

        def refused(kind: type[Any]) -> list[str]:
            wrong: tuple[Any, ...] = (((), {}), ((1,), {"one": 1}), ((1, [], 3, 4), {}), ((1,), {"four": 4}))
            return [str(self.assertRaises(TypeError, kind, *args, **given)) for args, given in wrong]

        tested: Any = frozen(Fresh)  # before dataclass changes the class
        first, errors = vars(tested)["__init__"], refused(dataclass(frozen=True)(Fresh))
        values, codes = [], []
        for _ in range(30):
            self.assertEqual(refused(tested), errors)
            values.append(tested(1, three=4))
            values[-1].two.append(2)  # values share no default
            codes.append(vars(tested)["__init__"])
        self.assertEqual(values, [tested(1, [2], 4)] * 30)
        self.assertIsNot(codes[-1], first)
        self.assertIs(codes[-1], codes[-2])

    def test_laterUses(self) -> None:
        """Hashes and comparisons are the same before and after their methods are compiled."""

        @frozen(order=True)
        class Compared:
            """A class that is compared first."""

            one: int

        blank = [object.__new__(Compared) for _ in range(2)]
        for each, number in zip(blank, (1, 2), strict=True):
            object.__setattr__(each, "one", number)
        for _ in range(2 * values._GENERIC_CALLS):
            self.assertTrue(blank[0] < blank[1])
            self.assertFalse(blank[0] >= blank[1])
            self.assertTrue(blank[0] == blank[0] != blank[1])
            self.assertNotEqual(blank[0], (1,))
            self.assertEqual(hash(blank[0]), hash((1,)))


@record
class Changing:
    """A record with mutable fields."""

    number: int
    listed: list[int] = field(default_factory=list)
    text: str = "usual"


@record(eq=False)
class Alone:
    """A record that equals only itself."""

    number: int
    text: str = "usual"


@record(eq=False)
class Single(Alone):
    """A derived record with one more field."""

    more: int = 7


class RecordTests(SynchronousTestCase):
    def test_fields(self) -> None:
        """Records have the given fields, and fields can be changed."""
        for _ in range(40):
            one, other = Changing(1), Changing(1, text="usual")
            self.assertEqual(one, other)
            self.assertIsNot(one.listed, other.listed)
            one.listed.append(5)
            self.assertNotEqual(one, other)
            other.listed, other.number = [5], 2
            self.assertEqual(repr(other), "Changing(number=2, listed=[5], text='usual')")
            self.assertRaises(TypeError, Changing)
            self.assertRaises(AttributeError, setattr, one, "another", 1)
        self.assertRaises(TypeError, hash, Changing(1))

    def test_identity(self) -> None:
        """A record without equality is a key, and has the fields of its base."""
        one, other = Single(1, more=8), Single(1, more=8)
        self.assertEqual((one.number, one.text, one.more), (1, "usual", 8))
        self.assertEqual(len({one, other, one}), 2)
        self.assertEqual([each.name for each in fields(Single)], ["number", "text", "more"])
        self.assertEqual(replace(one, number=3).number, 3)

    def test_copies(self) -> None:
        """Copies and unpickled records are equal and independent."""
        made = Changing(1, [2])
        for copied in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
            self.assertEqual(copied, made)
            copied.listed.append(3)
            self.assertEqual(made.listed, [2])

    def test_frozenIdentity(self) -> None:
        """A value without equality cannot be changed, and equals itself only."""

        @frozen(eq=False)
        class Place:
            number: int

        one: Any = Place(1)
        self.assertNotEqual(one, Place(1))
        self.assertEqual(len({one, Place(1)}), 2)
        self.assertRaises(FrozenInstanceError, setattr, one, "number", 2)
