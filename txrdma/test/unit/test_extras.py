"""Modules that need a package of an extra."""

from __future__ import annotations

import sys
from importlib import import_module
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase


class ExtraTests(SynchronousTestCase):
    def test_missing(self) -> None:
        """Without its extra, a module names the command that installs it."""
        for module, package, extra in (
            ("txrdma.btl.dask", "dask", "dask"),
            ("txrdma.btl.torch", "torch", "torch"),
            ("txrdma.metrics", "prometheus_client", "prometheus"),
            ("txrdma.telemetry", "opentelemetry.metrics", "opentelemetry"),
        ):
            with patch.dict(sys.modules, {package: None}):
                sys.modules.pop(module, None)
                with self.assertRaisesRegex(ImportError, rf"pip install 'txrdma\[{extra}\]'"):
                    import_module(module)
