"""One question after another for as long as one likes: what an aggregator holds does not grow."""

import gc
import os
from dataclasses import replace
from pathlib import Path

import pytest
from fleetcount_aggregator.storage.session_rows import forget_sessions

from tests.support.aggregators import START, Network, answer_all

COINS = [(0, 1), (0, 2), (3, 3)]
EVERY_S = 150
"""Between two questions, a device's session lasting for some three hundred of them."""

KEPT_S = 2 * EVERY_S
"""How long digests, records and what budgets add up are kept."""


def held(network: Network, directory: Path) -> tuple[int, ...]:
    """Return how much of everything that might grow both aggregators have, in memory and in files."""
    counts = [len(list(directory.iterdir()))]
    for position in range(2):
        core = network.core(position)
        windows, peers = core.context.windows, core.context.peers
        counts += [len(one) for one in (windows, windows.states, windows.live, windows.due, windows.ended)]
        counts += [len(one) for one in (windows.purged, windows._ended_cache, peers._last_contact)]
        counts += [len(windows.outcomes._last), len(windows.sessions.live), len(core.context.questions)]
        counts += [len(core.scheduler._delivered), len(windows.store.data_keys._keys)]
    return tuple(counts)


def resident_mib() -> float:
    """Return the memory of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def soak(directory: Path, questions: int, settled: int) -> tuple[float, list[tuple[int, ...]]]:
    """Ask questions one after another; return by how many MiB memory grew once it had settled, and counts.

    An hourly task of the process, which does not run here, forgets sessions.
    """
    network = Network(2, directory=directory)
    network.limits = replace(network.limits, keep_digests_s=KEPT_S, keep_records_s=KEPT_S, budget_period_s=KEPT_S)
    await network.start_all()
    before, counts = 0.0, []
    for number in range(questions):
        opens = START + 10 + EVERY_S * number
        window = await network.ask(
            signal=f"Vehicle.Soak{number}",
            round_one_opens=opens,
            round_one_closes=opens + 10,
            round_two_closes=opens + 20,
            expiry=opens + EVERY_S,
        )
        await network.advance_to(opens)
        await network.look_after_all()
        await answer_all(network, window, COINS, offset=number % 200)
        await network.run_to_the_end(window)
        await network.advance_to(opens + EVERY_S - 10)
        await network.look_after_all()
        for context in (network.core(position).context for position in range(2)):
            await context.store.write_unfenced(forget_sessions, network.clock.now())
        if number == settled:
            before = resident_mib()
        if number >= settled:
            counts.append(held(network, directory))
    grown = resident_mib() - before
    await network.stop_all()
    return grown, counts


@pytest.fixture
def _small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is kept up to a number be full after some questions; from then on it must not grow."""
    monkeypatch.setattr("fleetcount_aggregator.memory.windows._MOST_ENDED", 2)
    monkeypatch.setattr("fleetcount_aggregator.memory.windows._OUTCOMES", 2)
    monkeypatch.setattr("fleetcount_aggregator.memory.sessions.CACHED", 16)


@pytest.mark.usefixtures("_small_caches")
async def test_a_few_questions_leave_nothing_that_grows(tmp_path: Path) -> None:
    _, counts = await soak(tmp_path, questions=9, settled=6)

    assert max(counts) == min(counts), counts


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("_small_caches")
async def test_an_hour_of_a_question_every_two_and_a_half_seconds(tmp_path: Path) -> None:
    grown, counts = await soak(tmp_path, questions=1_440, settled=340)

    assert max(counts) == min(counts), (min(counts), max(counts))
    assert grown < 2, grown  # Two KiB a question: its record in memory, or its sessions in the store, are more.
