"""
The tests, for trial.
"""

try:
    from hypothesis import settings
except ImportError:
    pass  # tests that need it say so themselves
else:
    # How long an example takes tells more of the machine's other business than of our code.
    settings.register_profile("txrdma", deadline=None)
    settings.load_profile("txrdma")
