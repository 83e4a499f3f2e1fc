"""Modules that need an extra, without it."""

from __future__ import annotations

import sys
from importlib import import_module
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase


class ExtraTests(SynchronousTestCase):
    """Importing a module without its extra fails with the command that installs that."""

    def test_missing(self) -> None:
        for extra in ("dask", "torch"):
            name = f"txrdma.btl.{extra}"
            with patch.dict(sys.modules, {extra: None}):
                sys.modules.pop(name, None)
                error = self.assertRaises(ImportError, import_module, name)
            self.assertIn(f"pip install 'txrdma[{extra}]'", str(error))
