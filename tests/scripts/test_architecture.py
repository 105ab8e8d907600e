"""docs/architecture.md names every file of its two walks, and no walk grows: the lists are compared with what runs."""

import ast
import asyncio
import re
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

from tests.support.walks import ROOT, Walk, aggregator_walks, device_walk

PAGE: Final = ROOT / "docs" / "architecture.md"
UNDER_BOTH: Final = "Under both"


def named(title: str) -> set[str]:
    """Return the files that the section of this title names, as folder and path within the package."""
    [section] = re.findall(rf"^### {title}\n(.*?)(?=^##)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`([a-z]+/[\w/]+\.py)`", section))


def run(walk: Walk) -> set[str]:
    """Return the files of a walk, as folder and path within the package."""
    inside = [path.relative_to(ROOT).parts for path in walk.files]
    return {str(Path(folder, *rest)) for folder, _, _, *rest in inside}


def test_the_walk_from_truth_to_transport_is_named() -> None:
    files = run(asyncio.run(device_walk()))

    assert 40 < len(files) <= 56, sorted(files)
    assert files - named("From truth to transport") - named(UNDER_BOTH) == set()


@pytest.mark.timeout(120)
def test_the_walk_from_closed_intake_to_the_signed_record_is_named() -> None:
    walks = asyncio.run(aggregator_walks())
    files = run(walks["closed intake to signed record"])

    assert 60 < len(files) <= 80, sorted(files)
    assert len(first := run(walks["question to first window"])) <= 45, sorted(first)
    assert files - named("From closed intake to signed record") - named(UNDER_BOTH) == set()


def imports_of(file: Path, modules: dict[str, Path]) -> set[str]:
    """Return which of our modules a file imports, at its head or inside of a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {one if (one := f"{node.module}.{name.name}") in modules else node.module for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found & modules.keys()


def test_no_modules_import_each_other_in_a_circle_not_even_inside_of_functions() -> None:
    sources = [path for path in ROOT.glob("*/src/**/*.py") if path.name != "__init__.py"]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts[2:]): path for path in sources}
    graph = {name: imports_of(path, modules) - {name} for name, path in modules.items()}

    assert len(graph) > 500
    assert list(TopologicalSorter(graph).static_order())  # A circle is a CycleError, which names it.
