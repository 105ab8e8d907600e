"""CONTRIBUTING's walk "Adding a kind of value" is complete: a kind that nobody knew is added at its places alone.

Each place is found by the name that the walk gives it; one that the walk no longer names fails the test, and so does a
step from a question file to a simulated study that needs another place.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from fleetcount.question.files import read_question
from fleetcount.read.report import table_lines
from fleetcount_aggregator.release.record import build_record
from fleetcount_client.answering import one_round_parts, truth_of
from fleetcount_client.policy import judge_sources
from fleetcount_client.signals import Kind, Reading, constant, fault_of
from fleetcount_mechanisms.randomness import SeededRandom
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.layout import uint
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.release.record import decode_record, encode_record
from fleetcount_protocol.window.domain import value_of
from fleetcount_protocol.window.signal import exact
from fleetcount_simulator.cells.model import Positions, Values
from fleetcount_simulator.model import AnswerSpace, Integers
from fleetcount_simulator.populations import build
from fleetcount_simulator.scenario.file import read_scenario
from fleetcount_transport.settings import setting, settings
from fleetcount_transport.toml_table import Table

from tests.cli.test_question_files import CREATE, SPEC
from tests.support.released import ONCE
from tests.support.walks import ROOT

WALK = (ROOT / "CONTRIBUTING.md").read_text().split("## Adding a kind of value\n")[1].split("\n## ")[0]
SIGNAL = "Vehicle.TraveledDistance"


def place(name: str) -> ModuleType:
    """Return the module of a place by the name that it has in the walk."""
    assert f"`{name}`" in WALK, f"the walk does not name {name}"
    [file] = ROOT.glob(f"{name.partition('/')[0]}/src/*/{name.partition('/')[2]}")
    return import_module(".".join(file.relative_to(ROOT).with_suffix("").parts[2:]).removesuffix(".__init__"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainders:
    """Whole numbers by what is left when they are divided: value v is all that leave v - 1."""

    divisor: int

    @property
    def values(self) -> int:
        """V, the divisor."""
        return self.divisor

    def value_of(self, signal: Any) -> int:
        """Return the value of a whole number, 0 for anything else."""
        number = exact(signal)
        return 1 + number.numerator % self.divisor if number is not None and number.denominator == 1 else 0

    def label(self, value: int) -> str:
        """Return the remainder with its divisor."""
        return f"{value - 1} mod {self.divisor}"


@settings
class RemaindersTable:
    """[domain] of kind `remainders`."""

    kind: str = setting(Table.slug)
    divisor: int = setting(Table.integer, 1, 4095)

    def domain(self) -> Remainders:
        """Return the remainders."""
        return Remainders(divisor=self.divisor)


@settings
class RemainderKeys:
    """[question] of cells `remainders`."""

    divisor: int = setting(Table.integer, 1, 4095, about="what metres to the east are divided by", example="3")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainderCells:
    """The whole metres to the east, by what is left of them."""

    title: str
    domain: Any

    def keys(self, positions: Positions) -> Integers:
        """Return the remainder of every position."""
        return np.floor(positions.x).astype(np.int64) % self.domain.divisor

    def close(self, seen: Integers) -> Values:
        """Return all remainders."""
        numbers = np.arange(1, self.domain.values + 1)
        labels = tuple(map(self.domain.label, numbers.tolist()))
        question = AnswerSpace(title=self.title, labels=labels, domain=self.domain)
        return Values(question=question, codes=numbers - 1, numbers=numbers)


def _declare(keys: Any, _: object, title: str) -> RemainderCells:
    return RemainderCells(title=title, domain=Remainders(divisor=keys.divisor))


def instead(module: ModuleType, name: str, made: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a further branch before those of a function that tells kinds apart: `made`, None for the others."""
    before = getattr(module, name)

    def with_branch(*given: Any) -> Any:
        found = made(*given)
        return before(*given) if found is None else found

    monkeypatch.setattr(module, name, with_branch)


@pytest.fixture
def remainders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The places of the walk, in its order."""
    assert place("protocol/window/domain.py").__name__ == "fleetcount_protocol.window.domain"
    monkeypatch.setitem(place("client/signals.py")._ASKED, Remainders, Kind.NUMBER)

    codec, number = place("protocol/window/codec.py"), 200

    def encoded(domain: Any) -> bytes | None:
        return uint(number, 1) + uint(domain.divisor, 2) if isinstance(domain, Remainders) else None

    def decoded(reader: Any) -> Remainders | None:
        if reader._data[reader._position] != number:
            return None
        reader.take(1)
        return Remainders(divisor=reader.count(2, 1, 4095))

    instead(codec, "_encode_single", encoded, monkeypatch)
    instead(codec, "_read_domain", decoded, monkeypatch)

    monkeypatch.setitem(place("transport/domain_table.py")._DOMAINS, "remainders", RemaindersTable)

    asked = place("simulator/network/question.py")
    instead(asked, "_signal_of", lambda one: SIGNAL if isinstance(one, Remainders) else None, monkeypatch)

    def read_as(domain: object, value: int) -> int | None:
        return value - 1 if isinstance(domain, Remainders) and value else None

    instead(asked, "reading_of", read_as, monkeypatch)
    made = ModuleType("fleetcount_simulator.cells.remainders")
    made.Keys, made.declare = RemainderKeys, _declare  # type: ignore[attr-defined]  # the module of the new kind.
    monkeypatch.setitem(sys.modules, made.__name__, made)
    kinds = place("simulator/cells/__init__.py").KINDS
    monkeypatch.setitem(kinds, "remainders", ("remainders", "Keys", "declare", "What is left?"))
    populations = place("simulator/populations/mobility.py")
    monkeypatch.setattr(populations, "CELLS", (*populations.CELLS, "remainders"))


TOWN = """
name = "remainders"
seed = 1
runs = 3
[population]
kind = "mobility"
devices = 400
start_h = 8
[question]
cells = "remainders"
divisor = 3
[[mechanism]]
kind = "direct"
epsilon = 1
"""
ASKED = SPEC.replace(
    SPEC[SPEC.index("[domain]") : SPEC.index("[schedule]")], '[domain]\nkind = "remainders"\ndivisor = 3\n'
)
ASKED = ASKED.replace("Vehicle.CurrentLocation", SIGNAL)


@pytest.mark.usefixtures("remainders")
def test_a_kind_of_value_nobody_knew_is_asked_read_answered_and_released(
    fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fleetcount("keys", "init", "--output", "dep", "--base-port", "0").code == 0
    (tmp_path / "spec.toml").write_text(ASKED)

    created, shown = fleetcount(*CREATE), fleetcount("question", "show", "q.question", "--json")

    assert created.code == shown.code == 0, created.err + shown.err
    question = read_question(tmp_path / "q.question").question
    assert question.domain == Remainders(divisor=3)
    assert json.loads(shown.out)["labels"] == ["0 mod 3", "1 mod 3", "2 mod 3"]
    window, source = window_at(question, 0), SeededRandom(1)
    assert judge_sources({SIGNAL: constant(7)}, window.parts) is None
    assert [fault_of(Reading(value=one), window.parts[0].domain) for one in (7, "7")] == [
        "",
        "it is a text, and the question asks for a number",
    ]
    truth = truth_of(window, Reading(value=7), source)
    assert truth == 2
    assert len(one_round_parts(window, truth, source, device=Digest(bytes(32))).parts) == 2

    made = build_record(window, [40, 60, 20, 120][: window.design.output_count], window.round_two_closes, ONCE)
    record = decode_record(encode_record(made))

    assert record.window.domain == Remainders(divisor=3)
    assert [line.split("  ")[0] for line in table_lines(record)[1:4]] == ["0 mod 3", "1 mod 3", "2 mod 3"]


@pytest.mark.usefixtures("remainders")
def test_a_kind_of_value_nobody_knew_is_simulated_and_asked_of_simulated_devices(
    fleetcount: Callable, tmp_path: Path
) -> None:
    (tmp_path / "town.toml").write_text(TOWN)

    ran = fleetcount("simulate", tmp_path / "town.toml", "--output", tmp_path / "out")

    assert ran.code == 0, ran.err
    case = read_scenario(tmp_path / "town.toml", build).case(0)
    networked = place("simulator/network/question.py")
    asked = networked.question_of(case)
    assert (asked.domain, asked.signal) == (Remainders(divisor=3), SIGNAL)
    readings = [networked.reading_of(asked.domain, value) for value in range(4)]
    assert [value_of(asked.domain, one, SeededRandom(1)) for one in readings] == [0, 1, 2, 3]
