"""The network engine: a case is asked of real device clients through real aggregators, over gRPC and MQTT.

Devices' coins and fates follow from the seed. Keys and the aggregators' noise are the operating system's, as in every
aggregator: two runs of one seed differ by that noise, and by which messages a loaded machine delays.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from fleetcount_mechanisms.answers import AnswerForm, kind_of
from fleetcount_mechanisms.design import Outputs
from fleetcount_protocol.vdaf.prio3 import prio3_bits, prio3_one_hot, prio3_two_round

from fleetcount_simulator import faults
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Case, EngineName, Integers, Outcome
from fleetcount_simulator.network.brokers import BROKERS
from fleetcount_simulator.network.children import Children
from fleetcount_simulator.network.fates import draw_fates
from fleetcount_simulator.network.machine_speed import Speed, free_cores, measure_speed
from fleetcount_simulator.network.outages import first_failpoints
from fleetcount_simulator.network.parties import Parties
from fleetcount_simulator.network.question import NetworkQuestion, outputs_length, outputs_of, question_of
from fleetcount_simulator.network.run import Ask, Asked, ProgressCallback, ask
from fleetcount_simulator.network.windows import (
    OUTAGE_S,
    SKEW_S,
    Observed,
    Windows,
    doubled,
    stretched,
    windows_for,
    with_outage,
)
from fleetcount_simulator.study.readings import PARTICIPATION

__all__ = ["NetworkEngine", "engine"]

_TRANSPORTS: Final = ("grpc", "mqtt", "both")
_MANY: Final = 2_000
"""From here on devices of one transport are spread over two processes."""
_ATTEMPTS: Final = 3
_SHORT_GIVE_UP_S: Final = 20
"""How long aggregators wait for one that never comes back: a study need not wait a quarter of an hour."""


def _silent(stage: str, done: int, total: int) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkEngine:
    """Real clients through real aggregators on this machine.

    `transport` is "grpc", "mqtt" or "both" (every other device), `broker` "auto" (mosquitto where the machine has it),
    "embedded" or "mosquitto". `progress` is told a stage, how much of it is done, and of how much.
    """

    transport: str = "both"
    broker: str = "auto"
    progress: ProgressCallback = _silent

    def __post_init__(self) -> None:
        if self.transport not in _TRANSPORTS:
            raise ScenarioError(f"transport is {self.transport!r}; allowed are: {', '.join(_TRANSPORTS)}")
        if self.broker not in BROKERS:
            raise ScenarioError(f"broker is {self.broker!r}; allowed are: {', '.join(BROKERS)}")

    @property
    def name(self) -> EngineName:
        """Its name on the command line."""
        return "network"

    def run(self, case: Case, epoch: int, runs: Sequence[int], seed: np.random.SeedSequence) -> Outcome:
        """Ask the case's question once a run, one run after the other; see `Engine.run`.

        `tallies` are those of `faults.TALLIES` and "seconds", from signing a task to its record.

        Raises:
            ScenarioError: real devices cannot be asked this; says what to change.
            ProcessError: a process did not start or ended before its time.
        """
        return _outcome(case, self.ask(case, epoch, runs, seed))

    def ask(self, case: Case, epoch: int, runs: Sequence[int], seed: np.random.SeedSequence) -> list[Asked]:
        """Do what `run` does and return everything that is known about each run. Not for use inside an event loop."""
        question = question_of(case)
        faults.check(case.faults, case.aggregators)
        return asyncio.run(self._ask_all(case, question, epoch, runs, seed))

    async def _ask_all(
        self, case: Case, question: NetworkQuestion, epoch: int, runs: Sequence[int], seed: np.random.SeedSequence
    ) -> list[Asked]:
        speed = _speed(question, case.aggregators)
        # Who was killed in one run starts the next one anew.
        groups = [[run] for run in runs] if case.faults.outage else [list(runs)]
        answers: list[Asked] = []
        for group in groups:
            with tempfile.TemporaryDirectory(prefix="fleetcount-") as directory:
                answers += await self._ask_group(case, question, epoch, group, seed, speed, Path(directory))
        return answers

    async def _ask_group(
        self,
        case: Case,
        question: NetworkQuestion,
        epoch: int,
        runs: Sequence[int],
        seed: np.random.SeedSequence,
        speed: Speed,
        root: Path,
    ) -> list[Asked]:
        """Ask several runs of the same aggregators."""
        (root / "logs").mkdir()
        answers: list[Asked] = []
        observed: Observed | None = None
        transports = self._transports(case.population.devices)
        async with Children(root / "logs") as children:
            parties = Parties(children, root)
            if "mqtt" in transports:
                await parties.start_broker(self.broker)
            parties.write(case.aggregators, _limits(case))
            armed = first_failpoints(case.faults)
            for position in range(case.aggregators):
                await parties.start(position, armed.get(position, ""))
            try:
                for run in runs:
                    asked = self._ask_of(case, question, epoch, run, seed, transports)
                    answer = await _ask_in_time(
                        children, parties, asked, _Lengths(case, asked, speed, parties.broker, observed), root
                    )
                    observed = _longer(observed, answer.observed)
                    answers.append(answer)
            finally:
                await parties.close()
        return answers

    def _transports(self, devices: int) -> tuple[str, ...]:
        """Return the transport of each client process."""
        if self.transport == "both":
            return ("grpc", "mqtt")
        return (self.transport,) * (2 if devices >= _MANY else 1)

    def _ask_of(
        self,
        case: Case,
        question: NetworkQuestion,
        epoch: int,
        run: int,
        seed: np.random.SeedSequence,
        transports: tuple[str, ...],
    ) -> Ask:
        own = np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, run))
        coins, fates = own.spawn(2)
        devices = case.population.devices
        return Ask(
            name=f"run {run}",
            question=question,
            transports=transports,
            truths=case.population.truths(epoch, 0, devices),
            fates=draw_fates(case, epoch, 2 if question.two_rounds else 1, fates),
            faults=case.faults,
            coin_seed=int.from_bytes(coins.generate_state(4).tobytes(), "big"),
            progress=self.progress,
        )


def engine(*, transport: str = "both", broker: str = "auto", progress: ProgressCallback | None = None) -> NetworkEngine:
    """Return the engine; see `NetworkEngine`.

    Raises:
        ScenarioError: an unknown transport or broker.
    """
    return NetworkEngine(transport=transport, broker=broker, progress=progress or _silent)


def _limits(case: Case) -> dict[str, str]:
    limits = {"allow_exact_release": "true"}
    if case.faults.outage:
        gone = any(seconds == 0 for _, _, seconds in case.faults.outage)
        scaled = faults.GIVE_UP_S * OUTAGE_S // faults.WINDOW_S
        limits |= {"give_up_s": str(_SHORT_GIVE_UP_S if gone else scaled), "call_timeout_s": "5"}
    return limits


def _speed(question: NetworkQuestion, aggregators: int) -> Speed:
    length = question.domain.values + 1
    measurement: Any
    if question.two_rounds:
        prio3, measurement = prio3_two_round(length, aggregators), (1, 1)
    elif question.mechanism is not None and kind_of(question.mechanism).form is AnswerForm.BITS:
        prio3, measurement = prio3_bits(length, aggregators), (1,) * length
    else:
        prio3, measurement = prio3_one_hot(length, aggregators), 1
    # The load of this machine is reckoned with by `free_cores`.
    return measure_speed(prio3, measurement, time.thread_time)


async def _ask_in_time(children: Children, parties: Parties, asked: Ask, lengths: "_Lengths", root: Path) -> Asked:
    """Ask; on a machine that was too slow for the windows ask again, in windows twice as long.

    Every attempt is a new task with the same coins. The last one is returned whatever became of it.
    """
    attempt = 0
    while True:
        again = asked if attempt == 0 else replace(asked, name=f"{asked.name}, attempt {attempt + 1}")
        directory = root / f"{asked.name.replace(' ', '-')}-{attempt}"
        directory.mkdir(mode=0o700)
        answer = await ask(children, parties, again, partial(lengths.windows, attempt), directory)
        attempt += 1
        if answer.account.missing == 0 or attempt == _ATTEMPTS:
            return answer
        asked.progress("missed", answer.account.missing, len(asked.truths))


@dataclass(frozen=True, slots=True)
class _Lengths:
    """Chooses the windows of a run once everybody is there."""

    case: Case
    asked: Ask
    speed: Speed
    broker: str
    observed: Observed | None

    def windows(self, attempt: int, start_s: float) -> Windows:
        """Return the windows of one attempt, 0 the first; an aggregator needs up to `start_s` seconds to start."""
        transports = self.asked.transports
        share = -(-len(self.asked.truths) // len(transports))
        devices = {self.broker if name == "mqtt" else name: share * transports.count(name) for name in transports}
        rounds = 2 if self.asked.question.two_rounds else 1
        windows = windows_for(devices, rounds, self.case.aggregators, self.speed, free_cores(), self.observed)
        if self.case.faults.outage:
            windows = with_outage(windows, start_s)
        if self.case.faults.clock_skew_s:
            windows = stretched(windows, SKEW_S)
        return doubled(windows, attempt)


def _longer(one: Observed | None, other: Observed) -> Observed:
    if one is None:
        return other
    return Observed(
        round_one_s=max(one.round_one_s, other.round_one_s), round_two_s=max(one.round_two_s, other.round_two_s)
    )


def _outcome(case: Case, answers: Sequence[Asked]) -> Outcome:
    values, runs = case.population.question.values, len(answers)
    width = outputs_length(answers[0].task) if answers else values
    outputs = np.zeros((runs, width), dtype=np.int64)
    counted = np.zeros((runs, values + 1), dtype=np.int64)
    released = np.zeros(runs, dtype=np.bool_)
    for row, answer in enumerate(answers):
        if answer.record is not None:
            outputs[row] = outputs_of(answer.record)
            counted[row] = answer.account.counted
            released[row] = True
    return Outcome(outputs=outputs, released=released, counted=counted, tallies=_tallies(answers))


def _tallies(answers: Sequence[Asked]) -> dict[str, Integers]:
    # The columns of a study are the same whatever engine carried it out.
    tallies: dict[str, Integers] = {
        name: np.array([answer.account.tallies.get(name, 0) for answer in answers], dtype=np.int64)
        for name in faults.TALLIES
    }
    tallies["seconds"] = np.array([round(answer.stages["asked"]) for answer in answers], dtype=np.int64)
    if any(answer.task.design.outputs is Outputs.PARTICIPATION for answer in answers):
        raw = [answer.record.baseline_raw or 0 if answer.record is not None else 0 for answer in answers]
        tallies[PARTICIPATION] = np.array(raw, dtype=np.int64)
    return tallies
