"""Build the documentation site into out/docs/html: pages, reference from docstrings, and a gallery that is executed.

`make docs` calls it. Warnings are errors, among them every link inside the repository that leads nowhere; what a link
to elsewhere leads to is not asked. Needs no network. Exit code 0, or 1 with a line for each warning.
"""

import os
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx_build

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("README.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "docs", "deploy", "examples")
"""What pages are made of, and what they link to."""


def stage(target: Path) -> None:
    """Copy the parts into a new `target`, where notebooks may write beside themselves."""
    target.mkdir(parents=True)
    for part in map(ROOT.__truediv__, PARTS):
        if not part.exists():
            continue  # Of an archive: a link to what is not there is a warning.
        if part.is_dir():
            shutil.copytree(part, target / part.name, ignore=shutil.ignore_patterns("site", "__pycache__"))
        else:
            shutil.copy(part, target)
    shutil.copy(ROOT / "docs" / "site" / "index.md", target)
    with (target / "docs" / "decisions" / "README.md").open("a", encoding="utf-8") as page:
        page.write("\n```{toctree}\n:glob:\n:hidden:\n\n0*\n```\n")


def build(out: Path) -> int:
    """Build the site in `out`/html from `out`/source and return Sphinx's exit code."""
    shutil.rmtree(out, ignore_errors=True)  # What was built before is not taken over: it may have had warnings.
    stage(out / "source")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR"):
        os.environ[name] = str(out / "kernel")  # Nothing of a notebook's kernel goes into the home directory.
    startup = out / "kernel" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "site" / "kernel.py", startup)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    options = ["--quiet", "--fail-on-warning", "--jobs", "2", "--conf-dir", str(ROOT / "docs" / "site")]
    return sphinx_build([*options, "--doctree-dir", str(out / "doctrees"), str(out / "source"), str(out / "html")])


if __name__ == "__main__":
    place = ROOT / "out" / "docs"
    code = build(place)
    print(f"docs: {place / 'html' / 'index.html'}" if code == 0 else "docs: FAILED", file=sys.stderr if code else None)
    sys.exit(1 if code else 0)
