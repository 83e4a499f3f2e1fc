"""
The tests, for trial.
"""

import os

try:
    from hypothesis import settings
except ImportError:
    pass  # tests that need it say so themselves
else:
    # How long an example takes tells more of the machine's other business than of our code.
    settings.register_profile("txrdma", deadline=None)
    settings.load_profile("txrdma")

# No suite loads programs into this machine's kernel without saying so; processes that tests start inherit it.
os.environ.setdefault("TXRDMA_SMC_OPTION", "installed")
