"""What every engine promises besides its law: seeds, shards, chunks, budgets, the smallest batch, outages, refusals."""

import subprocess
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from fleetcount_mechanisms.statement import epsilon_of, ledger_loss_of
from fleetcount_simulator.engines import engine
from fleetcount_simulator.engines.exact_law import drawn_outputs
from fleetcount_simulator.engines.participation import answers_allowed
from fleetcount_simulator.engines.per_device import PerDevice
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Case, CaseOutcome, EngineName, Epochs, Faults, Mechanism

from tests.simulator.fleets import (
    BITS,
    DIRECT,
    K_ARY,
    ONE_SIDED,
    RESPONSES,
    SAMPLING,
    Counted,
    Held,
    attacker,
    case,
    fleet,
    seed,
)

ENGINES: tuple[EngineName, ...] = ("exact-law", "per-device")
EVERYTHING = Faults(
    loss=Fraction(1, 20), drop_out=Fraction(1, 10), late=Fraction(1, 20), duplicates=Fraction(1, 3), naive=True
)
NOISED = Mechanism(name="noised", kind="sampling", sampling_rate=Fraction(1, 4), noise_epsilon=Fraction(17, 10))


def same(first: CaseOutcome, second: CaseOutcome) -> bool:
    return (
        np.array_equal(first.outputs, second.outputs)
        and np.array_equal(first.counted, second.counted)
        and np.array_equal(first.released, second.released)
        and all(np.array_equal(first.tallies[name], second.tallies[name]) for name in first.tallies)
    )


def rows_of(outcome: CaseOutcome, rows: list[int]) -> CaseOutcome:
    return CaseOutcome(
        outputs=outcome.outputs[rows],
        released=outcome.released[rows],
        counted=outcome.counted[rows],
        tallies={name: values[rows] for name, values in outcome.tallies.items()},
    )


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("mechanism", [NOISED, K_ARY, BITS[0], DIRECT], ids=lambda one: one.name)
def test_a_run_is_the_same_in_every_shard(name: EngineName, mechanism: Mechanism) -> None:
    one = case(
        fleet((40, 20, 30)),
        mechanism,
        faults=EVERYTHING,
        attackers=(attacker("liars", devices="7", strategy="random"),),
    )

    whole = engine(name).run(one, 0, range(8), seed())

    assert same(engine(name).run(one, 0, [5, 2], seed()), rows_of(whole, [5, 2]))
    assert not same(engine(name).run(one, 0, range(8), seed(2)), whole)


@pytest.mark.parametrize("mechanism", [NOISED, RESPONSES[0], K_ARY, BITS[1], DIRECT], ids=lambda one: one.name)
def test_chunks_of_devices_change_nothing(mechanism: Mechanism) -> None:
    values = 1 if mechanism.kind == "two-coin" else 5
    truths = np.random.default_rng(3).integers(0, values + 1, (1, 3001)).astype(np.uint16)
    one = case(Held(truths, values), mechanism, faults=EVERYTHING)

    small, large = (PerDevice(chunk).run(one, 0, range(2), seed()) for chunk in (97, 1 << 20))

    assert same(small, large)


def test_truths_of_both_integer_types_give_the_same_sums() -> None:
    short = fleet((40, 20, 30))
    long = Held(short.values.astype(np.int32), short.largest)  # type: ignore[arg-type] # what is tested

    first, second = (engine("per-device").run(case(one, NOISED), 0, [0], seed()) for one in (short, long))

    assert same(first, second)


@pytest.mark.processes
def test_another_process_draws_the_same() -> None:
    script = (
        "from tests.simulator.fleets import *; from fleetcount_simulator.engines import engine\n"
        "one = case(fleet((40, 20, 30)), SAMPLING)\n"
        "for name in ('exact-law', 'per-device'): print(engine(name).run(one, 0, [3], seed()).outputs.tolist())"
    )

    printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout

    here = [engine(name).run(case(fleet((40, 20, 30)), SAMPLING), 0, [3], seed()).outputs.tolist() for name in ENGINES]
    assert printed.splitlines() == [str(outputs) for outputs in here]


def test_the_law_of_a_billion_devices_needs_no_device() -> None:
    one = case(Counted([10**9 - 3 * 10**6, 10**6, 2 * 10**6]), NOISED, faults=Faults(loss=Fraction(1, 100)))

    outcome = engine("exact-law").run(one, 0, range(3), seed())

    assert outcome.released.all()
    assert np.all(np.abs(outcome.outputs / 0.25 / 0.99 - [10**6, 2 * 10**6]) < 20_000)


@pytest.mark.parametrize("name", ENGINES)
def test_duplicates_and_reordering_change_no_number(name: EngineName) -> None:
    calm, restless = (
        engine(name).run(case(fleet((400, 200, 300)), NOISED, faults=faults), 0, range(3), seed())
        for faults in (Faults(), Faults(reorder=True))
    )
    repeated = engine(name).run(
        case(fleet((400, 200, 300)), NOISED, faults=Faults(duplicates=Fraction(1, 2))), 0, range(3), seed()
    )

    assert same(calm, restless)
    assert np.array_equal(repeated.counted, calm.counted)
    assert repeated.tallies["resent"].min() > 300
    assert repeated.tallies["counted_twice"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ENGINES)
def test_every_device_has_one_fate(name: EngineName) -> None:
    on = np.random.default_rng(4).random((3, 2, 900)) < 0.7
    population = Held(np.random.default_rng(5).integers(0, 3, (3, 900)).astype(np.uint16), 2, on)
    faults = Faults(ignition=True, loss=Fraction(1, 9), late=Fraction(1, 9), clock_skew_s=Fraction(50))
    one = case(population, NOISED, faults=faults, epochs=Epochs(count=3, device_epsilon=Fraction(2)))

    outcome = engine(name).run(one, 2, range(4), seed())

    fates = sum(outcome.tallies[tally] for tally in ("lost", "half_pairs", "late", "absent", "refused"))
    assert (outcome.participants + fates).tolist() == [900] * 4
    assert min(int(outcome.tallies[tally].min()) for tally in ("lost", "half_pairs", "late", "absent", "refused")) > 0


@pytest.mark.parametrize("name", ENGINES)
def test_a_device_answers_until_its_ledger_is_empty(name: EngineName) -> None:
    truths = np.tile(fleet((10, 20)).values, (4, 1))
    mechanism = Mechanism(name="s", kind="sampling", sampling_rate=Fraction(9, 20), noise_epsilon=Fraction(3, 2))
    loss = epsilon_of(mechanism.design(1, 2))
    assert loss is not None
    limit = Epochs(count=4, device_epsilon=Fraction(loss) * 2)
    one = case(Held(truths, 1), mechanism, epochs=limit, min_batch_size=10)

    outcomes = [engine(name).run(one, epoch, [0], seed()) for epoch in range(4)]

    assert [bool(outcome.released[0]) for outcome in outcomes] == [True, True, False, False]
    assert [int(outcome.tallies["refused"][0]) for outcome in outcomes] == [0, 0, 30, 30]
    assert outcomes[3].outputs.tolist() == [[0]]


@pytest.mark.parametrize("name", ENGINES)
def test_a_device_that_was_off_has_more_of_its_budget_left(name: EngineName) -> None:
    on = np.ones((3, 2, 30), dtype=np.bool_)
    on[0, 0, :10] = False
    population = Held(np.tile(fleet((10, 20)).values, (3, 1)), 1, on)
    mechanism = Mechanism(name="d", kind="direct", noise_epsilon=Fraction(1))
    one = case(population, mechanism, faults=Faults(ignition=True), epochs=Epochs(count=3, device_epsilon=Fraction(2)))

    outcome = engine(name).run(one, 2, [0], seed())

    assert answers_allowed(one) == 2
    assert outcome.counted.tolist() == [[10, 0]]


def test_a_release_without_a_finite_loss_is_not_a_matter_of_budget() -> None:
    assert answers_allowed(case(fleet((1, 1)), SAMPLING, epochs=Epochs(device_epsilon=Fraction(1)))) is None


def test_bit_vectors_are_charged_for_any_value_not_for_one_bit() -> None:
    bits = Mechanism(name="bits", kind="mangat-vector", epsilon_local=Fraction(2), noise_epsilon=Fraction(1))
    design = bits.design(3, 2)
    charged, published = ledger_loss_of(design).epsilon, epsilon_of(design)
    assert charged is not None
    assert published is not None
    assert charged > published
    one = case(fleet((1, 1, 1, 1)), bits, epochs=Epochs(count=9, device_epsilon=Fraction(charged) * 2))

    assert answers_allowed(one) == 2
    assert int(one.epochs.device_epsilon // Fraction(published)) > 2  # type: ignore[operator] # it was just given


@pytest.mark.parametrize(
    ("mechanism", "values", "loss"),
    [
        (Mechanism(name="s", kind="sampling", sampling_rate=Fraction(1, 4), noise_epsilon=Fraction(1729, 1000)), 4, 1),
        (RESPONSES[1], 1, 1),
        (K_ARY, 3, 1.5),
        (BITS[1], 3, 1),
        (Mechanism(name="d", kind="direct", noise_epsilon=Fraction(1, 2)), 3, 1),
        (ONE_SIDED, 3, 1),
    ],
    ids=lambda value: value.name if isinstance(value, Mechanism) else "",
)
def test_a_ledger_charges_the_loss_of_the_release(mechanism: Mechanism, values: int, loss: float) -> None:
    assert float(epsilon_of(mechanism.design(values, 2)) or 0) == pytest.approx(loss, abs=4e-4)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(("smallest", "released"), [(30, True), (31, False)])
def test_too_small_a_set_is_not_released(name: EngineName, smallest: int, released: bool) -> None:
    outcome = engine(name).run(case(fleet((10, 20)), DIRECT, min_batch_size=smallest), 0, [0], seed())

    assert outcome.released.tolist() == [released]
    assert outcome.outputs.any() == released
    assert outcome.participants.tolist() == [30]


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    ("outage", "released", "counted"),
    [
        ((1, "releasing", Fraction(900)), True, 8000),
        ((1, "releasing", Fraction(901)), False, 8000),
        ((0, "leader.after_open", Fraction(0)), False, 8000),
        ((0, "leader.after_release", Fraction(0)), True, 8000),
        ((1, "collecting", Fraction(20)), True, 8000),
        ((1, "collecting", Fraction(40)), True, 5000),
        ((1, "intake.after_commit", Fraction(0)), False, 5000),
    ],
)
def test_an_outage_costs_what_the_others_do_not_wait_for(
    name: EngineName, outage: Any, released: bool, counted: int
) -> None:
    one = case(fleet((4000, 4000)), NOISED, faults=Faults(outage=(outage,)))

    outcome = engine(name).run(one, 0, [0], seed())

    assert outcome.released.tolist() == [released]
    # 3/8 of the devices send after the middle of the window: six standard deviations are 260 devices.
    assert abs(int(outcome.participants[0]) - counted) < (260 if counted < 8000 else 1)
    assert int(outcome.tallies["half_pairs"][0]) == 8000 - int(outcome.participants[0])


def test_half_pairs_that_are_counted_bias_every_cell_as_derived() -> None:
    # 1 % drop-out of 100,000 devices, V = 9, p = 1/20, a uniform die: -1,900 devices in every cell.
    mechanism = Mechanism(name="s", kind="sampling", sampling_rate=Fraction(1, 20))
    one = case(Counted([10_000] * 10), mechanism, faults=Faults(drop_out=Fraction(1, 100), naive=True))

    outcome = engine("exact-law").run(one, 0, range(400), seed())

    bias = (outcome.outputs * 20 - outcome.counted[:, 1:]).mean()
    assert abs(bias + 1900) < 5 * 20 * np.sqrt(10_000 * 0.05 / 3600)


@pytest.mark.parametrize("name", ENGINES)
def test_liars_and_cheats_reach_the_outcome(name: EngineName) -> None:
    attackers = (attacker("liars", devices="500", value="2"), attacker("cheats", devices="40"))
    honest, attacked = (
        engine(name).run(case(fleet((100, 0, 0)), NOISED, attackers=those), 0, range(5), seed())
        for those in ((), attackers)
    )

    assert (attacked.outputs - honest.outputs).tolist() == [[0, 500]] * 5
    assert (attacked.counted - honest.counted).tolist() == [[500, 0, 0]] * 5
    assert (attacked.tallies["liars"].tolist(), attacked.tallies["invalid"].tolist()) == ([500] * 5, [40] * 5)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"mechanism": Mechanism(name="x", kind="sampling")}, "sampling_rate"),
        ({"mechanism": Mechanism(name="x", kind="sampling", sampling_rate=Fraction(3, 2))}, "sampling rate is 3/2"),
        ({"mechanism": RESPONSES[0]}, "V = 1"),
        ({"mechanism": Mechanism(name="x", kind="direct")}, "has no noise"),
        ({"mechanism": Mechanism(name="x", kind="one-sided", noise_epsilon=Fraction(1))}, "direction is None"),
        ({"aggregators": 1}, "aggregators is 1"),
        ({"faults": Faults(loss=Fraction(2))}, "faults.loss is 2"),
        ({"attackers": (attacker("liars", device="3"),)}, "did you mean 'devices'"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_a_case_that_makes_no_sense_is_refused_by_name(name: EngineName, changed: dict[str, Any], named: str) -> None:
    one = case(fleet((3, 3, 3)), **({"mechanism": NOISED} | changed))

    with pytest.raises(ScenarioError, match=named):
        engine(name).run(one, 0, [0], seed())


@pytest.mark.parametrize("name", ENGINES)
def test_an_epoch_the_population_has_not_is_refused(name: EngineName) -> None:
    with pytest.raises(ScenarioError, match="epoch is 1"):
        engine(name).run(case(fleet((3, 3)), NOISED), 1, [0], seed())


def test_a_truth_beyond_the_question_is_refused_before_it_is_counted() -> None:
    wrong = Held(np.array([[0, 1, 5]], dtype=np.uint16), 2)

    with pytest.raises(ScenarioError, match=r"outside 0\.\.2"):
        engine("per-device").run(case(wrong, NOISED), 0, [0], seed())


def test_an_engine_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(ScenarioError, match="engine is 'exact'"):
        engine("exact")  # type: ignore[arg-type] # what is tested


def test_a_case_is_not_changed_by_a_run() -> None:
    population = fleet((4, 5, 6))
    before = population.values.copy()
    one: Case = case(population, NOISED, faults=EVERYTHING)

    for name in ENGINES:
        engine(name).run(one, 0, range(2), seed())

    assert np.array_equal(population.values, before)


@pytest.mark.parametrize("mechanism", [NOISED, K_ARY, BITS[0], DIRECT], ids=lambda one: one.name)
def test_releases_drawn_from_a_histogram_are_those_of_the_exact_law(mechanism: Mechanism) -> None:
    one = case(fleet((400, 200, 300)), mechanism)
    histogram = one.population.histogram(0)

    drawn = drawn_outputs(one.design, histogram, 400, np.random.default_rng(1))
    outcome = engine("exact-law").run(one, 0, range(400), seed(1))

    expected = outcome.outputs
    assert drawn.shape == (400, one.design.output_count)
    # Bits have the number of devices before them, which an outcome keeps apart.
    cells = drawn[:, drawn.shape[1] - expected.shape[1] :]
    spread = np.maximum(expected.std(axis=0), 1.0)
    assert (np.abs(cells.mean(axis=0) - expected.mean(axis=0)) < 6 * spread * np.sqrt(2 / 400)).all()
    assert (np.abs(cells.std(axis=0) / spread - 1) < 0.35).all()
