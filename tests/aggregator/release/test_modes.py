"""Every mode and release kind from reports to record, the noise drawn once, and what never leaves an aggregator."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.release.noise import SystemNoise
from fleetcount_aggregator.release.record import build_record, release_time, same_record
from fleetcount_aggregator.storage.rows import read_batches, read_ledger, read_rejections
from fleetcount_mechanisms.answers import Side
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw
from fleetcount_mechanisms.noise_draws import draw_noise
from fleetcount_mechanisms.randomness import SeededRandom, SystemRandom
from fleetcount_mechanisms.responses import (
    AsymmetricVector,
    Flips,
    KaryResponse,
    Mangat,
    MangatVector,
    OptimizedUnaryEncoding,
)
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_mechanisms.statement import ledger_loss_of
from fleetcount_protocol.errors import QuestionError, RejectReason
from fleetcount_protocol.messages import Receipt, ReleaseAnswer, WindowState
from fleetcount_protocol.release.record import ReleaseRecord, decode_record
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.fields import CoarserLevel, LevelKind, Mode, Release, ReleaseKind, UploadStyle
from fleetcount_protocol.window.window import Window, prio3_for

from tests.support.aggregators import Network, NoNoise, TestDevice, answer_all
from tests.support.released import ONCE

LEVEL = Fraction(19, 20)
NOISED = Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1), level=LEVEL)


async def answer_whole(network: Network, window: Window, measurements: Sequence[Sequence[int]]) -> None:
    """Let a device a measurement answer in one piece."""
    await network.advance_to(window.round_one_opens)
    for number, measurement in enumerate(measurements):
        device = TestDevice(network, window, number)
        await device.open_sessions()
        answers = await device.send(device.seal(0, *device.raw(measurement)))
        assert all(isinstance(answer, Receipt) for answer in answers), answers


async def release(network: Network, window: Window) -> ReleaseRecord:
    await network.run_to_the_end(window)
    answers = [await network.core(p).service.release(window.window_id) for p in range(len(network.seats))]
    assert {answer.state for answer in answers} == {WindowState.RELEASED}, answers
    assert len({answer.record for answer in answers}) == 1
    return decode_record(answers[0].record)


async def start(count: int = 2, **changes: object) -> tuple[Network, Window]:
    network = Network(count, limits=Limits(smallest_min_batch_size=2, allow_exact_release=True, allow_one_sided=True))
    await network.start_all()
    if changes.get("mode") in (Mode.RESPONSE, Mode.DIRECT):
        changes.setdefault("round_two_closes", network.window().round_one_closes)
    return network, await network.ask(**changes)


async def test_one_envelope_carries_both_rounds() -> None:
    network, window = await start(values=3, upload_style=UploadStyle.ONE_ENVELOPE)
    await answer_whole(network, window, [[1, 0, 0, 0, 0, 1, 0, 0], [0, 0, 1, 0, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0, 0, 1]])

    record = await release(network, window)

    assert [cell.raw for cell in record.cells] == [1, 0, 1]


@pytest.mark.parametrize("count", [2, 5])
async def test_responses_are_counted_with_their_baseline(count: int) -> None:
    network, window = await start(count, values=1, mode=Mode.RESPONSE, mechanism=Mangat(Fraction(1, 2)), release=NOISED)
    await answer_whole(network, window, [[0, 1], [0, 1], [1, 0], [0, 1]])

    record = await release(network, window)

    assert (record.baseline_raw, record.cells[0].raw) == (1, 3)
    assert record.cells[0].estimate == 2, "(3 - 4/2) / (1 - 1/2)"


async def test_a_release_with_gaussian_noise_is_drawn_opened_and_recorded_as_such() -> None:
    """The coins alone promise epsilon ln 2, less than such noise at delta 1e-9: the loss is pure, and added up."""
    gaussian = Release(kind=ReleaseKind.GAUSSIAN, noise_epsilon=None, noise_variance=Fraction(9), level=LEVEL)
    network, window = await start(
        values=2, mode=Mode.RESPONSE, mechanism=KaryResponse(Fraction(1, 2), 2), release=gaussian
    )
    drawn = []
    for position in range(2):
        network.core(position).context.host.noise = SystemNoise(SeededRandom(position))
        drawn.append(draw_noise(GaussianNoise(Fraction(9)), SeededRandom(position), 3))
    await answer_whole(network, window, [[0, 1, 0], [0, 0, 1], [0, 0, 1]])

    record = await release(network, window)

    opened = [record.baseline_raw, *(cell.raw for cell in record.cells)]
    assert opened == [true + one + two for true, one, two in zip((0, 1, 2), *drawn, strict=True)]
    assert {(law.law, law.parameters["variance"]) for law in record.noise} == {("discrete Gaussian", Fraction(9))}
    assert record.statement[0].epsilon == Decimal("0.69315")
    assert ledger_loss_of(window.design).pure


async def test_a_gaussian_release_is_taken_where_its_delta_fits() -> None:
    gaussian = Release(kind=ReleaseKind.GAUSSIAN, noise_epsilon=None, noise_variance=Fraction(10**6), level=LEVEL)
    network = Network(2, limits=Limits(smallest_min_batch_size=2, total_delta=Fraction(1, 10**10)))
    await network.start_all()

    with pytest.raises(QuestionError, match=r"delta"):
        await network.ask(values=3, release=gaussian)

    roomy = Network(2, limits=Limits(smallest_min_batch_size=2))
    await roomy.start_all()
    window = await roomy.ask(values=3, release=gaussian)
    assert not ledger_loss_of(window.design).pure


async def test_k_ary_responses_are_one_hot() -> None:
    network, window = await start(
        values=2, mode=Mode.RESPONSE, mechanism=KaryResponse(Fraction(3, 4), 2), release=NOISED
    )
    await answer_whole(network, window, [[0, 1, 0], [0, 0, 1], [0, 0, 1]])
    cheat = TestDevice(network, window, 100)
    await cheat.open_sessions()
    await cheat.send(cheat.seal(0, *cheat.raw([0, 1, 1])))

    record = await release(network, window)

    assert (record.baseline_raw, [cell.raw for cell in record.cells]) == (0, [1, 2])
    assert await network.core(0).context.store.read(read_rejections, window.window_id) == {
        RejectReason.INVALID_PROOF: 1
    }


@pytest.mark.parametrize("total", [False, True])
async def test_sets_are_counted_by_category_and_by_holders_and_a_set_too_large_is_refused(*, total: bool) -> None:
    domain = Categories(names=("P0301", "P0420", "U0100", "B1000"), most=2)
    holders = (CoarserLevel(kind=LevelKind.TOTAL, noise=Fraction(1)),) if total else ()
    released = replace(NOISED, coarser=holders)
    network, window = await start(3, domain=domain, mode=Mode.DIRECT, mechanism=None, release=released)
    circuit = prio3_for(window).circuit
    told = [(1, 0, 0, 0), (1, 1, 0, 0), (0, 0, 0, 0), (0, 1, 0, 1)]
    await answer_whole(network, window, [circuit.encode(one) for one in told])
    cheat = TestDevice(network, window, 100)
    await cheat.open_sessions()
    await cheat.send(cheat.seal(0, *cheat.raw([1, 1, 1, 0, *circuit.encode(told[1])[4:]])))

    record = await release(network, window)

    assert [cell.raw for cell in record.cells] == [2, 2, 0, 1, 3][: 4 + total]
    assert [cell.label for cell in record.cells] == [*domain.names, "told any"][: 4 + total]
    assert await network.core(0).context.store.read(read_rejections, window.window_id) == {
        RejectReason.INVALID_PROOF: 1
    }


async def test_vector_mangat_counts_bits_over_participants() -> None:
    mechanism = MangatVector(Fraction(1, 4), 3)
    network, window = await start(values=3, mode=Mode.RESPONSE, mechanism=mechanism, release=NOISED)
    prio3_bits = [[1, 1, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1], [1, 0, 0, 0]]
    await answer_whole(network, window, prio3_bits)

    record = await release(network, window)

    assert (record.baseline_raw, [cell.raw for cell in record.cells]) == (4, [2, 1, 3])
    assert [cell.estimate for cell in record.cells] == [Fraction(4, 3), 0, Fraction(8, 3)]
    assert all(cell.low <= cell.estimate <= cell.high for cell in record.cells)


async def test_unary_answers_are_read_against_any_change() -> None:
    mechanism = OptimizedUnaryEncoding(Fraction(1, 4), 3)
    network, window = await start(values=3, mode=Mode.RESPONSE, mechanism=mechanism, release=NOISED)
    await answer_whole(network, window, [[1, 1, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1], [1, 0, 0, 0]])

    record = await release(network, window)

    assert (record.baseline_raw, [cell.raw for cell in record.cells]) == (4, [2, 1, 3])
    # (Y - 4/4)/(1/2 - 1/4).
    assert [cell.estimate for cell in record.cells] == [4, 0, 8]
    local = next(view for view in record.statement if view.adversary == "all_aggregators")
    assert (local.neighbours, local.epsilon is not None) == ("any-value", True)


async def test_asymmetric_answers_are_read_value_by_value() -> None:
    mechanism = AsymmetricVector(Fraction(1, 4), (Flips.UP, Flips.DOWN, Flips.BOTH))
    network, window = await start(values=3, mode=Mode.RESPONSE, mechanism=mechanism, release=NOISED)
    await answer_whole(network, window, [[1, 1, 0, 1], [1, 0, 1, 1], [1, 1, 0, 1], [1, 0, 0, 0]])

    record = await release(network, window)

    assert (record.baseline_raw, [cell.raw for cell in record.cells]) == (4, [2, 1, 3])
    # (Y - 4/4)/(3/4), Y/(3/4), (Y - 4/5)/(3/5): each by the channel of its own value.
    assert [cell.estimate for cell in record.cells] == [Fraction(4, 3), Fraction(4, 3), Fraction(11, 3)]
    assert all(cell.low <= cell.estimate <= cell.high for cell in record.cells)
    local = next(view for view in record.statement if view.adversary == "all_aggregators")
    assert (local.neighbours, "that a device has value 2" in local.sentence) == ("asymmetric", True)


async def test_direct_answers_leave_output_zero_behind() -> None:
    network, window = await start(values=2, mode=Mode.DIRECT, mechanism=None, release=NOISED)
    await answer_whole(network, window, [[1, 0, 0], [0, 1, 0], [0, 1, 0]])

    record = await release(network, window)

    assert (record.baseline_raw, [cell.raw for cell in record.cells]) == (None, [2, 0])


async def test_a_one_sided_release_says_which_cells_are_safe_and_which_in_danger() -> None:
    one_sided = Release(kind=ReleaseKind.ONE_SIDED, noise_epsilon=Fraction(4), level=LEVEL, thresholds=(2, 2))
    network, window = await start(values=2, mode=Mode.DIRECT, mechanism=None, release=one_sided)
    await answer_whole(network, window, [[0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 1, 0]])

    record = await release(network, window)

    assert [cell.raw for cell in record.cells] == [1, 3]
    assert [record.side(cell) for cell in record.cells] == [Side.SAFE, Side.DANGER]
    assert all(cell.high == cell.raw for cell in record.cells), "noise only adds"


async def test_an_exact_release_adds_no_noise_and_says_so() -> None:
    exact = Release(kind=ReleaseKind.EXACT, noise_epsilon=None, level=LEVEL)
    network, window = await start(values=3, release=exact)
    network.noise = SystemNoise(SystemRandom())
    await answer_all(network, window, [(0, 1), (2, 2), (0, 3)])

    record = await release(network, window)

    assert [cell.raw for cell in record.cells] == [1, 0, 1]
    assert record.statement[0].epsilon is None


async def test_real_noise_is_there_and_every_aggregator_adds_its_own() -> None:
    network = Network(3)
    network.noise = SystemNoise(SystemRandom())
    await network.start_all()
    window = await network.ask(values=50, mechanism=SamplingDie.uniform(Fraction(1, 10), 50))
    await answer_all(network, window, [(0, 1), (2, 2)])

    record = await release(network, window)

    # 3 aggregators x 50 cells of noise with P[0] = 0.46 each: all zero with probability below 1e-50.
    assert any(cell.raw != int(cell.value == 1) for cell in record.cells)


class CountingNoise(NoNoise):
    """Noise that is another one at every draw."""

    def __init__(self) -> None:
        self.draws = 0

    def draw(self, law: NoiseLaw, count: int) -> list[int]:
        self.draws += 1
        return [self.draws, *super().draw(law, count - 1)]


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("failpoint", ["release.after_draw", "release.after_draw_store"])
async def test_noise_is_drawn_once_whatever_crashes(tmp_path: Path, failpoint: str, side: int) -> None:
    """A redraw after the store would be a second noisy answer; one that was never stored was never shown."""
    noise = CountingNoise()
    network = Network(2, directory=tmp_path, noise=noise)
    await network.start_all()
    window = await network.ask(values=4)
    await network.stop(side)
    await network.start(side, failpoint)
    await answer_all(network, window, [(0, 1), (2, 2)])

    record = await release(network, window)

    assert noise.draws == (3 if failpoint == "release.after_draw" else 2)
    stored = sum(one for one in range(1, noise.draws + 1))
    lost = {"release.after_draw": 1 + side, "release.after_draw_store": 0}[failpoint]
    assert record.cells[0].raw == 1 + stored - lost
    again = [await network.core(p).service.release(window.window_id) for p in range(2)]
    assert {decode_record(one.record).canonical for one in again} == {record.canonical}
    assert [len(await network.core(p).context.store.read(read_ledger)) for p in range(2)] == [1, 1]
    await network.stop_all()


async def test_nothing_but_noised_numbers_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    """Participants and true counts are rare numbers here; none may stand in an answer, log, status or metric."""
    network, window = await start(values=2)
    network_noise = [CountingNoise()]
    for position in range(2):
        network.core(position).context.host.noise = network_noise[0]
    coins = [(0, 1)] * 67 + [(2, 2)] * 6  # numbers that no clock shows as a minute or second
    await answer_all(network, window, coins)

    record = await release(network, window)

    said = [repr(await network.core(p).helper.status(window.window_id)) for p in range(2)]
    said += [network.core(p).context.host.metrics.render().decode() for p in range(2)]
    said.append(repr(record.participants_at_least))
    said.append(capsys.readouterr().out.replace(str(window.window_id), ""))
    answer: ReleaseAnswer = await network.core(0).service.release(window.window_id)
    assert record.cells[0].raw == 67 + 3
    for text in said:
        words = set("".join(character if character.isalnum() else " " for character in text).split())
        assert not words & {"73", "67", "73.0", "146"}, text
    assert (73).to_bytes(8) not in answer.record


async def test_shares_are_forgotten_after_the_release(tmp_path: Path) -> None:
    network = Network(2, directory=tmp_path)
    await network.start_all()
    window = await network.ask(values=2)
    await answer_all(network, window, [(0, 1), (2, 2)])
    await release(network, window)

    for position in range(2):
        store = network.core(position).context.store
        assert not await store.read(read_batches, window.window_id)
        assert len((await store.complete_reports(window.window_id)).ids) == 0
    assert not list(tmp_path.glob("*.log")), "the share parts"
    assert len(list(tmp_path.glob("*.digests"))) == 2
    await network.stop_all()


def test_the_release_time_is_on_the_grid_and_not_before_the_close() -> None:
    window = Network(2).window()

    assert release_time(window, window.round_two_closes - 100) == window.round_two_closes
    assert release_time(window, window.round_two_closes + 1) == window.round_two_closes + 10


def test_records_agree_iff_only_interval_ends_differ_by_one() -> None:
    from dataclasses import replace

    window = Network(2).window(values=2)
    record = build_record(window, [5, 0], window.round_two_closes, ONCE)
    cell = record.cells[0]

    def with_cell(**changes: int | Fraction) -> ReleaseRecord:
        return replace(record, cells=(replace(cell, **changes), *record.cells[1:]))  # type: ignore[arg-type]  # the test names fields of Cell.

    assert same_record(record, with_cell(low=cell.low + 1, high=cell.high + 1))
    assert not same_record(record, with_cell(high=cell.high + 2))
    assert not same_record(record, with_cell(raw=6))
    assert not same_record(record, with_cell(estimate=cell.estimate + Fraction(1, 10**9)))
    assert not same_record(record, replace(record, released_at=window.round_two_closes + 10))
