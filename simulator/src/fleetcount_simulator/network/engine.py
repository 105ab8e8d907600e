"""The network engine: a case is asked of real device clients through real aggregators, over gRPC and MQTT.

Devices' coins and faults follow from the seed. Keys and the aggregators' noise are the operating system's, as in every
aggregator: two runs of one seed differ by that noise, and by which messages a loaded machine delays.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from fleetcount_mechanisms.design import Outputs

from fleetcount_simulator import faults
from fleetcount_simulator.engines.opened_sums import run_seed
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Case, CaseOutcome, Faults, Integers
from fleetcount_simulator.network.brokers import BROKERS
from fleetcount_simulator.network.fleet_spec import SHARED
from fleetcount_simulator.network.outages import first_failpoints
from fleetcount_simulator.network.parties import Parties, running
from fleetcount_simulator.network.plan import FleetPlan, plan_of
from fleetcount_simulator.network.question import (
    NetworkQuestion,
    outputs_length,
    outputs_of,
    question_of,
)
from fleetcount_simulator.network.run import Ask, QuestionAsked, WindowAsked, ask_question
from fleetcount_simulator.network.watch import ProgressCallback
from fleetcount_simulator.network.windows import OUTAGE_S, SKEW_S, Windows, doubled, stretched, with_outage
from fleetcount_simulator.study.readings import PARTICIPATION

_TRANSPORTS: Final = ("grpc", "mqtt", "both")
_MANY: Final = 2_000
"""From this number on two processes share the devices of one transport."""
_ATTEMPTS: Final = 3
_ALLOWED: Final = {
    "largest_epsilon": Fraction(700),
    "largest_local_epsilon": Fraction(700),
    "largest_sampling_rate": Fraction(1),
    "total_epsilon": Fraction(700),
}
"""The limits of every device's owner in a study, so large that they allow every question it asks."""
_SHORT_GIVE_UP_S: Final = 20
"""Seconds that aggregators wait for one that does not come back, in place of the 900 of a real deployment."""


_Place = tuple[Parties, Path]
"""Running aggregators, and the directory for the files of a question."""


def _silent(stage: str, done: int, total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkEngine:
    """Real clients through real aggregators on this machine.

    `transport` is "grpc", "mqtt" or "both" (every other device), `broker` "auto" (mosquitto where the machine has it),
    "embedded" or "mosquitto". `progress` is called with a stage, the amount that is done, and the total.
    """

    transport: str = "both"
    broker: str = "auto"
    progress: ProgressCallback = _silent
    _last: dict[str, Any] = field(default_factory=dict[str, Any], init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.transport not in _TRANSPORTS:
            raise ScenarioError(f"transport is {self.transport!r}; allowed are: {', '.join(_TRANSPORTS)}")
        if self.broker not in BROKERS:
            raise ScenarioError(f"broker is {self.broker!r}; allowed are: {', '.join(BROKERS)}")

    def run(self, case: Case, epoch: int, runs: Sequence[int], seed: np.random.SeedSequence) -> CaseOutcome:
        """Ask the case's question once per run, one run after the other; see `Engine.run`.

        `tallies` are those of `faults.TALLIES` and "seconds", from the opening of a window to its record.

        Raises:
            ScenarioError: real devices cannot be asked this question; the message says what to change.
            ProcessError: a process did not start, or ended too early.
        """
        return _outcome(case, self.ask(case, epoch, runs, seed))

    def ask(self, case: Case, epoch: int, runs: Sequence[int], seed: np.random.SeedSequence) -> list[WindowAsked]:
        """Do what `run` does and return all results of each run. Not for use inside an event loop.

        All windows of a question are asked together, on the first call for any of its epochs.
        """
        question = question_of(case)
        faults.check(case.faults, case.aggregators)
        if case.epochs.question is not None:
            return [one.windows[epoch] for one in self.ask_question(case, runs, seed)]
        asks = [(self._ask_of(case, question, run, seed), plan_of(case, question, run, seed, epoch)) for run in runs]
        # An outage ends an aggregator for good or for the run, so that every run starts new aggregators.
        groups = [[one] for one in asks] if case.faults.outage else [asks]
        return [one.windows[0] for group in groups for one in asyncio.run(self._ask_all(case, group))]

    def ask_question(self, case: Case, runs: Sequence[int], seed: np.random.SeedSequence) -> list[QuestionAsked]:
        """Ask the case's question once per run, each run with new aggregators.

        The result of the last call is kept and returned for a call of the same case, runs and seed. `seed` is as in
        `run`, of any window.

        Raises:
            ScenarioError, ProcessError: as `run`.
        """
        question = question_of(case)
        wanted = (case.index, seed.entropy, tuple(runs))
        if self._last.get("wanted") != wanted:
            first = np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key[:-1], 0))
            plans = [plan_of(case, question, run, seed) for run in runs]
            asks = [
                (replace(self._ask_of(case, question, run, first), limits=_ledgers(case)), plan)
                for run, plan in zip(runs, plans, strict=True)
            ]
            asked = [asyncio.run(self._in_time(case, one, plan)) for one, plan in asks]
            self._last.update(wanted=wanted, asked=asked)
        return list(self._last["asked"])

    async def _ask_all(self, case: Case, asks: Sequence[tuple[Ask, FleetPlan]]) -> list[QuestionAsked]:
        """Do several runs with the same aggregators."""
        async with self._aggregators(case) as (parties, root):
            return [await self._in_time(case, one, plan, (parties, root)) for one, plan in asks]

    @contextlib.asynccontextmanager
    async def _aggregators(self, case: Case) -> "AsyncGenerator[_Place]":
        """Start aggregators that run until the block ends; yield them and a private directory."""
        broker = self.broker if "mqtt" in self._transports(case.population.devices) else ""
        armed = first_failpoints(case.faults)
        with tempfile.TemporaryDirectory(prefix="fleetcount-") as directory:
            root = Path(directory)
            async with running(
                root, case.aggregators, broker=broker, limits=_limits(case), failpoints=armed
            ) as parties:
                yield parties, root

    async def _in_time(self, case: Case, asked: Ask, plan: FleetPlan, of: "_Place | None" = None) -> QuestionAsked:
        """Ask; when the machine was too slow for the windows, ask again in windows twice as long.

        Every attempt is a new question with the same coins, of new aggregators unless `of` gives some, which charge the
        signal for every attempt. The result of the last attempt is returned, released or not.
        """
        attempt = 0
        while True:
            again = asked if attempt == 0 else _longer(asked, attempt)
            async with contextlib.nullcontext(of) if of else self._aggregators(case) as (parties, root):
                directory = root / f"{asked.name.replace(' ', '-')}-{attempt}"
                directory.mkdir(mode=0o700)
                answer = await ask_question(parties, again, plan, directory)
            attempt += 1
            if answer.missing == 0 or attempt == _ATTEMPTS:
                return answer
            self.progress("missed", answer.missing, plan.truths.size)

    def _transports(self, devices: int) -> tuple[str, ...]:
        """Return the transport of each client process."""
        if self.transport == "both":
            return ("grpc", "mqtt")
        return (self.transport,) * (2 if devices >= _MANY else 1)

    def _ask_of(self, case: Case, question: NetworkQuestion, run: int, seed: np.random.SeedSequence) -> Ask:
        coins, _ = run_seed(seed, run).spawn(2)
        return Ask(
            name=f"run {run}",
            question=question,
            transports=self._transports(case.population.devices),
            connections=SHARED,
            limits=_ALLOWED,
            faults=case.faults,
            coin_seed=int.from_bytes(coins.generate_state(4).tobytes(), "big"),
            shape=partial(_with_faults, case.faults),
            progress=self.progress,
        )


def _ledgers(case: Case) -> dict[str, Fraction]:
    """Return the limits of owners in a case of one question: `_ALLOWED`, with the totals of the case's ledgers."""
    question, total = case.epochs.question, case.epochs.device_epsilon
    limits = _ALLOWED if total is None else _ALLOWED | {"total_epsilon": total}
    return limits if question is None else limits | {"total_delta": question.delta}


def _limits(case: Case) -> dict[str, str]:
    limits = {"allow_exact_release": "true"}
    if case.faults.outage:
        gone = any(seconds == 0 for _, _, seconds in case.faults.outage)
        scaled = faults.GIVE_UP_S * OUTAGE_S // faults.WINDOW_S
        limits |= {"give_up_s": str(_SHORT_GIVE_UP_S if gone else scaled), "call_timeout_s": "5"}
    return limits


def _with_faults(present: Faults, windows: Windows, start_s: float) -> Windows:
    """Return windows with room for faults of time; an aggregator needs up to `start_s` seconds to start."""
    if present.outage:
        windows = with_outage(windows, start_s)
    return stretched(windows, SKEW_S) if present.clock_skew_s else windows


def _longer(asked: Ask, attempt: int) -> Ask:
    def shape(windows: Windows, start_s: float) -> Windows:
        return doubled(asked.shape(windows, start_s), attempt)

    return replace(asked, name=f"{asked.name}, attempt {attempt + 1}", shape=shape)


def _outcome(case: Case, answers: Sequence[WindowAsked]) -> CaseOutcome:
    values, runs = case.population.question.values, len(answers)
    width = outputs_length(answers[0].window) if answers else values
    outputs = np.zeros((runs, width), dtype=np.int64)
    counted = np.zeros((runs, values + 1), dtype=np.int64)
    released, devices = np.zeros(runs, dtype=np.bool_), np.zeros(runs, dtype=np.int64)
    for row, answer in enumerate(answers):
        if answer.record is not None:
            outputs[row] = outputs_of(answer.record)
            counted[row], devices[row] = answer.account.counted, answer.account.devices or 0
            released[row] = True
    told = devices if case.population.question.sets else None
    return CaseOutcome(outputs=outputs, released=released, counted=counted, tallies=_tallies(answers), devices=told)


def _tallies(answers: Sequence[WindowAsked]) -> dict[str, Integers]:
    # The columns of a study are the same for every engine.
    tallies: dict[str, Integers] = {
        name: np.array([answer.account.tallies.get(name, 0) for answer in answers], dtype=np.int64)
        for name in faults.TALLIES
    }
    tallies["seconds"] = np.array([round(answer.stages["asked"]) for answer in answers], dtype=np.int64)
    if any(answer.window.design.outputs is Outputs.PARTICIPATION for answer in answers):
        raw = [answer.record.baseline_raw or 0 if answer.record is not None else 0 for answer in answers]
        tallies[PARTICIPATION] = np.array(raw, dtype=np.int64)
    return tallies
