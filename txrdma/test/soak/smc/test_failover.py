"""
Failures of either link at either end, at many times during a transfer; and links that come and go.
"""

from __future__ import annotations

from typing import Any

from txrdma.test.integration.smc import test_failover
from txrdma.testing.repeating import measure, MOST_OBJECTS, TIMES, WARM_UP


class EveryLoadTests(test_failover.LoadTests):
    """Each time, link and end, with transfers of half a megabyte."""

    isExhaustive = True
    repeats = 2000
    slowBecause = "Each of 46 combinations transfers megabytes through a simulated network."


class RepeatedLinkTests(test_failover.TwoLinkTestCase):
    """A port that goes down and comes up again a thousand times: a link ends, and another one is added."""

    slowBecause = "it adds more than a thousand links"

    def test_flat(self) -> None:
        """Descriptors, mappings, objects and registered memory do not grow, and the connection continues."""
        here, there = self.pair()
        device: Any = self.groupsOf[self.client].devices[1]
        before: dict[str, int] = {}
        for number in range(WARM_UP + TIMES):
            for isEnabled, ports in ((False, [0]), (True, [0, 1])):
                device.setPortEnabled(1, isEnabled)
                self.until(lambda ports=ports: self.ports(self.client) == self.ports(self.server) == ports)  # type: ignore[misc]
            received = len(there.received)
            here.transport.write(b"still there")
            self.until(lambda received=received: len(there.received) > received)  # type: ignore[misc]
            if number == WARM_UP - 1:
                before = self.measured()
        growth = {name: count - before[name] for name, count in self.measured().items()}
        self.assertLessEqual(growth["objects"], MOST_OBJECTS, growth)
        for name in ("descriptors", "mappings", "keys"):
            self.assertLessEqual(growth[name], 0, growth)

    def measured(self) -> dict[str, int]:
        """Count the objects of the process, and the keys of the devices."""
        devices: list[Any] = [each for groups in self.groupsOf.values() for each in groups.devices]
        return {**measure(), "keys": sum(len(each.keys) for each in devices)}
