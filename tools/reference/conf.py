"""Sphinx's configuration of the reference. tools/build_reference.py copies it beside the pages that it writes."""

from pathlib import Path

project = "heddle"
author = "the founders of Heddle"
version = release = (Path(__file__).parent / "version.txt").read_text(encoding="utf-8").strip()
extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"heddle {release}"
html_copy_source = False
html_show_sphinx = False
myst_heading_anchors = 4
default_role = "literal"
add_module_names = False
python_maximum_signature_line_length = cpp_maximum_signature_line_length = 100
# Types in signatures need no page of their own; a name in a text that leads nowhere is an error.
nitpicky = True
nitpick_ignore_regex = [("py:(?!obj).*", ".*"), ("cpp:.*", ".*"), ("c:.*", ".*")]
suppress_warnings = ["ref.python"]  # BlockMask in a signature may be heddle's or heddle.torch's
