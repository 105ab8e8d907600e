"""A release of several zooms at real aggregators: one report a device, the right sums, fresh noise on every number."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.release.noise import SystemNoise
from fleetcount_aggregator.release.record import build_record, same_record
from fleetcount_mechanisms.noise import TwoSidedNoise
from fleetcount_mechanisms.noise_draws import draw_noise
from fleetcount_mechanisms.randomness import SeededRandom
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_mechanisms.statement import ledger_loss_of
from fleetcount_protocol.errors import QuestionError, VerificationFailed
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.fields import Participants
from fleetcount_protocol.release.commitments import check_range, noise_bound
from fleetcount_protocol.window.domain import Bins, Numbers, SquareGrid
from fleetcount_protocol.window.fields import CoarserLevel, LevelKind, Mode, Release, ReleaseKind
from fleetcount_protocol.window.window import opened_ranges

from tests.aggregator.release.test_chain import COINS, DIFFERENCE, records, run_window, standing
from tests.aggregator.release.test_modes import answer_whole, release, start
from tests.support.aggregators import Network, answer_all
from tests.support.protocol_samples import at_zooms
from tests.support.released import ONCE

GRID = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(100), columns=4, rows=2)
ONE_ZOOM = Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1, 2), level=Fraction(19, 20))
ZOOMED = at_zooms(ONE_ZOOM, 2)
DIRECT = {"values": 8, "domain": GRID, "mode": Mode.DIRECT, "mechanism": None, "release": ZOOMED}
TRUTHS = [1, 2, 6, 6, 3, 8, 0]
"""Squares 1, 2 and 6 lie in the left half, 3 and 8 in the right one; one device is nowhere."""
COUNTS = [1, 1, 1, 0, 0, 2, 0, 1, 4, 2]


def one_hot(truth: int) -> list[int]:
    return [int(place == truth) for place in range(9)]


@pytest.mark.parametrize("parties", [2, 3])
async def test_larger_squares_count_the_reports_of_the_squares_inside_them(parties: int) -> None:
    network, window = await start(parties, **DIRECT)
    await answer_whole(network, window, [one_hot(truth) for truth in TRUTHS])

    record = await release(network, window)

    assert [cell.raw for cell in record.cells] == COUNTS
    assert [cell.label for cell in record.cells[-2:]] == ["0,0/2", "1,0/2"]
    assert record.statement[0].epsilon == Decimal("2.00000"), "two numbers of each of two zooms"


async def test_bins_together_count_the_reports_of_their_neighbours() -> None:
    bins = Bins(edges=tuple(map(Fraction, range(0, 90, 10))), open_above=False, unit="km/h")
    network, window = await start(**(DIRECT | {"domain": bins, "release": at_zooms(ONE_ZOOM, 3)}))
    await answer_whole(network, window, [one_hot(truth) for truth in TRUTHS])

    record = await release(network, window)

    assert [cell.raw for cell in record.cells] == [*COUNTS[:8], 2, 1, 2, 1, 3, 3]
    assert [cell.label for cell in record.cells[-2:]] == ["[0, 40) km/h", "[40, 80) km/h"]
    assert record.statement[0].epsilon == Decimal("3.00000"), "two numbers of each of three zooms"


@pytest.mark.parametrize("parties", [2, 3])
async def test_a_weighted_sum_is_that_of_the_reports_points_from_their_middle(parties: int) -> None:
    numbers = Numbers(low=Fraction(0), high=Fraction(70), values=8, unit="km/h")
    weighted = CoarserLevel(kind=LevelKind.WEIGHTED, noise=Fraction(1, 14))
    total = CoarserLevel(kind=LevelKind.TOTAL, noise=Fraction(1))
    network, window = await start(
        parties, **(DIRECT | {"domain": numbers, "release": replace(ONE_ZOOM, coarser=(weighted, total))})
    )
    # Every sum of shares modulo the prime is taken by its weight; the sum is below 0.
    await answer_whole(network, window, [one_hot(truth) for truth in TRUTHS])

    record = await release(network, window)

    assert [cell.raw for cell in record.cells] == [*COUNTS[:8], -7 - 5 + 3 + 3 - 3 + 7, 6]
    assert record.cells[8].label == "weighted sum"
    assert record.cells[8].low < -2 < record.cells[8].high
    assert record.cells[8].high == -4 - record.cells[8].low
    assert record.statement[0].epsilon == Decimal("2.00000"), "two cells by 1, the weighted sum by 14"


async def test_a_weighted_sum_far_below_0_is_opened_and_one_that_no_reports_add_up_to_is_not() -> None:
    network = Network(2, limits=Limits(smallest_min_batch_size=2, largest_epsilon=Decimal(400)))
    await network.start_all()
    weighted = CoarserLevel(kind=LevelKind.WEIGHTED, noise=Fraction(10))
    asked = DIRECT | {
        "domain": Numbers(low=Fraction(0), high=Fraction(70), values=8, unit="km/h"),
        "release": replace(ONE_ZOOM, noise_epsilon=Fraction(10), coarser=(weighted,)),
        "round_two_closes": network.window().round_one_closes,
    }
    window = await network.ask(**asked)
    await answer_whole(network, window, [one_hot(1)] * 12)

    record = await release(network, window)

    assert record.cells[8].raw == -12 * 7
    bound = noise_bound(TwoSidedNoise(Fraction(10)), 2)
    assert bound < 12 * 7
    (_, _, cells), (_, _, each) = opened_ranges(window)
    check_range([-84 - bound], bound=bound, reports=12, each=each)
    for number, limits in ((-85 - bound, each), (-84, cells)):
        with pytest.raises(VerificationFailed):
            check_range([number], bound=bound, reports=12, each=limits)


async def test_both_rounds_of_a_sampled_report_count_at_every_zoom() -> None:
    die = SamplingDie.uniform(Fraction(1, 4), 8)
    network, window = await start(values=8, domain=GRID, mechanism=die, release=ZOOMED)
    # (0, truth) is a sampled answer; (f, f) is none and moves nothing at any zoom.
    await answer_all(network, window, [*((0, truth) for truth in TRUTHS), (5, 5), (7, 7)])

    record = await release(network, window)

    assert [cell.raw for cell in record.cells] == COUNTS
    assert [cell.estimate for cell in record.cells] == [4 * one for one in COUNTS]


async def test_every_aggregator_adds_a_draw_of_its_own_to_every_number_of_every_zoom() -> None:
    network, window = await start(3, **DIRECT)
    drawn = []
    for position in range(3):
        network.core(position).context.host.noise = SystemNoise(SeededRandom(position))
        drawn.append(draw_noise(TwoSidedNoise(Fraction(1, 2)), SeededRandom(position), 10))
    await answer_whole(network, window, [one_hot(truth) for truth in TRUTHS])

    record = await release(network, window)

    noised = [true + sum(noises) for true, *noises in zip(COUNTS, *drawn, strict=True)]
    assert [cell.raw for cell in record.cells] == noised
    assert noised[8] != sum(noised[place] for place in (0, 1, 4, 5)), "the sums of zooms disagree by their noise"


async def test_a_window_of_a_question_opens_its_zooms_and_behind_them_the_participants() -> None:
    network, question = await standing(domain=GRID, release=ZOOMED, participants=Participants.NOISED)
    await run_window(network, question, 0)

    (record,) = (await records(network, question)).values()

    assert [cell.raw for cell in record.cells] == [*DIFFERENCE, 3, 0]
    assert record.participants is not None
    assert record.participants.raw == len(COINS)
    assert "all releases of 2 zooms each" in record.statement[0].sentence


async def test_the_ledger_of_an_aggregator_is_debited_for_every_zoom() -> None:
    tight = Limits(smallest_min_batch_size=2, largest_epsilon=Fraction(3, 2))
    network = Network(2, limits=tight)
    await network.start_all()
    direct = {**DIRECT, "round_two_closes": network.window().round_one_closes}

    with pytest.raises(QuestionError, match=r"epsilon"):
        await network.ask(**direct)
    window = await network.ask(**{**direct, "release": replace(ZOOMED, coarser=())})
    assert ledger_loss_of(window.design).epsilon == Decimal("1.00000")


async def test_what_several_zooms_tell_is_not_computed_and_so_refused_under_a_limit() -> None:
    network = Network(2, limits=Limits(smallest_min_batch_size=2, largest_posterior=Fraction(99, 100), give_up_s=10))
    await network.start_all()
    window = await network.ask(**{**DIRECT, "round_two_closes": network.window().round_one_closes})
    await answer_whole(network, window, [one_hot(truth) for truth in TRUTHS])

    await network.run_to_the_end(window)

    status = await network.core(0).service.release(window.window_id)
    assert status.state is WindowState.ABORTED


def test_records_that_differ_in_a_larger_square_do_not_agree() -> None:
    window = Network(2).window(**{**DIRECT, "round_two_closes": Network(2).window().round_one_closes})
    record, other = (build_record(window, [*COUNTS[:-1], last], window.round_two_closes, ONCE) for last in (2, 3))

    assert same_record(record, record)
    assert not same_record(record, other)
