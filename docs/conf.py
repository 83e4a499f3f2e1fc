"""How Sphinx builds these pages."""

import sys
from importlib.metadata import version as installed
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent)]  # ours, and the benchmarks

project = "txrdma"
copyright = "2026, the txrdma developers"
release = version = installed("txrdma")

extensions = [
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "figures",
    "fromcode",
    "pictures",
    "sequences",
]
exclude_patterns = ["_build", "_templates"]
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3

copybutton_selector = "div:not(.highlight-diff) > div.highlight pre"
copybutton_exclude = ".linenos, .gp, .go"  # what one types, without prompts and answers

html_theme = "furo"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6e75", "color-brand-content": "#0b6e75"},
    "dark_css_variables": {"color-brand-primary": "#5cc8cf", "color-brand-content": "#5cc8cf"},
}
# Furo's own, with the reference that pydoctor makes below the pages.
html_sidebars = {
    "**": [
        *(f"sidebar/{name}.html" for name in ("brand", "search", "scroll-start", "navigation", "reference")),
        "sidebar/scroll-end.html",
    ]
}
templates_path = ["_templates"]
html_title = f"txrdma {release}"
html_static_path = ["_static"]
html_css_files = ["txrdma.css"]
html_copy_source = False
