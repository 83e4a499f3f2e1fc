"""
What runs for every commit, in the soak and for a release: targets of the Makefile, and the release's tag.
"""

from __future__ import annotations

import re
from typing import Final

from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.test.support import CHECKOUT
from txrdma.test.support.checkouttools import tool
from txrdma.testing.simulate import GENERATORS


class MakefileTests(SynchronousTestCase):
    if not (CHECKOUT / "Makefile").exists():
        skip = "the Makefile is in a checkout only"

    OTHERWISE: Final = {
        "test": "test-all runs the same tests, and test_sample the choice of others",
        "test-kernel": "test-kernel-ci runs a selection of its tests",
        "format": "lint fails where it would change a file",
        "clean": "test_clean",
        "wheels": "test-compiled builds one of them",
    }
    """Targets that neither CI nor C{make soak} runs, and what runs instead."""

    def test_everyTargetIsRun(self) -> None:
        """C{.ci/run} or C{make soak} runs every target."""
        rules = (CHECKOUT / "Makefile").read_text().replace("\\\n", " ").splitlines()
        prerequisites = {name: words.split() for name, _, words in (rule.partition(":") for rule in rules)}
        commands = [line for line in (CHECKOUT / ".ci" / "run").read_text().splitlines() if "#" not in line]
        commands += [" ".join(each.words) for each in tool(self, "soak").activities()]
        words = {word for line in commands for word in line.partition("make ")[2].split()}
        words |= {"vendor"}  # only with npm
        targets = set(prerequisites[".PHONY"])
        run = targets & words | set(prerequisites["check"])
        self.assertEqual(targets - run, {*self.OTHERWISE})

    def test_protocols(self) -> None:
        """C{make hostile} plays the hostile peers of all protocols."""
        makefile = (CHECKOUT / "Makefile").read_text().replace("\\\n", " ")
        found = re.search(r"^PROTOCOLS \?=(.*)$", makefile, re.MULTILINE)
        assert found is not None
        hostile = sorted(name for name in GENERATORS if name.startswith("hostile-"))
        self.assertEqual(sorted(f"hostile-{name}" for name in found[1].split()), hostile)

    def test_coverage(self) -> None:
        """Every package has a threshold of its coverage."""
        makefile = (CHECKOUT / "Makefile").read_text()
        named = re.findall(r"(\w+):\d+", makefile.partition("\nCOVERAGE ?=")[2].partition("\n\n")[0])
        packages = [path.parent.name for path in (CHECKOUT / "txrdma").glob("*/__init__.py")]
        self.assertEqual(sorted(named), sorted({*packages} - {"test"}))


class ReleaseTests(SynchronousTestCase):
    if not (CHECKOUT / ".github").is_dir():
        skip = "the workflows are in a checkout only"

    def test_tag(self) -> None:
        """Before it publishes, the workflow compares the tag with the version of the package."""
        workflow = (CHECKOUT / ".github" / "workflows" / "release.yml").read_text()
        _, pure, _compiled, publish = re.split("^  (?:pure|compiled|publish):$", workflow, flags=re.MULTILINE)
        self.assertIn('run: tools/check-tag "$GITHUB_REF_NAME"\n', pure)
        self.assertIn("needs: [pure, compiled]\n", publish)

    def test_changes(self) -> None:
        """The list of changes names the version of the package."""
        self.assertIn(f"txrdma {txrdma.__version__} ", (CHECKOUT / "CHANGES.md").read_text())
