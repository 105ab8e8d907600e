"""The attacks on a running deployment: their list, one run of all of them, and docs/attacks.md made from that run.

    python -m tests.attack.suite [--short] [ID ...]

Without ids every attack runs and the page is written; `--short` leaves out what takes minutes, and ids choose some:
both print the table and leave the page alone. Exit code 1 if an attack is not held, 2 if the command is wrong.

An attack is a row of attacks.toml; README.md beside it says how to add one.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final
from xml.etree import ElementTree  # The file is written by our own pytest run.

ROOT: Final = Path(__file__).resolve().parents[2]
ROWS: Final = Path(__file__).with_name("attacks.toml")
PAGE: Final = ROOT / "docs" / "attacks.md"
FIGURE: Final = "figure"
"""The property of pytest under which a test reports what it measured: `record_property(FIGURE, "3 of 3 refused")`."""

ACTORS: Final = (
    "a stranger on the network",
    "a device",
    "many devices",
    "a thief of a device",
    "holder of another certificate",
    "broker or relay",
    "one aggregator",
    "all aggregators",
    "an analyst",
    "reader of releases",
    "a thief of an aggregator's disk",
    "an operator",
    "the supply chain",
)
_ID: Final = re.compile(r"[KHA][1-9][0-9]?")
_NODE: Final = re.compile(r"tests/[a-z0-9_/]+\.py::test_[a-z0-9_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack: `id` is K.. (it once worked), H.. (it never did) or A.. (an actor's general attempt).

    Raises:
        ValueError: an id, an actor or a test's name that cannot be, or an empty text.
    """

    id: str
    who: str
    does: str
    holds: str
    tests: tuple[str, ...]

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError(f"id is {self.id!r}; it must be K, H or A and a number from 1 to 99")
        if self.who not in ACTORS:
            raise ValueError(f"{self.id}: who is {self.who!r}; it must be one of {', '.join(ACTORS)}")
        if not (self.does and self.holds and self.tests):
            raise ValueError(f"{self.id}: does, holds and tests must not be empty")
        if wrong := [name for name in self.tests if not _NODE.fullmatch(name)]:
            raise ValueError(f"{self.id}: tests has {wrong[0]!r}; it must be tests/PATH.py::test_NAME")


class Verdict(StrEnum):
    """How an attack ended."""

    HELD = "held"
    BROKEN = "BROKEN"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one attack: `figure` is what its tests reported, each once, or why it could not be tried."""

    verdict: Verdict
    figure: str

    @property
    def outcome(self) -> str:
        """Verdict and figure in one cell."""
        return f"{self.verdict}: {self.figure}" if self.figure else self.verdict


def read_attacks(path: Path = ROWS) -> list[Attack]:
    """Return the attacks in the order of the file.

    Raises:
        ValueError: a row that cannot be, or an id twice.
    """
    rows = tomllib.loads(path.read_text())["attack"]
    attacks = [Attack(**{**row, "tests": tuple(row["tests"])}) for row in rows]
    ids = [one.id for one in attacks]
    if twice := {one for one in ids if ids.count(one) > 1}:
        raise ValueError(f"ids twice: {', '.join(sorted(twice))}")
    return attacks


def run(attacks: Sequence[Attack], *, short: bool) -> dict[str, Tried]:
    """Run the tests of the attacks in one pytest and return what became of each attack, by id."""
    tests = sorted({name for one in attacks for name in one.tests})
    environment = {**os.environ} if short else {**os.environ, "FLEETCOUNT_NIGHTLY": "1"}
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "attacks.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *tests]
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    return {one.id: tried(one, cases) for one in attacks}


def tried(attack: Attack, cases: Sequence[ElementTree.Element]) -> Tried:
    """Return what became of one attack: held only if all its tests ran and passed."""
    own = [[case for case in cases if _node_of(case) == name] for name in attack.tests]
    every = [case for found in own for case in found]
    if any(case.find(kind) is not None for case in every for kind in ("failure", "error")):
        return Tried(Verdict.BROKEN, "")
    skipped = [found for case in every if (found := case.find("skipped")) is not None]
    if skipped or not all(own):
        return Tried(Verdict.NOT_TRIED, skipped[0].get("message", "") if skipped else "its tests did not run")
    properties = [one for case in every for one in case.iter("property")]
    figures = Counter(one.get("value", "") for one in properties if one.get("name") == FIGURE)
    return Tried(Verdict.HELD, "; ".join(f"{figure} ({n} times)" if n > 1 else figure for figure, n in figures.items()))


def _node_of(case: ElementTree.Element) -> str:
    name = case.get("name", "").partition("[")[0]
    return f"{case.get('classname', '').replace('.', '/')}.py::{name}"


def table(attacks: Sequence[Attack], results: Mapping[str, Tried]) -> str:
    """Return the attacks and what became of them as rows of Markdown."""
    lines = ["| id | who does what | must hold | outcome | tests |", "|---|---|---|---|---|"]
    for one in attacks:
        named = ", ".join(f"`{name}`" for name in one.tests)
        cells = (one.id, f"{one.who} {one.does}", one.holds, results[one.id].outcome, named)
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def page(attacks: Sequence[Attack], results: Mapping[str, Tried]) -> str:
    """Return docs/attacks.md."""
    count = {verdict: sum(one.verdict is verdict for one in results.values()) for verdict in Verdict}
    return (
        "# Attacks\n\n"
        "Written by `make attack` from one run of all attacks against real processes; do not edit. The tests of a row "
        "make the attack. K.. once worked and was closed, H.. never worked, A.. is what an actor of the "
        "[threat model](../SECURITY.md) tries in general.\n\n"
        f"{count[Verdict.HELD]} held, {count[Verdict.BROKEN]} broken, {count[Verdict.NOT_TRIED]} not tried.\n\n"
        + table(attacks, results)
    )


def ids_of(text: str) -> list[str]:
    """Return the ids of the attacks in a page's table, in order."""
    return re.findall(r"^\| ([A-Z]\d+) \|", text, re.MULTILINE)


def main(arguments: Sequence[str]) -> int:
    """Run all attacks and write the page, or some and print the table."""
    parser = argparse.ArgumentParser(prog="attack", description="Run the attacks; all of them write docs/attacks.md.")
    parser.add_argument("--short", action="store_true", help="leave out what takes minutes; prints, writes no page")
    parser.add_argument("ids", nargs="*", metavar="ID", help="attacks to run; prints, writes no page")
    options = parser.parse_args(arguments)
    attacks = read_attacks()
    if unknown := set(options.ids) - {one.id for one in attacks}:
        parser.error(f"no attack is called {', '.join(sorted(unknown))}; there are {', '.join(a.id for a in attacks)}")
    chosen = [one for one in attacks if one.id in (options.ids or [one.id])]
    results = run(chosen, short=options.short)
    print(table(chosen, results))
    if not options.ids and not options.short:
        unfinished = PAGE.with_suffix(".new")
        unfinished.write_text(page(attacks, results))
        unfinished.replace(PAGE)
    return 0 if all(one.verdict is not Verdict.BROKEN for one in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
