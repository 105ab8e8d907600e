"""A record that would tell more of a person than an operator allows is not signed, and everybody says why."""

from dataclasses import replace
from fractions import Fraction

import pytest
from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.host.states import AbortReason
from fleetcount_aggregator.storage.rows import read_ledger, read_window
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.fields import Schedule
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.release.chain import MissingWindow
from fleetcount_protocol.release.record import decode_record
from fleetcount_protocol.window.domain import Bins, Categories, Numbers, ValueDomain
from fleetcount_protocol.window.fields import CoarserLevel, LevelKind, Mode, Release, ReleaseKind
from fleetcount_protocol.window.window import Window, prio3_for

from tests.aggregator.release.test_modes import answer_whole
from tests.support.aggregators import START, Network, TestDevice
from tests.support.protocol_samples import crossed

SCHEDULE = Schedule(first=START + 120, every_s=60, windows=3, round_one_s=10, round_two_s=0, expiry_s=86_400)
RELEASE = Release(kind=ReleaseKind.ONE_SIDED, noise_epsilon=Fraction(1), level=Fraction(19, 20), thresholds=(3, 3))


async def stood(*limits: Fraction | None) -> tuple[Network, Question]:
    """Return a network in which every aggregator has a limit of its own, and a one-sided question of two values."""
    network = Network(len(limits), limits=Limits(smallest_min_batch_size=2, allow_one_sided=True))
    await network.start_all()
    for position, limit in enumerate(limits):
        context = network.core(position).context
        context.host.limits = replace(context.host.limits, largest_posterior=limit)
    question = await network.stand(values=2, mode=Mode.DIRECT, mechanism=None, schedule=SCHEDULE, release=RELEASE)
    return network, question


async def answer(network: Network, question: Question, index: int, counts: tuple[int, int]) -> Window:
    window = window_at(question, index)
    await network.advance_to(window.round_one_opens - 5)
    await network.look_after_all()
    await network.advance_to(window.round_one_opens)
    values = [1] * counts[0] + [2] * counts[1]
    for number, value in enumerate(values, start=100 * index):
        device = TestDevice(network, window, number)
        await device.open_sessions()
        await device.send(device.seal(0, *device.raw([int(value == one) for one in range(3)])))
    await network.run_to_the_end(window)
    return window


def states(network: Network, window: Window) -> set[WindowState]:
    return {network.core(position).context.windows.states[window.window_id] for position in range(len(network.seats))}


@pytest.mark.parametrize("side", [0, 1])
async def test_a_telling_record_is_refused_by_whichever_aggregator_has_a_limit(side: int) -> None:
    limits: list[Fraction | None] = [None, None]
    limits[side] = Fraction(7, 10)
    network, question = await stood(*limits)

    even = await answer(network, question, 0, (4, 4))
    telling = await answer(network, question, 1, (8, 0))
    after = await answer(network, question, 2, (3, 5))

    assert states(network, even) == {WindowState.RELEASED}
    assert states(network, telling) == {WindowState.ABORTED}
    row = await network.core(0).context.store.read(read_window, telling.window_id)
    assert row is not None
    assert row.abort_reason == AbortReason.POSTERIOR_TOO_LARGE.value
    released = await network.core(0).service.release(after.window_id)
    chain = decode_record(released.record).chain
    assert chain is not None
    assert chain.missing == (MissingWindow(index=1, reason="posterior_too_large"),)
    assert len(await network.core(0).context.store.read(read_ledger)) == 3, "what was opened stays charged"


async def test_without_a_limit_nothing_is_measured() -> None:
    network, question = await stood(None, None)

    assert states(network, await answer(network, question, 0, (8, 0))) == {WindowState.RELEASED}


async def test_two_windows_together_may_tell_what_neither_does() -> None:
    network, question = await stood(Fraction(93, 100), None)

    first = await answer(network, question, 0, (8, 1))
    second = await answer(network, question, 1, (8, 1))

    assert states(network, first) == {WindowState.RELEASED}
    assert states(network, second) == {WindowState.ABORTED}


CODES = Categories(names=("P0301", "P0420", "U0100", "B1000"), most=2)
SPEEDS, COLOURS = Bins(edges=(Fraction(0), Fraction(30), Fraction(60)), open_above=False, unit="km/h"), ("red", "blue")
TABLE = crossed(SPEEDS, Categories(names=COLOURS))
POINTS = Numbers(low=Fraction(0), high=Fraction(70), values=8, unit="km/h")


def beside(*levels: CoarserLevel) -> Release:
    return Release(
        kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1, 2), level=Fraction(19, 20), coarser=tuple(levels)
    )


HALF = Fraction(1, 2)
MARGINS = beside(*(CoarserLevel(kind=LevelKind.MARGIN, number=one, noise=HALF) for one in (1, 2)))
MEAN = beside(CoarserLevel(kind=LevelKind.WEIGHTED, noise=Fraction(1, 14)))
HOLDERS = beside(CoarserLevel(kind=LevelKind.TOTAL, noise=Fraction(1)))


@pytest.mark.parametrize(
    ("domain", "asked", "even", "telling", "limit"),
    [
        (CODES, HOLDERS, [(1, 1, 0, 0), (0, 0, 1, 1)] * 4, [(0, 1, 0, 0)] * 8, Fraction(6, 10)),
        (TABLE, MARGINS, [1, 2, 3, 4] * 2, [1, 1, 2, 2] * 2, Fraction(7, 10)),
        (POINTS, MEAN, [1, 2, 3, 4, 5, 6, 7, 8], [8] * 8, Fraction(3, 10)),
    ],
    ids=["sets", "margins", "mean"],
)
async def test_sets_margins_and_means_are_signed_below_the_limit_and_not_above(
    domain: ValueDomain, asked: Release, even: list[object], telling: list[object], limit: Fraction
) -> None:
    for truths, state in ((even, WindowState.RELEASED), (telling, WindowState.ABORTED)):
        network = Network(2, limits=Limits(smallest_min_batch_size=2, largest_posterior=limit))
        await network.start_all()
        window = await network.ask(
            domain=domain,
            signal="Vehicle.Speed",
            mode=Mode.DIRECT,
            mechanism=None,
            release=asked,
            round_two_closes=network.window().round_one_closes,
        )
        circuit = prio3_for(window).circuit
        await answer_whole(network, window, [circuit.encode(truth) for truth in truths])
        await network.run_to_the_end(window)

        assert states(network, window) == {state}
