"""The documentation's configuration: Sphinx, MyST and furo. `make docs` builds it into build/docs."""

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import generated  # noqa: E402  it lies beside this file

from zobench.version import __version__  # noqa: E402

project = "zobench"
author = copyright = "the zobench authors"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["pictures", "static"]
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block", "attrs_inline"]
myst_links_external_new_tab = False
suppress_warnings = ["misc.highlighting_failure"]
"""Blocks of TOML show one key of a file, and shown output is no program: a lexer need not understand them."""
highlight_language = "text"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
html_theme = "furo"
html_title = f"zobench {release}"
html_static_path = ["static"]
html_css_files = ["zobench.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5fa8", "color-brand-content": "#1f5fa8"},
    "dark_css_variables": {"color-brand-primary": "#7db4f0", "color-brand-content": "#7db4f0"},
}


def plain(
    app: Any, what: str, name: str, obj: object, options: Any, signature: str | None, returned: str | None
) -> tuple[str, str | None] | None:
    """A signature without the modules of its types; a default that Python cannot write is three dots."""
    if signature:
        signature = re.sub(r"~?(?:\w+\.)+(?=[A-Z])", "", signature)
        signature = re.sub(r"<(?:factory|(?:built-in )?function [^<>]*(?:<\w+>)?)>", "...", signature)
        return signature.replace("~", ""), returned
    return None


def setup(app: Any) -> None:
    """The pages that come from the code are written before Sphinx looks for pages."""
    app.connect("builder-inited", lambda app: generated.write(HERE / "generated"))
    app.connect("autodoc-process-signature", plain)
