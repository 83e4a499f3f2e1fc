"""
Benchmarks of the first contact, which measure five transports in turns.
"""

from __future__ import annotations

from txrdma.test.system.test_benchmarks import ShortCase


class ContactTests(ShortCase):
    """First connections and those that follow, by version and by number of links."""

    def test_contacts(self) -> None:
        """Versions and numbers of links are measured in turns with TCP, which they share."""
        rows = self.measured("first-rocev2-v1-1")
        kinds = {"first", "later", "contacts"}
        names = {f"{kind}-rocev2-{what}" for kind in kinds for what in ("v1-1", "v2-1", "v2-2")}
        self.assertEqual(rows.keys(), {*names, "links-rocev2-v2-2"})
        for name in names:
            version, links = name[-3], name[-1]
            self.assertEqual(rows[name]["mode"], f"SMC-R rocev2, version {version}, links: {links}")
            self.assertEqual(rows[name]["reference"], rows[f"{name[:-4]}v1-1"]["reference"])
            self.assertGreater(min(*rows[name]["tested"], *rows[name]["reference"]), 0)
        complete, first = (rows[f"{kind}-rocev2-v2-2"] for kind in ("links", "first"))
        self.assertEqual(complete["reference"], [])
        self.assertGreater(complete["tested"][0], first["tested"][0])

    def test_crowd(self) -> None:
        """Many connections are served beside TCP."""
        rows = self.measured("crowd")
        self.assertGreater(min(*rows["crowd"]["tested"], *rows["crowd"]["reference"]), 0)
