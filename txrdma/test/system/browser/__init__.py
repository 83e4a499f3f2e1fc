"""
The monitor's pages in a real browser: Chromium, driven by Selenium; C{tools/have-browser} installs it.
"""

from typing import Final

from txrdma.test.support import CHECKOUT

FOLDER: Final = CHECKOUT / "build" / "browser"
"""Where C{tools/have-browser} puts axe-core and Grafana's types, and tests put pictures and histories."""
