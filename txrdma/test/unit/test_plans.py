"""
Plans of simulations as files: tests for L{txrdma.testing.plans}.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from txrdma.testing.plans import decodePlan, encodePlan, Misfit, noiseAfter, readPlan, StoredPlan
from txrdma.testing.plantests import STORED
from txrdma.testing.simulate import GENERATORS, readStored


class Color(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Point:
    x: float
    name: str | None = None


@dataclass(frozen=True)
class Drawing:
    seed: int
    color: Color
    points: tuple[Point, ...]
    size: tuple[int, float]
    isFilled: bool
    first: Point | None = None


DRAWING = Drawing(7, Color.BLUE, (Point(0.1), Point(2.0, "two")), (3, 0.5), True)


class PlanTests(SynchronousTestCase):
    def test_roundTrip(self) -> None:
        """A plan with every kind of value is unchanged after writing and reading."""
        path = Path(self.mktemp()) / "drawings" / "one.json"
        StoredPlan("drawing", "A point was missing.", DRAWING).write(path)
        stored = readPlan(path, {"drawing": Drawing})
        self.assertEqual(stored, StoredPlan("drawing", "A point was missing.", DRAWING))

    def test_generators(self) -> None:
        """Plans of all generators are unchanged after writing and reading, and their lines are short."""
        for name, generator in GENERATORS.items():
            for seed in range(3):
                plan = generator.draw(seed)
                path = Path(self.mktemp())
                StoredPlan(name, "", plan).write(path)
                self.assertEqual(readStored(path).plan, plan)
                self.assertLess(max(map(len, path.read_text().splitlines())), 130)

    def test_default(self) -> None:
        """A field that a stored plan lacks has its default."""
        self.assertEqual(decodePlan(Point, {"x": 1}), Point(1.0))

    def misfit(self, **changes: object) -> str:
        """Return the error of a plan with other values; None omits a value."""
        raw = {**encodePlan(DRAWING), **changes}
        return str(self.assertRaises(Misfit, decodePlan, Drawing, raw))

    def test_misfits(self) -> None:
        """A plan that does not fit is an error which names the value."""
        self.assertIn("plan.seed is 'x', not int", self.misfit(seed="x"))
        self.assertIn("plan.seed is True, not int", self.misfit(seed=True))
        self.assertIn("plan.color is 'GREEN', which is not a Color", self.misfit(color="GREEN"))
        self.assertIn("plan.points[1] is 5, not a Point", self.misfit(points=[{"x": 1.0}, 5]))
        self.assertIn("plan.points is 5, not a list", self.misfit(points=5))
        self.assertIn("plan.points[0].x is missing", self.misfit(points=[{}]))
        self.assertIn("plan.size has 1 values, not 2", self.misfit(size=[1]))
        self.assertIn("plan.height is not known to Drawing", self.misfit(height=1))

    def test_file(self) -> None:
        """A file that does not fit is an error which names the file."""
        path = Path(self.mktemp())
        path.write_text('{"generator": "drawing", "found": "", "plan": {}}')
        self.assertIn(
            f"{path}: plan.seed is missing",
            str(self.assertRaises(Misfit, readPlan, path, {"drawing": Drawing})),
        )
        self.assertIn("no generator 'drawing'", str(self.assertRaises(Misfit, readPlan, path, {})))

    def test_unknown(self) -> None:
        """A value that JSON cannot express is an error when the plan is written."""
        self.assertRaises(TypeError, encodePlan, (b"bytes",))

    def test_noise(self) -> None:
        """Given numbers precede those of the seed, which do not depend on them."""
        one, other = noiseAfter((0.25, 0.5), "seed"), noiseAfter((), "seed")
        self.assertEqual([one.random(), one.random()], [0.25, 0.5])
        self.assertEqual(one.random(), other.random())


class StoredTests(SynchronousTestCase):
    def test_found(self) -> None:
        """Every stored plan belongs to a generator, and describes in a sentence what it has found."""
        paths = sorted(STORED.glob("*/*.json"))
        self.assertGreater(len(paths), 20)
        for path in paths:
            stored = readStored(path)
            self.assertEqual(path.parent.name, stored.generator)
            self.assertRegex(stored.found, r"^[A-Z].*\.$")
            self.assertNotIn("Not known yet", stored.found)

    def test_counted(self) -> None:
        """A plan of each generator states what must happen, so that a simulation without any work fails."""
        stored = [readStored(path) for path in STORED.glob("*/*.json")]
        self.assertEqual(
            {each.generator for each in stored if each.counted}, {each.generator for each in stored}
        )
