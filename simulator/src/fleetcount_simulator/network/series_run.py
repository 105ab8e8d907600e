"""One series asked of real devices through real aggregators: every window followed to its record.

As `run` for one task, whose processes it uses; it must not do the work of a device or an aggregator.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final

from fleetcount_protocol.ids import Digest
from fleetcount_protocol.messages import ReleaseAnswer
from fleetcount_protocol.release import ReleaseRecord
from fleetcount_protocol.series.derive import window_task
from fleetcount_protocol.series.fields import Coin, Participants, Schedule
from fleetcount_protocol.series.series import Series, SignedSeries
from fleetcount_protocol.task.task import UploadStyle

from fleetcount_simulator.network.parties import Parties
from fleetcount_simulator.network.run import Ask, Begun, begin, checked
from fleetcount_simulator.network.windows import ANNOUNCE_S

__all__ = ["AskedSeries", "ask_series"]

_EXPIRY_S: Final = 86_400
_PAUSE_S: Final = 2
"""Between windows, so that a release is not delayed by the next one's reports."""
_MQTT_S: Final = 7
"""How long a device that asks over MQTT waits for retained tasks that do not come, before it looks at series."""
_JOINING: Final = 1.5
"""How much longer joining takes than enrolling: every device asks for the series, judges it and reserves."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AskedSeries:
    """What came of it: by window the checked record (None: aborted, or none in time), its answer, who delivered.

    `reasons` are what devices said that did not answer every window, the commonest first; `ended_at` is when the last
    window's end was known, Unix seconds.
    """

    signed: SignedSeries
    records: tuple[ReleaseRecord | None, ...]
    answers: tuple[ReleaseAnswer | None, ...]
    delivered: tuple[int, ...]
    reasons: Mapping[str, int]
    broker: str
    ended_at: float


async def ask_series(parties: Parties, asked: Ask, directory: Path) -> AskedSeries:
    """Ask a window for every one of `asked.frames`; the aggregators have been started.

    Raises:
        ProcessError, SignatureError: as `run.ask`.
    """
    begun = await begin(parties, asked, directory)
    signed = parties.submit_series(_series(parties, asked, begun))
    tasks = [window_task(signed.series, index) for index in range(len(asked.frames))]
    answers, delivered = await begun.watch.run_windows(tasks, begun.windows.release_s)
    pairs = zip(answers, tasks, strict=True)
    return AskedSeries(
        signed=signed,
        records=tuple(None if answer is None else checked(answer, task, parties) for answer, task in pairs),
        answers=tuple(answers),
        delivered=tuple(delivered),
        reasons=begun.watch.reasons,
        broker=parties.broker,
        ended_at=begun.watch.ended_at,
    )


def _series(parties: Parties, asked: Ask, begun: Begun) -> Series:
    question, windows = asked.question, begun.windows
    length = windows.round_one_s + windows.round_two_s
    lead_s = ANNOUNCE_S + _JOINING * begun.enrolled_s + (_MQTT_S if "mqtt" in asked.transports else 0)
    schedule = Schedule(
        first=math.ceil(time.time() + lead_s) + 2,
        every_s=length + _PAUSE_S,
        windows=len(asked.frames),
        round_one_s=windows.round_one_s,
        round_two_s=windows.round_two_s,
        expiry_s=_EXPIRY_S,
    )
    return Series(
        name=asked.name,
        deployment=parties.deployment.name,
        signal=question.signal,
        domain=question.domain,
        mode=question.mode,
        mechanism=question.mechanism,
        schedule=schedule,
        coin=Coin.WINDOW,
        participants=Participants.HIDDEN,
        delta=Fraction(1, 10**9),
        release=question.release,
        upload_style=UploadStyle.TWO_INSTALMENTS,
        time_precision_s=1,
        min_batch_size=question.min_batch_size,
        aggregators=tuple(replace(one, hpke_keys=()) for one in parties.deployment.aggregators),
        verify_seed_digest=Digest(bytes(32)),
    )
