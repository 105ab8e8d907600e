"""`import fleetcount as fc` costs nothing and offers what docs/api.md promises."""

import re
import subprocess
import sys
from pathlib import Path

import fleetcount
import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_the_root_exports_what_has_a_stability_word_and_nothing_else() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    section = page.partition("## `fleetcount`: ")[2].partition("\n## ")[0]
    names = [
        name for row in re.findall(r"^\| (`.*`) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    ]

    assert sorted(names) == sorted(fleetcount.__all__) == dir(fleetcount)
    for name in names:
        assert getattr(fleetcount, name).__module__.startswith("fleetcount")


@pytest.mark.processes
def test_the_root_alone_loads_nothing() -> None:
    program = "import sys; before = set(sys.modules); import fleetcount; print(sorted(set(sys.modules) - before))"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "['fleetcount']\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'fleetcount' has no attribute 'read_relase'"):
        _ = fleetcount.read_relase  # type: ignore[attr-defined] # that is the point
