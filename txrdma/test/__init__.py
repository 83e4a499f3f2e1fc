"""
The tests, for trial.
"""

import os


def _settleHypothesis() -> None:
    """Set no time limit for an example: it says more about the load of the machine than about our code."""
    try:
        from hypothesis import settings
    except ImportError:
        return  # tests that need it say so themselves
    settings.register_profile("txrdma", deadline=None)
    settings.load_profile("txrdma")


# The kernel suites do without it: in an emulated guest the import takes ten seconds, in each process.
if os.environ.get("LAB") != "1":
    _settleHypothesis()

# No suite loads programs into this machine's kernel without saying so; processes that tests start inherit it.
os.environ.setdefault("TXRDMA_SMC_OPTION", "installed")
