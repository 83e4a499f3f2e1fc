"""
The monitor's pages in a real browser: Chromium, driven by Selenium; C{tools/have-browser} installs it.
"""

from typing import Final

from txrdma.test.support import CHECKOUT

FOLDER: Final = CHECKOUT / "build" / "browser"
"""Folder of axe-core and Grafana's types (by C{tools/have-browser}), and of pictures and histories."""
