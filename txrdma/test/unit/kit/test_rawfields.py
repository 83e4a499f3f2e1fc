"""Tests for reading and writing single fields in bytes."""

from __future__ import annotations

from random import Random

from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.rawfields import peek, peeks, poke, span
from txrdma.kit.wire import bits, Layout, wire
from txrdma.mad.layouts.pma import PortCounters, PortCountersExtended
from txrdma.mad.layouts.smp import ExtendedPortInfo, NodeInfo, PortInfo, SwitchInfo

LAYOUTS = (NodeInfo, SwitchInfo, PortInfo, ExtendedPortInfo)


def asNumber(value: object) -> object:
    """Return the number or the bytes of a decoded field."""
    return int(value) if isinstance(value, int) else getattr(value, "raw", value)


class RawFieldTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.random = Random(0)

    def test_peek(self) -> None:
        """Each field read from any bytes equals the decoded field."""
        for layout in LAYOUTS:
            for _ in range(20):
                raw = self.random.randbytes(layout.size)
                decoded = layout.decode(raw)
                for field in layout.fields:
                    expected = asNumber(getattr(decoded, field.name))
                    self.assertEqual(peek(layout, field.name)(raw), expected, field.name)

    def test_peeks(self) -> None:
        """Several fields read together, in any order and at any offset, equal the decoded fields."""
        for layout in (PortCounters, PortCountersExtended):
            names = [field.name for field in layout.fields]
            for count in (2, 5, len(names)):
                chosen = self.random.sample(names, count)
                raw = self.random.randbytes(layout.size + 7)
                decoded = layout.decode(raw, 7)
                expected = tuple(asNumber(getattr(decoded, name)) for name in chosen)
                self.assertEqual(peeks(layout, chosen)(raw, 7), expected)

    def test_peeksApart(self) -> None:
        """Fields that are not whole machine words, or that only share a byte, are refused."""

        @wire(2)
        class Overlapping(Layout):
            short: int = bits(4)
            long: int = bits(12)

        self.assertRaises(ValueError, peeks, NodeInfo, ["vendorID", "nodeGUID"])
        self.assertRaises(ValueError, peeks, Overlapping, ["short", "long"])

    def test_poke(self) -> None:
        """A written number is the value of the field, and no other field changes."""
        for layout in LAYOUTS:
            for field in layout.fields:
                if not issubclass(field.type, int):
                    continue
                raw = bytearray(self.random.randbytes(layout.size))
                value = self.random.getrandbits(field.width)
                expected = layout.decode(raw).replace(**{field.name: value})
                poke(layout, field.name)(raw, value)
                self.assertEqual(raw, expected.encode(), field.name)

    def test_tooWide(self) -> None:
        """A number that is too large is refused, and nothing is written."""
        raw = bytearray(64)
        self.assertRaises(ValueError, poke(PortInfo, "lmc"), raw, 8)
        self.assertRaises(ValueError, poke(PortInfo, "lid"), raw, -1)
        self.assertEqual(raw, bytes(64))

    def test_span(self) -> None:
        """The span of two fields is the bytes from the first one to the end of the second one."""
        self.assertEqual(span(PortInfo, "mkey", "masterSMLID"), slice(0, 20))
        self.assertEqual(span(NodeInfo, "nodeGUID"), slice(12, 20))

    def test_unknown(self) -> None:
        """A field that the layout does not have is refused, and so is an array."""

        class Without(Layout):
            fields = ()

        self.assertRaises(AttributeError, peek, Without, "lid")
        self.assertRaises(AttributeError, poke, PortInfo, "LID")
        self.assertRaises(AttributeError, span, PortInfo, "mkey", "none")
