"""A month of hourly windows: what disturbs some changes no number of the others, and no noise is drawn twice."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.host.keys import KeyRing
from fleetcount_mechanisms.noise import NoiseLaw
from fleetcount_protocol.channel.hpke import HpkeKeyPair
from fleetcount_protocol.question.fields import Schedule
from fleetcount_protocol.question.orders import OrderAction
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.release.record import ReleaseRecord, decode_record
from fleetcount_protocol.window.fields import HpkeKey, Release, ReleaseKind

from tests.aggregator.roles.test_handover import order
from tests.support.aggregators import START, Network, answer_all

HOUR_S = 3600
VALUES = 4
LIMITS = Limits(smallest_min_batch_size=2, give_up_s=600, first_retry_s=1, longest_retry_s=60)


class WindowNoise:
    """Noise that follows from the window alone, and how often it was drawn for each."""

    def __init__(self) -> None:
        self.index = 0
        self.draws: Counter[int] = Counter()

    def draw(self, law: NoiseLaw, count: int) -> list[int]:
        """Return the noise of the present window."""
        del law
        self.draws[self.index] += 1
        return [(self.index * 31 + place * 7) % 11 - 5 for place in range(count)]


def coins(index: int) -> list[tuple[int, int]]:
    """Return (round one, round two) of each device in a window."""
    return [(0, 1 + index % VALUES), (2, 2), (0, 1 + (index // 3) % VALUES), (0, 0), (index % 5,) * 2]


async def change_keys(network: Network, position: int) -> None:
    """Give an aggregator a new sealing key in the place of its only one, and to devices and others its new list."""
    seat, pair = network.seats[position], HpkeKeyPair.generate(2)
    seat.keys = KeyRing({2: pair})
    seat.aggregator = replace(seat.aggregator, hpke_keys=(HpkeKey(key_id=2, public_key=pair.public_key),))
    await network.stop(position)
    await network.start(position)


async def month(network: Network, noise: WindowNoise, question: Question, disturb: bool) -> dict[int, ReleaseRecord]:
    """Ask every window, disturbed or not; return the records by index."""
    windows, records = question.schedule.windows, dict[int, ReleaseRecord]()
    at = {
        windows // 4 - 2: (OrderAction.PAUSE, windows // 4),
        windows // 4 - 1: (OrderAction.RESUME, windows // 4 + 2),
        windows - windows // 6 - 1: (OrderAction.STOP, windows - windows // 6),
    }
    dies = {windows // 3: ("release.after_draw_store", 1), windows // 2: ("leader.after_commitments", 0)}
    for index in range(windows):
        window = window_at(question, index)
        await network.advance_to(window.round_one_opens - 600)
        if disturb and index in at:
            action, start = at[index]
            number = 1 + list(at).index(index)
            signed = order(network, question, number, action, start)
            await network.core(0).context.questions.note_order(
                network.core(0).context.questions[question.question_id], signed
            )
        if disturb and index == windows // 5:
            await change_keys(network, 1)
        if disturb and index in dies:
            failpoint, side = dies[index]
            await network.stop(side)
            await network.start(side, failpoint)
        await network.come_to(window)
        if window.window_id not in network.core(0).context.windows:
            continue
        noise.index = index
        await answer_all(network, window, coins(index))
        await network.run_to_the_end(window)
        answers = [await network.core(position).service.release(window.window_id) for position in range(2)]
        assert answers[0].record == answers[1].record
        records[index] = decode_record(answers[0].record)
    return records


@pytest.mark.parametrize("windows", [18, pytest.param(720, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])])
async def test_a_disturbed_month_has_the_records_of_an_undisturbed_one(windows: int) -> None:
    schedule = Schedule(
        first=START + HOUR_S, every_s=HOUR_S, windows=windows, round_one_s=600, round_two_s=600, expiry_s=86_400
    )
    release = Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1, 100), level=Fraction(19, 20))
    noises = WindowNoise(), WindowNoise()
    calm, disturbed = (Network(2, noise=noise, limits=LIMITS) for noise in noises)
    for seat, other in zip(calm.seats, disturbed.seats, strict=True):
        other.signing_key, other.aggregator, other.keys = seat.signing_key, seat.aggregator, seat.keys
    found = []
    for network, noise in zip((calm, disturbed), noises, strict=True):
        await network.start_all()
        question = await network.stand(schedule=schedule, values=VALUES, release=release)
        found.append(await month(network, noise, question, network is disturbed))
        await network.stop_all()
    plain, shaken = found
    pause, stop = range(windows // 4, windows // 4 + 2), windows - windows // 6

    assert list(plain) == list(range(windows))
    assert list(shaken) == [index for index in range(stop) if index not in pause]
    for index, record in shaken.items():
        assert record == replace(plain[index], chain=record.chain, released_at=record.released_at)
        if index < pause.start:
            assert record == plain[index]
    after = shaken[pause.stop].chain
    assert after is not None
    assert [(one.index, one.reason) for one in after.missing] == [(index, "paused") for index in pause]
    # Each aggregator drew once a window, also the one that died with its share stored.
    assert set(noises[0].draws.values()) == set(noises[1].draws.values()) == {2}
