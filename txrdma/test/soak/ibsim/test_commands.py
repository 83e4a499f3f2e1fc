"""
The commands beside infiniband-diags, in ibsim's examples and in large fabrics.
"""

from __future__ import annotations

from txrdma.sim.nets.fattree import fatTree
from txrdma.test.system.ibsim import test_commands_1, test_commands_2, test_commands_3, test_commands_parts
from txrdma.test.system.ibsim.fabric import EXAMPLE, example, IbsimTestCase, NO_EXAMPLES

_BASES: tuple[type[IbsimTestCase], ...] = (
    test_commands_2.ListingTests,
    test_commands_2.RouteTests,
    test_commands_3.ExactErrorTests,
    test_commands_3.ExactListingTests,
)
_NETS: dict[str, tuple[str, str | None]] = {
    "Example": (EXAMPLE, NO_EXAMPLES),
    "OtherExample": (example("net"), NO_EXAMPLES),
    "Hosts128": (fatTree(128).text(), IbsimTestCase.skip),
    "Hosts1024": (fatTree(1024).text(), IbsimTestCase.skip),
}

for _name, (_net, _skip) in _NETS.items():
    for _base in _BASES:
        _values = {"net": _net, "skip": _skip, "timeout": 600, "most": 3, "__module__": __name__}
        globals()[_name + _base.__name__] = type(_name + _base.__name__, (_base,), _values)


class Hosts128PartTests(test_commands_parts.PartTests):
    net = _NETS["Hosts128"][0]


class LargeDiscoverTests(test_commands_1.DiscoverTests):
    """C{discover} of 1,024 hosts."""

    def test_tree(self) -> None:
        """It prints what C{ibnetdiscover} prints."""
        self.same(_NETS["Hosts1024"][0])
