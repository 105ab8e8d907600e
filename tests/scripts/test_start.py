"""Every script of the repository can start: what it imports is where it looks for it."""

import runpy
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).resolve().parents[2] / "scripts").glob("*.py"))
CHECK_TOOLS = {"docs.py": "sphinx"}
"""What comes with `make check` alone."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_finds_what_it_imports(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if tool := CHECK_TOOLS.get(script.name):
        pytest.importorskip(tool, reason="the documentation tools come with `make check`")
    monkeypatch.syspath_prepend(str(script.parent))

    made = runpy.run_path(str(script), run_name="imported")

    assert made["__doc__"], "and says what it is for"
