"""
The tests, for trial.
"""

import os
import sys

EXAMPLES = int(os.environ.get("TXRDMA_EXAMPLES", "100"))
"""Number of examples of a property, where a test does not say it. Below 25, searches are shorter, too."""


def _configureHypothesis() -> None:
    """
    Set no time limit for an example or its generation, which would measure the load of the machine.

    Up to 100 examples are the same in each run, so that a failure is that of the last change; more of them
    are random.
    """
    try:
        from hypothesis import HealthCheck, settings
    except ImportError:
        return  # tests that need Hypothesis skip
    settings.register_profile(
        "txrdma",
        deadline=None,
        max_examples=EXAMPLES,
        derandomize=EXAMPLES <= 100,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("txrdma")
    if EXAMPLES <= 100:
        _useNoLocalConstants()


def _useNoLocalConstants() -> None:
    """
    Let Hypothesis draw no constants of the modules that happen to be imported.

    Otherwise the examples of a test depend on the tests before it, and each process parses all of txrdma.
    """
    try:
        from hypothesis.internal.conjecture import providers

        local = providers._local_constants
    except (ImportError, AttributeError):
        return  # this version has none, or they have another name
    setattr(providers, "_get_local_constants", lambda: local)  # noqa: B010  # mypy forbids an assignment


# The kernel suites do without it: in an emulated guest the import takes ten seconds, in each process. So do
# programs that tests start with "-m" or "-c": while Python imports their packages, sys.argv[0] is that.
if os.environ.get("LAB") != "1" and sys.argv[:1] not in (["-m"], ["-c"]):
    _configureHypothesis()

# Programs of tests use no TLS, whose modules take a quarter of the time in which Twisted is imported.
if sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].startswith("txrdma.test.support."):
    sys.modules["OpenSSL"] = None  # type: ignore[assignment]  # an import raises ImportError

# No suite loads programs into this machine's kernel without saying so; processes that tests start inherit it.
os.environ.setdefault("TXRDMA_SMC_OPTION", "installed")
