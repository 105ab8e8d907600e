"""Every promise of the privacy page, of the threat model and of the page of faults names its proof, and that exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.attack.suite import read_attacks
from tests.campaign.faults import FAULTS

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("docs/privacy.md", "docs/spec.md", "SECURITY.md")
NAMED = re.compile(r"`(tests/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")
ROW = re.compile(r"`([KHA][1-9][0-9]?)`")
"""A row of the page of attacks, which names tests."""
FAULT_PAGE = "docs/faults.md"
FAULT_IDS = [*(f"F{number}" for number in range(1, 57)), *(f"O{number}" for number in range(1, 12))]
CAMPAIGN = re.compile(r"`campaign: ([^`]+)`")
WITHOUT_TABLE = {
    "",
    "Reporting",
    "Known limits",
    "Limits first",
    "1. Notation and assumptions",
    "9. Where to look first",
}
"""Parts of a page that promise nothing."""


def parts(page: str) -> dict[str, str]:
    """Return the text of each part of a page by its heading."""
    title, *rest = re.split(r"^## ", (ROOT / page).read_text(), flags=re.MULTILINE)
    return {"": title} | {part.splitlines()[0]: part for part in rest}


def rows(part: str) -> dict[str, str]:
    """Return what names tests, or rows that do, by the first cell of its row."""
    cells = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
    return {first.strip(): rest[-1] for first, *rest in cells if rest and proves(rest[-1])}


def proves(cell: str) -> bool:
    """Whether a cell names a test or a row that does, or says why nothing does."""
    return "tests/" in cell or "none:" in cell or ROW.search(cell) is not None


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of the tests in a file, at its top level; a file that is not there has none."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    if not (ROOT / path).is_file():
        return frozenset()
    return frozenset(node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, kinds))


@pytest.mark.parametrize("page", [*PAGES, FAULT_PAGE])
def test_every_test_that_is_named_exists(page: str) -> None:
    named = NAMED.findall((ROOT / page).read_text())

    assert len(named) > 20
    assert [f"{path}::{name}" for path, name in named if name not in names_in(path)] == []


@pytest.mark.parametrize("page", [*PAGES, FAULT_PAGE])
def test_every_attack_that_is_named_exists(page: str) -> None:
    named = ROW.findall((ROOT / page).read_text())

    assert set(named) <= {attack.id for attack in read_attacks()}


def test_every_known_fault_has_a_row_that_names_what_proves_it_or_says_why_nothing_does() -> None:
    page = (ROOT / FAULT_PAGE).read_text()
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:2] == "| "]
    proofs = {cells[0]: cells[-1] for cells in lines[1:]}

    assert sorted(one for ids in proofs for one in ids.split(", ")) == sorted(FAULT_IDS)
    assert {len(cells) for cells in lines} == {4}
    assert [fault for fault in CAMPAIGN.findall(page) if fault not in FAULTS] == []
    assert [name for name, proof in proofs.items() if not proved(proof) and not proof.startswith("not tested: ")] == []


def proved(proof: str) -> bool:
    """Whether a cell is a list of tests, attacks and faults of the campaign, and nothing else."""
    rest = CAMPAIGN.sub("", ROW.sub("", NAMED.sub("", proof)))
    return rest != proof and not rest.strip(", ")


@pytest.mark.parametrize("page", PAGES)
def test_every_part_that_promises_has_a_table_of_tests(page: str) -> None:
    assert [name for name, part in parts(page).items() if name not in WITHOUT_TABLE and not rows(part)] == []
    for part in parts(page).values():
        named = {row: NAMED.search(cell) or ROW.search(cell) or "none:" in cell for row, cell in rows(part).items()}
        assert [row for row, proof in named.items() if not proof] == []


@pytest.mark.parametrize("heading", ["What is not promised, first", "What is promised"])
def test_every_sentence_in_bold_is_a_row_of_its_table(heading: str) -> None:
    part = parts("docs/privacy.md")[heading]
    bold = re.findall(r"^\* \*\*(.+?)\*\*", part, flags=re.MULTILINE | re.DOTALL)

    assert len(bold) == len(re.findall(r"^\* ", part, flags=re.MULTILINE))
    assert [re.sub(r"\s+", " ", one).rstrip(".") for one in bold] == list(rows(part))


def test_everybody_in_the_threat_model_has_a_test() -> None:
    part = parts("SECURITY.md")["Threat model"]
    people = part.split("| who | can | cannot | test |\n|---|---|---|---|\n")[1].split("\n\n")[0].splitlines()
    who = [line.strip("|").split("|")[0].strip() for line in people]

    # Many lying devices: nothing stops them, and nothing is promised.
    assert [one for one in who if one not in rows(part)] == ["many lying devices"]
