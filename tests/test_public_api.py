"""What the roots of the packages promise: exactly the names of docs/api.md, loaded when they are used."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXPORTING = ["client", "protocol", "mechanisms", "analysis", "simulator"]
CLOSED = ["aggregator", "relay", "kernel", "transport"]


def promised(package: str) -> list[str]:
    """Return the names that docs/api.md gives a stability word, in the section of a package."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    section = page.partition(f"## `fleetcount_{package}`")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*`) \| (?:stable|provisional) \| [^|]+ \|$", section, re.MULTILINE)
    assert len(rows) == section.count("\n| `"), "a row without a stability word"
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def imported(text: str) -> Iterator[tuple[str, str]]:
    """Yield the package and the name of everything that the Python blocks of a document import from us."""
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fleetcount"):
                yield from ((str(node.module), alias.name) for alias in node.names)
    for package, names in re.findall(r"`from (fleetcount\S*) import ([\w, ]+)`", text):
        yield from ((package, name.strip()) for name in names.split(","))


@pytest.mark.parametrize("package", EXPORTING)
def test_a_root_exports_what_has_a_stability_word_and_nothing_else(package: str) -> None:
    root = import_module(f"fleetcount_{package}")
    names = promised(package)

    assert sorted(names) == sorted(root.__all__) == dir(root)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("package", CLOSED)
def test_the_other_roots_export_nothing(package: str) -> None:
    assert not getattr(import_module(f"fleetcount_{package}"), "__all__", [])


def test_what_documents_import_is_exported() -> None:
    found = [(path.name, *one) for path in DOCUMENTS for one in imported(path.read_text(encoding="utf-8"))]

    assert len(found) >= 4
    for page, package, name in found:
        assert hasattr(import_module(package), name), f"{page}: from {package} import {name}"
        assert not name.startswith("_"), f"{page}: {name} is not for importing"


@pytest.mark.parametrize("package", EXPORTING)
def test_an_unknown_name_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match=f"'fleetcount_{package}' has no attribute 'Tusk'"):
        _ = import_module(f"fleetcount_{package}").Tusk


@pytest.mark.processes
@pytest.mark.parametrize("package", EXPORTING)
def test_a_root_alone_loads_none_of_its_modules(package: str) -> None:
    code = f"import sys, fleetcount_{package}; print([m for m in sys.modules if m.startswith('fleetcount_{package}.')])"

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert shown.stdout.strip() in ("[]", "['fleetcount_mechanisms.lazy_exports']")


@pytest.mark.processes
def test_an_error_class_loads_no_scipy() -> None:
    code = "import fleetcount_analysis as f, sys; f.AnalysisError; print(sorted({'numpy', 'scipy'} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_code_of_this_repository_imports_from_the_modules() -> None:
    statement = re.compile(rf"^ *from fleetcount_({'|'.join(EXPORTING)}) import (\([^)]*\)|.*)", re.MULTILINE)
    found: list[str] = []
    folders = (*EXPORTING, *CLOSED, "cli", "benchmarks", "tests")
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for package, names in statement.findall(path.read_text(encoding="utf-8")):
            public = set(import_module(f"fleetcount_{package}").__all__) - {"report"}
            if path.name != "__init__.py" and public & set(re.findall(r"\w+", names)):
                found.append(f"{path.relative_to(ROOT)}: from fleetcount_{package} import {names}")

    assert found == []
