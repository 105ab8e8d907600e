"""A question over real processes and gRPC: whoever is killed in or between windows, every window has its one record."""

import asyncio
import math
import secrets
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fleetcount_client.transport import Transport, Unreachable
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.certificates import key_digest
from fleetcount_protocol.channel.session import SessionSecret, new_session, seal_instalment
from fleetcount_protocol.ids import ReportId, new_report_id
from fleetcount_protocol.messages import Instalment, QuestionOffer, Receipt, ReleaseAnswer, SessionAccepted, WindowState
from fleetcount_protocol.question.fields import Participants, Schedule
from fleetcount_protocol.question.key_list import key_for
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.release.record import ReleaseRecord, decode_record
from fleetcount_protocol.window.fields import Mode, Release, ReleaseKind
from fleetcount_protocol.window.window import Window, context_of, prio3_for

from tests.integration.test_crashes import ENDED_ITSELF, KILLED, revived
from tests.support.deployment import Deployed, LiveDeployment
from tests.support.expiries import on_the_hour
from tests.support.fleet import identity_of, transport_of
from tests.support.nightly import NIGHTLY
from tests.support.processes import pace

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

TRUTHS = (1, 1, 1, 2, 2, 3)
COUNTS = [3, 2, 1]
MOST_NOISE = 1
"""Two aggregators' noise at epsilon 10 leaves a cell by 2 or more with chance below 2e-8: 18 cells, below 4e-7."""


def standing_question(
    deployment: Deployed, windows: int, gap_s: int = 4, window_s: int = 9, **changes: Any
) -> Question:
    """Submit a question of short direct windows, with these fields changed; windows follow the machine."""
    length = math.ceil(window_s * deployment.pace)
    schedule = Schedule(
        first=math.ceil(time.time() + 10 * deployment.pace),
        every_s=length + math.ceil(gap_s * deployment.pace),
        windows=windows,
        round_one_s=length,
        round_two_s=0,
        expiry_s=3600,
    )
    fields: dict[str, Any] = {
        "mode": Mode.DIRECT,
        "mechanism": None,
        "schedule": schedule,
        "participants": Participants.NOISED,
        "release": Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(10), level=Fraction(19, 20)),
    }
    return deployment.submit(deployment.question(3, **(fields | changes)))


async def persist(ask: Any, until: float) -> Any:
    """Ask until there is an answer or the time is over."""
    while time.time() < until:
        try:
            return await ask()
        except Unreachable:
            await asyncio.sleep(0.2)
    raise AssertionError("no answer in time")


class Device:
    """One device: its truth, its connection, one session an aggregator for all windows."""

    def __init__(self, deployment: Deployed, truth: int) -> None:
        self.truth = truth
        self.identity = identity_of(deployment)
        self.transport: Transport = transport_of(deployment, self.identity, "grpc", timeout_s=2.0)
        self.secrets: list[SessionSecret] = []

    async def join(self, until: float) -> QuestionOffer:
        """Wait for the offer and open a session under the key that each aggregator's list says."""

        async def offered() -> QuestionOffer:
            offers = await self.transport.list_questions()
            for offer in offers:
                if len(offer.key_lists) == len(offer.signed.question.aggregators):
                    return offer
            raise Unreachable("not offered with every key list yet")

        offer: QuestionOffer = await persist(offered, until)
        schedule = offer.signed.question.schedule
        for described, listed in zip(offer.signed.question.aggregators, offer.key_lists, strict=True):
            key = key_for(listed.key_list, schedule.opens(0), schedule.closes(0))
            request, opening = new_session(
                described, key, self.identity, on_the_hour(schedule.end + 600), SystemRandom()
            )
            [reply] = await persist(lambda r=request, d=described: self.transport.open_sessions(d, [r]), until)
            assert isinstance(reply, SessionAccepted), reply
            self.secrets.append(opening.finish(reply))
        return offer

    async def answer(self, window: Window) -> None:
        """Send one answer until every aggregator has given a receipt."""
        prio3, device = prio3_for(window), key_digest(self.identity.certificate)
        nonce = bytes(new_report_id(window.window_id, device, SystemRandom()))
        one_hot = [int(value == self.truth) for value in range(window.values + 1)]
        public, parts = prio3.shard_encoded(context_of(window), one_hot, nonce, secrets.token_bytes(prio3.rand_size))
        report_id = ReportId(nonce)
        for position, part in enumerate(parts):
            key, self.secrets[position] = self.secrets[position].window_key, self.secrets[position].moved_on()
            sealed = seal_instalment(key, window.window_id, report_id, 0, position, public, part)
            await persist(lambda p=position, s=sealed: self._upload(window, p, s), window.round_one_closes)

    async def _upload(self, window: Window, position: int, sealed: Instalment) -> None:
        [answer] = await self.transport.upload(window, position, [sealed])
        if not isinstance(answer, Receipt):
            assert not answer.reason.final, answer.reason
            raise Unreachable(answer.reason.label)


async def killed_in(window: Window, deployment: LiveDeployment, victims: tuple[int, ...], failpoint: str = "") -> None:
    """Kill aggregators while a window is open; armed, the first ends itself once more after it has closed."""
    await asyncio.sleep(max(0.0, window.round_one_opens + 0.5 - time.time()))
    for victim in victims:
        deployment.children[victim].kill()
    await asyncio.gather(*(revived(deployment, victim, failpoint) for victim in victims))
    if failpoint:
        async with asyncio.timeout(60 * pace()):
            while deployment.children[victims[0]].running:
                await asyncio.sleep(0.05)
        await revived(deployment, victims[0])


KILLS: dict[int, tuple[tuple[int, ...], str]] = {
    0: ((0,), ""),
    1: ((1,), "release.after_draw_store"),
    2: ((0,), "leader.after_open"),
    3: ((1,), "helper.after_sign_store"),
    4: ((0, 1), ""),
}
"""The window in which somebody is killed: who, and where they end themselves when it is released."""
WINDOWS = 6
if not NIGHTLY:
    WINDOWS, KILLS = 3, {0: ((0,), "leader.after_open"), 1: ((1,), "helper.after_sign_store")}


def ends_of(position: int) -> list[int]:
    """Return how an aggregator ends before it is told to."""
    ends: list[int] = []
    for victims, failpoint in KILLS.values():
        ends += [KILLED] if position in victims else []
        ends += [ENDED_ITSELF] if failpoint and position == victims[0] else []
    return ends


async def test_a_question_survives_the_kill_of_everybody(tmp_path: Path) -> None:
    deployment = LiveDeployment(tmp_path, 2, name="standing", largest_epsilon=100)
    try:
        await asyncio.to_thread(deployment.start_all)
        question = standing_question(deployment, WINDOWS)
        devices = [Device(deployment, truth) for truth in TRUTHS]
        await asyncio.gather(*(device.join(question.schedule.first) for device in devices))
        for index in range(question.schedule.windows):
            await run_window(deployment, window_at(question, index), devices, *KILLS.get(index, ((), "")))
        records = await finished(deployment, question)
    finally:
        await asyncio.to_thread(deployment.stop_all)

    check_chain(records)
    for record in records:
        assert all(abs(cell.raw - count) <= MOST_NOISE for cell, count in zip(record.cells, COUNTS, strict=True))
        assert record.participants is not None
        assert abs(record.participants.raw - len(TRUTHS)) <= MOST_NOISE
    for position in range(2):
        assert deployment.children[position].ends == [*ends_of(position), 0]
    assert deployment.troubles() == []


async def run_window(
    deployment: LiveDeployment, window: Window, devices: list[Device], victims: tuple[int, ...], failpoint: str
) -> None:
    """Let every device answer a window in which somebody may be killed."""

    async def answered() -> None:
        await asyncio.sleep(max(0.0, window.round_one_opens + 0.2 - time.time()))
        await asyncio.gather(*(device.answer(window) for device in devices))

    await asyncio.gather(answered(), killed_in(window, deployment, victims, failpoint))


async def finished(deployment: Deployed, question: Question) -> list[ReleaseRecord]:
    """Wait until every window has ended everywhere; return the records, the same bytes at everybody."""
    records: list[ReleaseRecord] = []
    for index in range(question.schedule.windows):
        window = window_at(question, index)
        statuses = await deployment.ended(window, timeout_s=60)
        assert [status.state for status in statuses] == [WindowState.RELEASED] * 2, (index, statuses)
        answers: list[ReleaseAnswer] = [await deployment.release(window, position) for position in range(2)]
        assert answers[0] == answers[1]
        records.append(decode_record(answers[0].record))
    return records


def check_chain(records: list[ReleaseRecord]) -> None:
    """Every record names the one before; no window is missing."""
    for index, record in enumerate(records):
        assert record.chain is not None
        before = None if index == 0 else records[index - 1].digest
        assert (record.chain.previous, record.chain.missing) == (before, ())
