"""Delays grow, stay under the cap and differ from device to device."""

import asyncio

import pytest
from fleetcount_client.timer import Backoff, ManualTimer, Retry, sleep_until, uniform_seconds
from fleetcount_mechanisms.randomness import SeededRandom


def test_a_delay_lies_between_half_and_the_whole_of_its_step() -> None:
    backoff = Backoff(Retry(base_s=1, cap_s=16), SeededRandom(1))

    delays = [backoff.next_delay() for _ in range(8)]

    for delay, whole in zip(delays, [1, 2, 4, 8, 16, 16, 16, 16], strict=True):
        assert whole / 2 <= delay < whole


def test_the_ten_thousandth_attempt_still_has_a_delay() -> None:
    backoff = Backoff(Retry(base_s=0.01, cap_s=60), SeededRandom(1))

    assert all(0 < backoff.next_delay() < 60 for _ in range(10_000))


def test_two_devices_do_not_return_in_step() -> None:
    first, second = (Backoff(Retry(), SeededRandom(seed)) for seed in (1, 2))

    assert [first.next_delay() for _ in range(3)] != [second.next_delay() for _ in range(3)]


@pytest.mark.parametrize(("base", "cap"), [(0, 1), (2, 1), (-1, 1), (1, 10**6)])
def test_a_retry_outside_its_range_is_refused(base: float, cap: float) -> None:
    with pytest.raises(ValueError, match="base_s"):
        Retry(base_s=base, cap_s=cap)


def test_a_random_time_covers_its_range_evenly() -> None:
    source = SeededRandom(3)

    times = [uniform_seconds(source, 10) for _ in range(4000)]

    assert min(times) < 0.1
    assert 9.9 < max(times) < 10
    assert 4.7 < sum(times) / len(times) < 5.3


async def test_the_manual_clock_wakes_sleepers_in_order_and_ends_at_the_last() -> None:
    timer, woken = ManualTimer(100.0), []

    async def sleeper(moment: float) -> None:
        await sleep_until(timer, moment)
        woken.append((moment, timer.now()))

    await asyncio.gather(*(sleeper(moment) for moment in (500.0, 101.0, 250.5)))

    assert woken == [(101.0, 101.0), (250.5, 250.5), (500.0, 500.0)]


def test_a_hint_is_heeded_once_with_jitter_and_no_longer_than_five_minutes() -> None:
    backoff = Backoff(Retry(base_s=0.5, cap_s=1.0), SeededRandom(3))
    delays = []
    for said in (20.0, 20.0, 10_000.0):
        backoff.heed(said)
        delays.append(backoff.next_delay())
    backoff.heed(0.0)

    assert all(20 <= delay < 40 for delay in delays[:2])
    assert delays[0] != delays[1]
    assert 300 <= delays[2] < 600
    assert backoff.next_delay() <= 1.0
