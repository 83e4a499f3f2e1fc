"""
The contract of verbs devices with the software device, on other reactors than the default one.
"""

from __future__ import annotations

from typing import Final

from txrdma.test.integration.verbs import test_contract

REACTORS: Final = ("_Select", "_Asyncio")
"""Reactors that differ from the default one, and from each other."""

for _suite in (
    test_contract.RoCEContractTests,
    test_contract.SharedMemoryContractTests,
    test_contract.RoCEMigrationTests,
    test_contract.IPv6ContractTests,
):
    _cases = _suite.makeTestCaseClasses()
    globals().update(
        {name: case for name, case in _cases.items() if any(reactor in name for reactor in REACTORS)}
    )
