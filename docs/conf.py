"""How Sphinx builds these pages."""

import sys
from importlib.metadata import version as installed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "txrdma"
copyright = "2026, the txrdma developers"
release = version = installed("txrdma")

extensions = ["myst_parser", "sphinx.ext.graphviz", "fromcode"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

graphviz_output_format = "svg"

html_theme = "alabaster"
html_theme_options = {
    "description": "RDMA for Twisted",
    "page_width": "1100px",
    "fixed_sidebar": True,
    "extra_nav_links": {"API reference": "api/index.html"},
}
html_title = f"txrdma {release}"
html_copy_source = False
