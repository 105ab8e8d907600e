"""One series asked of real devices through real aggregators: offered, joined, followed window by window, accounted for.

Starts nothing that `run` does not start; it must not do the work of a device or an aggregator.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from fleetcount_aggregator.verification.compile_ahead import STEPS, compile_ahead
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.release import ReleaseRecord
from fleetcount_protocol.series.derive import window_task
from fleetcount_protocol.series.fields import Participants, Schedule
from fleetcount_protocol.series.series import Series, SignedSeries
from fleetcount_protocol.task.task import Task, UploadStyle

from fleetcount_simulator.errors import ProcessError
from fleetcount_simulator.faults import TALLIES
from fleetcount_simulator.network.counted import Account, account_of
from fleetcount_simulator.network.fleet_report import FleetReport
from fleetcount_simulator.network.parties import Parties
from fleetcount_simulator.network.run import EXPIRY_S, Ask, Asked, start_and_enrol
from fleetcount_simulator.network.series_question import SeriesPlan, widest_step
from fleetcount_simulator.network.series_watch import SeriesWatch
from fleetcount_simulator.network.windows import RELEASE_S, Windows, with_records

__all__ = ["SeriesAsked", "ask_series", "check_chain"]

_OFFER_S: Final = 4.0
"""From signing a series to the offer of all aggregators, on an idle machine."""
_JOIN_S: Final = 0.015
_RESERVE_S: Final = 0.0005
"""For one device to check and join a series, and for each of its windows in the ledger: three times what it costs."""
_RECORD_S: Final = 8
"""Between two steps of a walk: the record of the first has to be there before the second opens."""
_PAUSED: Final = "paused"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeriesAsked:
    """What came of a series: of every window what `run.ask` says of a task, in order.

    A paused window has neither record nor answer, and all its devices are "absent"; a step that its walk does not come
    to is not there. `stages` of a window holds "asked", the seconds from its opening to its record.
    """

    signed: SignedSeries
    windows: tuple[Asked, ...]

    @property
    def missing(self) -> int:
        """How many answers of devices that nothing befell were not counted: this machine was too slow for them."""
        return sum(one.account.missing for one in self.windows)


async def ask_series(parties: Parties, asked: Ask, plan: SeriesPlan, directory: Path) -> SeriesAsked:
    """Ask a series once; as `run.ask`. The records are checked one by one and along their chain.

    Raises:
        ProcessError: a process did not start or ended before its time, the devices joined too late, receipts that do
            not explain what was counted, or records that do not follow each other.
        SignatureError: a record whose signatures do not verify.
    """
    widest = asked.question
    if plan.walk is not None:
        widest = widest_step(asked.question, plan.walk)
        # The record of a step is due before the next one opens, that of the first too: nobody may still compile.
        await compile_ahead(say=lambda _, step, of: asked.progress("compiling", step - 1, of))
        asked.progress("compiling", len(STEPS), len(STEPS))
    enrolled = await start_and_enrol(parties, replace(asked, question=widest), directory, SeriesWatch, 0.0)
    watch, windows = enrolled.watch, enrolled.windows
    if plan.walk is not None:
        windows = with_records(windows, plan.truths.shape[1])
    joining_s = _JOIN_S * plan.truths.shape[1] + _RESERVE_S * plan.truths.size
    lead_s = _OFFER_S + joining_s + windows.lead_s + windows.round_one_s
    signed = parties.submit_series(_series(parties, asked, plan, windows, lead_s))
    series = signed.series
    ends = await watch.attend(series, plan, windows.release_s)
    check_chain({index: end.record for index, end in ends.items() if end.record is not None}, plan.pauses)
    reports = await watch.window_reports(series, ends)

    def window(index: int) -> Asked:
        end = ends.get(index)
        task = window_task(series, index) if end is None else end.task
        return Asked(
            task=task,
            record=None if end is None else end.record,
            answer=None if end is None else end.answer,
            account=_account(asked, plan, index, task, reports[index]),
            reasons=watch.reasons,
            stages={"asked": 0.0 if end is None else end.at - series.schedule.opens(index)},
            broker=parties.broker,
        )

    came_to = range(series.schedule.windows) if plan.walk is None else sorted(ends)
    return SeriesAsked(signed=signed, windows=tuple(window(index) for index in came_to))


def _series(parties: Parties, asked: Ask, plan: SeriesPlan, windows: Windows, lead_s: float) -> Series:
    """Return the series, its windows as near to each other as their releases let them be."""
    question = asked.question
    rounds_s = windows.round_one_s + windows.round_two_s
    every_s = rounds_s + max(1 if plan.walk is None else _RECORD_S, windows.release_s - RELEASE_S)
    return Series(
        name=asked.name,
        deployment=parties.deployment.name,
        signal=question.signal,
        domain=question.domain,
        mode=question.mode,
        mechanism=question.mechanism,
        schedule=Schedule(
            first=math.ceil(time.time() + lead_s) + every_s,
            every_s=every_s,
            windows=plan.series.windows,
            round_one_s=windows.round_one_s,
            round_two_s=windows.round_two_s,
            expiry_s=EXPIRY_S,
        ),
        coin=plan.series.coin,
        participants=Participants.HIDDEN,
        delta=plan.series.delta,
        release=question.release,
        upload_style=UploadStyle.TWO_INSTALMENTS,
        time_precision_s=1,
        min_batch_size=question.min_batch_size,
        aggregators=tuple(replace(one, hpke_keys=()) for one in parties.deployment.aggregators),
        verify_seed_digest=Digest(bytes(32)),
        drill_down=plan.walk,
    )


def check_chain(records: Mapping[int, ReleaseRecord], pauses: Sequence[tuple[int, int]]) -> None:
    """Refuse records, by window, of which one does not name the one before it, or a pause as what is between them.

    Raises:
        ProcessError: names the window.
    """
    paused = {window for first, last in pauses for window in range(first, last + 1)}
    before: int | None = None
    for index, record in sorted(records.items()):
        link = record.chain
        previous = None if before is None else records[before].digest
        if link is None or (link.previous_index, link.previous) != (before, previous):
            raise ProcessError(f"the record of window {index} does not follow that of window {before}")
        named = {one.index for one in link.missing if one.reason == _PAUSED}
        if named != paused & set(range(0 if before is None else before + 1, index)):
            raise ProcessError(f"the record of window {index} says that {sorted(named)} were paused before it")
        before = index


def _account(asked: Ask, plan: SeriesPlan, index: int, task: Task, reports: Sequence[FleetReport]) -> Account:
    values, rounds = task.values, 2 if asked.question.two_rounds else 1
    if any(first <= index <= last for first, last in plan.pauses):
        tallies = dict.fromkeys(TALLIES, 0) | {"absent": plan.truths.shape[1]}
        return Account(counted=np.zeros(values + 1, dtype=np.int64), missing=0, tallies=tallies)
    return account_of(reports, plan.truths_of(index, task.domain), plan.unharmed[index], values, rounds)
