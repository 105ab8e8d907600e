"""One shard of a study: a case and a range of its runs, from the scenario's text to bytes with every number.

A pure function of the order, the same in every process and on every machine: the division into shards depends on the
case and the engine, not on the workers. It must not write a file.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Case, CaseOutcome, Engine, EngineName, Row
from fleetcount_simulator.rounding import fleet_truth
from fleetcount_simulator.scenario.file import parse_scenario
from fleetcount_simulator.scenario.plan import PopulationMaker, Scenario
from fleetcount_simulator.study.numbers import NUMBERS, mean_numbers, shown_numbers
from fleetcount_simulator.study.readings import read_releases
from fleetcount_simulator.study.scores import Cells, score_cells, score_releases

_NUMBERS: Final = 1 << 18
"""About how many released numbers a shard has."""
_DEVICES: Final = 20_000_000
"""About how many devices a shard of the per-device engine draws for."""
_MOST_RUNS: Final = 1000

_ATTACKERS: Final = 1 << 31
"""Stands for a run's number in the spawn key of attackers: no run has this number, so no draws repeat."""

AttackerRows = Callable[[Case, CaseOutcome, np.random.SeedSequence], Sequence[Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registries:
    """The makers of populations, engines and attackers' rows: module-level functions, which are pickled by name."""

    population: PopulationMaker
    engine: Callable[[EngineName], Engine]
    attacker_rows: AttackerRows


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOrder:
    """Everything a worker needs: the scenario's text and folder, the seed, the engine, the case and its runs.

    `numpy` is the version of whoever orders: another one draws other numbers from the same seed.
    """

    text: str = field(repr=False)
    file: str
    folder: str
    seed: int
    engine: EngineName
    case: int
    first_run: int
    runs: int
    registries: Registries
    numpy: str = np.__version__

    @property
    def name(self) -> str:
        """The name of its result; names sort by case, then by run."""
        return f"case-{self.case:04d}-runs-{self.first_run:07d}-{self.first_run + self.runs - 1:07d}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardResult:
    """The result of a shard: `releases` by column, one row per run and epoch (by epoch, then run); `cells` of every
    epoch; `numbers` by column, a row for each number that a release shows (by epoch, then run).

    `attackers` are the rows of its attackers, measured once per case: on the first shard's runs of the first epoch.
    `digest` identifies the case.
    """

    digest: str
    releases: Mapping[str, NDArray[Any]]
    cells: tuple[Cells, ...]
    numbers: Mapping[str, NDArray[Any]]
    attackers: tuple[Row, ...]


def shard_sizes(engine: EngineName, values: int, devices: int, runs: int) -> list[tuple[int, int]]:
    """Return (first run, number of runs) of every shard of a case: a second or so of work each."""
    block = min(_MOST_RUNS, _NUMBERS // (values + 1))
    if engine == "per-device":
        block = min(block, _DEVICES // max(devices, 1))
    block = 1 if engine == "network" else max(1, block)
    return [(first, min(block, runs - first)) for first in range(0, runs, block)]


def case_digest(case: Case) -> str:
    """Return a digest (SHA-256, hexadecimal) of a case's settings and of the first epoch's truths."""
    settings = (case.index, sorted(case.point.items()), case.mechanism, case.aggregators, case.min_batch_size)
    rest = (case.level, case.faults, case.attackers, case.epochs, case.population.devices)
    text = repr((settings, rest))
    digest = hashlib.sha256(text.encode())
    digest.update(case.population.histogram(0).tobytes())
    digest.update("".join(f"{reading} " for reading in case.population.question.readings).encode())
    if case.population.question.sets:
        digest.update(repr((case.population.question.sets, case.population.question.most)).encode())
    return digest.hexdigest()


def run_shard(order: ShardOrder) -> bytes:
    """Carry out a shard and return its result, encoded.

    Raises:
        ScenarioError: the case cannot be made or carried out, or this worker has another NumPy.
    """
    if order.numpy != np.__version__:
        raise ScenarioError(f"a worker has NumPy {np.__version__}; allowed is {order.numpy}, as where the study began")
    case = _scenario(order.text, order.file, order.folder, order.seed, order.registries.population).case(order.case)
    engine = order.registries.engine(order.engine)
    columns: list[Mapping[str, NDArray[Any]]] = []
    numbers: list[Mapping[str, NDArray[Any]]] = []
    cells: list[Cells] = []
    attackers: list[Row] = []
    for epoch in range(case.epochs.count):
        seed = np.random.SeedSequence(order.seed, spawn_key=(case.index, epoch))
        runs = range(order.first_run, order.first_run + order.runs)
        outcome = engine.run(case, epoch, runs, seed)
        _check_outcome(case, outcome, order.runs)
        reading, truth = read_releases(case, outcome), fleet_truth(case.population, epoch)[1:]
        mean = mean_numbers(case, outcome, reading, epoch)
        columns.append(score_releases(reading, outcome, truth, epoch, runs, mean))
        numbers.append(shown_numbers(case, outcome, epoch, runs))
        cells.append(score_cells(reading, outcome, truth, first=order.first_run == 0))
        if case.attackers and epoch == order.first_run == 0:
            apart = np.random.SeedSequence(order.seed, spawn_key=(case.index, epoch, _ATTACKERS))
            attackers += order.registries.attacker_rows(case, outcome, apart)
    releases, shown = (
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} for parts in (columns, numbers)
    )
    return _encoded(
        ShardResult(
            digest=case_digest(case),
            releases=releases,
            cells=tuple(cells),
            numbers=shown,
            attackers=tuple(attackers),
        )
    )


@lru_cache(maxsize=2)
def _scenario(text: str, file: str, folder: str, seed: int, make_population: PopulationMaker) -> Scenario:
    """Return the scenario of an order; a worker reads it, and makes its populations, once for all its shards."""
    return parse_scenario(text, file, Path(folder), make_population, seed)


def _check_outcome(case: Case, outcome: CaseOutcome, runs: int) -> None:
    """Refuse an outcome whose shapes do not fit the case: an error of an engine must not become a table."""
    values, numbers = case.population.question.values, case.design.output_count
    shapes = (outcome.released.shape, outcome.counted.shape, outcome.outputs.shape[:1])
    if shapes != ((runs,), (runs, values + 1), (runs,)) or outcome.outputs.shape[1] not in {values, numbers}:
        raise ScenarioError(
            f"the engine gave outputs of shape {outcome.outputs.shape} for {runs} runs of {values} values"
        )


# Encoding: arrays as NumPy's own format without pickles, the rest as JSON.


def _encoded(result: ShardResult) -> bytes:
    arrays: dict[str, NDArray[Any]] = {f"release/{name}": column for name, column in result.releases.items()}
    arrays |= {f"number/{name}": column for name, column in result.numbers.items()}
    for epoch, cells in enumerate(result.cells):
        arrays |= {f"cells/{epoch}/{name}": array for name, array in cells.arrays().items()}
    head = {"digest": result.digest, "epochs": len(result.cells), "attackers": result.attackers}
    arrays["head"] = np.frombuffer(json.dumps(head, default=_plain).encode(), dtype=np.uint8)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def _plain(value: object) -> object:
    """Return a row's number for JSON: NumPy's scalars as Python's, exact numbers as floats."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Fraction | Decimal):
        return float(value)
    raise TypeError(f"a row holds {type(value).__name__}; it must hold numbers, texts, true, false or nothing")


def decode_shard(content: bytes) -> ShardResult:
    """Return the result of `run_shard`.

    Raises:
        ScenarioError: not the bytes of a whole result.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        head = json.loads(arrays["head"].tobytes())
        releases = {name.partition("/")[2]: array for name, array in arrays.items() if name.startswith("release/")}
        numbers = {name: arrays[f"number/{name}"] for name in NUMBERS}
        cells = tuple(Cells.of(arrays, f"cells/{epoch}/") for epoch in range(head["epochs"]))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ScenarioError(f"the result of a shard is damaged: {error}") from error
    return ShardResult(
        digest=head["digest"], releases=releases, cells=cells, numbers=numbers, attackers=tuple(head["attackers"])
    )
