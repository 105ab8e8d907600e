"""How Sphinx makes the documentation site; `scripts/docs.py` says of what, and where it goes."""

from itertools import islice
from pathlib import Path
from typing import Any

import fleetcount

project = "fleetcount"
author = "The fleetcount authors"
copyright = author  # noqa: A001 the name that Sphinx reads
version = release = fleetcount.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
exclude_patterns = ["docs/gallery/sample"]
html_theme = "furo"
html_title = f"fleetcount {version}"
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False

# Headings are linked to as a forge links to them: [text](page.md#heading-in-small-letters).
myst_heading_anchors = 4
myst_enable_extensions = ["linkify"]
myst_linkify_fuzzy_links = False

# Docstrings are plain sentences with code in single back quotes, as the documents have it.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
napoleon_numpy_docstring = False

# Every notebook runs at every build, in the folder where it was staged, and none may fail.
nb_execution_mode = "force"
nb_execution_timeout = 60
nb_execution_show_tb = True
nb_merge_streams = True


def spread_notebooks(_app: object, _env: object, pages: list[str]) -> None:
    """Put pages that take seconds evenly between the others: each process is given a run of neighbours to read."""
    slow = [page for page in pages if page.startswith("docs/gallery/")]
    every = len(pages) // max(1, len(slow))
    rest = iter([page for page in pages if page not in slow])
    pages[:] = [one for page in slow for one in (page, *islice(rest, every - 1))] + list(rest)


def setup(app: Any) -> None:
    """Let Sphinx ask in which order it reads."""
    app.connect("env-before-read-docs", spread_notebooks)
