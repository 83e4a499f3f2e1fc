"""Protocol cores can be used without Twisted."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.processes import printed
from txrdma.test.unit.test_layers import isCore, modules


class CoreTests(SynchronousTestCase):
    """Modules that the import rules call cores."""

    def test_withoutTwisted(self) -> None:
        """Cores can be imported without Twisted."""
        cores = [module for module, _path in modules() if isCore(module)]
        done = printed("import sys; sys.modules['twisted'] = None; import " + ", ".join(cores))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
