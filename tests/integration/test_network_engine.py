"""Real clients through real aggregators: every device counted once, the very sums its coins give, and every fault told.

Each test starts its own processes on free ports; sums are released without noise, so that they can be compared exactly.
"""

import os
import signal
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from fleetcount_client.answering import draw_two_round, truth_of
from fleetcount_client.signals import Reading
from fleetcount_client.timer import uniform_seconds
from fleetcount_mechanisms.randomness import RandomSource
from fleetcount_mechanisms.responses import Flips, OptimizedUnaryEncoding
from fleetcount_protocol.ids import Digest, SessionId
from fleetcount_protocol.window.domain import Bins, Categories, Numbers, SquareGrid
from fleetcount_protocol.window.fields import MECHANISM_NUMBERS
from fleetcount_simulator import faults
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.examples import example_text
from fleetcount_simulator.model import Attacker, Faults, Mechanism
from fleetcount_simulator.network.brokers import find_mosquitto
from fleetcount_simulator.network.engine import NetworkEngine
from fleetcount_simulator.network.question import reading_of
from fleetcount_simulator.network.run import WindowAsked
from fleetcount_simulator.network.simulated_device import coins_of
from fleetcount_simulator.populations import build
from fleetcount_simulator.study.numbers import shown_numbers
from numpy.typing import NDArray

from tests.simulator.engines.test_numbers import numbered, space
from tests.simulator.network_cases import People, case_of
from tests.support.processes import wait_until
from tests.support.protocol_samples import crossed

DEVICE = Digest(bytes(32))

# A fresh copy compiles the verification first, and a loaded machine gets windows that are long.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(400), pytest.mark.usefixtures("plain_verification")]
SEED = np.random.SeedSequence(20, spawn_key=(0, 0))


def drawn_before_the_answer(source: RandomSource, parties: int) -> RandomSource:
    """Take from a device's coins what it draws before it answers: two secrets a session, and a moment a part."""
    for _ in range(2 * parties):
        source.random_bytes(32)
    for _ in range(parties):
        uniform_seconds(source, 1.0)
    return source


def expected_sums(asked: WindowAsked, coin_seed: int, truths: NDArray[np.integer]) -> list[int]:
    """Return round two minus round one of cells 1..V, by the client's own answering rules on the same coins."""
    window, sums = asked.window, np.zeros(asked.window.values + 1, dtype=np.int64)
    for number, value in enumerate(truths):
        source = drawn_before_the_answer(coins_of(coin_seed, number), len(window.aggregators))
        truth = truth_of(window, Reading(value=reading_of(window.domain, int(value))), source)
        coins = draw_two_round(window, truth, (SessionId(bytes(16)),) * len(window.aggregators), source, device=DEVICE)
        sums[coins.round_two] += 1
        sums[coins.round_one] -= 1
    return [int(number) for number in sums[1:]]


def coin_seed_of(seed: np.random.SeedSequence, run: int) -> int:
    """Return the coins' seed of a run, by the contract of `Engine.run`."""
    own = np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, run))
    return int.from_bytes(own.spawn(2)[0].generate_state(4).tobytes(), "big")


def raw(asked: WindowAsked) -> list[int]:
    assert asked.record is not None
    return [cell.raw for cell in asked.record.cells]


@pytest.mark.parametrize(("transport", "parties"), [("both", 2), pytest.param("grpc", 3, marks=pytest.mark.nightly)])
def test_the_sums_are_those_of_the_clients_answering_rules_on_the_same_coins(transport: str, parties: int) -> None:
    case = case_of(aggregators=parties)

    asked = NetworkEngine(transport=transport).ask(case, 0, [0, 1], SEED)

    for run, one in enumerate(asked):
        assert one.account.counted.tolist() == [10, 10, 10, 10]
        assert raw(one) == expected_sums(one, coin_seed_of(SEED, run), case.population.truths(0, 0, 40))
    assert raw(asked[0]) != raw(asked[1])


@pytest.mark.parametrize("show", ["mean", pytest.param("quantiles", marks=pytest.mark.nightly)])
def test_numbers_are_opened_at_every_level_as_the_plan_rounded_them(show: str) -> None:
    domain = Numbers(low=Fraction(0), high=Fraction(30), values=4, unit="km/h")
    held = numbered((2, 10, 20, 8), space(domain, (Fraction(5), Fraction(10), Fraction(25))))
    # Noise that is other than 0 once in 10,000 times a number.
    direct = Mechanism(name="m", kind="direct", noise_epsilon=Fraction(10), show=show)
    case = case_of(40, 4, direct, population=held)

    outcome = NetworkEngine(transport="grpc").run(case, 0, [0], SEED)

    assert outcome.released.tolist() == [True]
    assert outcome.counted.sum() == 40
    exact = np.array(case.design.levels.all_sums(outcome.counted[0, 1:].tolist()))
    assert (np.abs(outcome.outputs[0] - exact) <= 2).all()
    rows = shown_numbers(case, outcome, 0, [0])
    assert rows["q"].size == (1 if show == "mean" else 5)
    assert (rows["low"] <= rows["fleet"]).all()
    assert (rows["fleet"] <= rows["high"]).all()


@pytest.mark.nightly
def test_an_outcome_holds_every_device_and_the_noised_sums_differ_from_run_to_run_by_the_noise_alone() -> None:
    noised = Mechanism(name="m", kind="sampling", sampling_rate=Fraction(2, 5), noise_epsilon=Fraction(1, 50))
    stages: list[str] = []
    case = case_of(30, 2, noised)

    first = NetworkEngine(transport="grpc", progress=lambda stage, done, total: stages.append(stage)).run(
        case, 0, [3], SEED
    )
    exact = NetworkEngine(transport="grpc").run(case_of(30, 2), 0, [3], SEED)

    assert first.released.tolist() == exact.released.tolist() == [True]
    assert first.counted.tolist() == exact.counted.tolist() == [[10, 10, 10]]
    assert {name: int(tally[0]) for name, tally in first.tallies.items() if name != "seconds"} == dict.fromkeys(
        faults.TALLIES, 0
    )
    # Two noises of deviation above 70 each are both 0 once in 20,000 times, and in both cells never.
    assert first.outputs.tolist() != exact.outputs.tolist()
    assert {"starting", "round one", "release"} <= set(stages)


@pytest.mark.nightly
def test_every_fault_befalls_its_devices_and_changes_nothing_else() -> None:
    share = Fraction(1, 8)
    case = case_of(
        120, 3, faults=Faults(loss=share, drop_out=share, late=share, duplicates=Fraction(1, 2), reorder=True)
    )

    (asked,) = NetworkEngine(transport="grpc").ask(case, 0, [0], SEED)

    tallies = asked.account.tallies
    assert (
        int(asked.account.counted.sum())
        + sum(tallies[name] for name in ("lost", "half_pairs", "late", "absent", "refused"))
        == 120
    )
    # Each is binomial around 15 or 60: outside of these once in 10^7 runs, and the seed is fixed.
    assert all(1 <= tallies[name] <= 40 for name in ("lost", "half_pairs", "late"))
    assert 20 <= tallies["resent"] <= 90
    assert tallies["counted_twice"] == asked.account.missing == 0


@pytest.mark.nightly
def test_devices_that_are_off_are_absent_and_those_switched_off_leave_half_a_pair() -> None:
    people = People(30, 2, off={1: (0, 1, 2), 2: (2, 3, 4, 5)})
    case = case_of(population=people, faults=Faults(ignition=True))

    (asked,) = NetworkEngine(transport="grpc").ask(case, 0, [0], SEED)

    assert (asked.account.tallies["absent"], asked.account.tallies["half_pairs"]) == (3, 3)
    assert int(asked.account.counted.sum()) == 24


@pytest.mark.nightly
@pytest.mark.parametrize(
    "outage",
    [
        ((1, "collecting", Fraction(6)),),
        ((0, "intake.after_commit", Fraction(3)),),
        ((0, "leader.after_seal", Fraction(3)), (1, "helper.after_sign_store", Fraction(3))),
    ],
)
def test_an_aggregator_that_is_killed_and_comes_back_loses_and_doubles_nobody(
    outage: tuple[tuple[int, str, Fraction], ...],
) -> None:
    case = case_of(40, 3, faults=Faults(outage=outage))

    (asked,) = NetworkEngine(transport="grpc").ask(case, 0, [0], SEED)

    assert asked.account.counted.tolist() == [10, 10, 10, 10]
    assert asked.account.tallies["counted_twice"] == 0
    assert raw(asked) == expected_sums(asked, coin_seed_of(SEED, 0), case.population.truths(0, 0, 40))


@pytest.mark.nightly
def test_a_message_that_was_stored_and_never_receipted_is_told_from_one_that_was_lost() -> None:
    """The aggregator dies between commit and answer and is away until the window has closed: nobody can send again."""
    case = case_of(60, 3, faults=Faults(outage=((1, "intake.after_commit", Fraction(40)),)))

    # Raises when the receipts, those asked for afterwards included, do not explain the agreed set.
    (asked,) = NetworkEngine(transport="grpc").ask(case, 0, [0], SEED)

    assert asked.record is not None
    counted, halves = int(asked.account.counted.sum()), asked.account.tallies["half_pairs"]
    assert counted + halves == 60
    # About half have sent before the middle of the window, three eighths only afterwards.
    assert 15 <= counted <= 55


@pytest.mark.nightly
def test_an_aggregator_that_never_comes_back_leaves_no_release() -> None:
    case = case_of(20, 2, faults=Faults(outage=((1, "agreeing", Fraction(0)),)))

    outcome = NetworkEngine(transport="grpc").run(case, 0, [0], SEED)

    assert outcome.released.tolist() == [False]
    assert outcome.counted.sum() == outcome.outputs.sum() == 0


@pytest.mark.nightly
def test_devices_whose_clocks_are_wrong_are_late_or_counted_and_never_counted_twice() -> None:
    case = case_of(60, 3, faults=Faults(clock_skew_s=Fraction(60)))

    (asked,) = NetworkEngine(transport="grpc").ask(case, 0, [0], SEED)

    assert asked.account.tallies["late"] > 0
    assert 10 < int(asked.account.counted.sum()) < 60
    assert asked.account.tallies["counted_twice"] == 0


@pytest.mark.nightly
def test_a_fleet_on_a_grid_is_counted_at_every_zoom_from_one_report_a_device() -> None:
    """The same in memory, and quick: tests/aggregator/release/test_zooms.py, tests/client/test_zooms.py."""
    grid = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(100), columns=4, rows=2)
    people = People(27, 8, domain=grid)
    # Such noise is beyond 2 in any of twenty draws less often than once in 10**11 runs.
    mechanism = Mechanism(name="zoomed", kind="direct", noise_epsilon=Fraction(10), zooms=2)

    outcome = NetworkEngine(transport="grpc").run(case_of(population=people, mechanism=mechanism), 0, [0], SEED)

    assert outcome.released.tolist() == [True]
    assert outcome.counted.tolist() == [[3] * 9]
    assert np.abs(outcome.outputs[0] - np.array([3] * 8 + [12] * 2)).max() <= 2


@pytest.mark.nightly
def test_a_fleet_that_reads_two_signals_is_counted_in_cells_and_margins() -> None:
    """The same in memory, and quick: tests/simulator/engines/test_cross.py, tests/client/test_cross.py."""
    cross = crossed(
        Bins(edges=(Fraction(0), Fraction(50)), open_above=True, unit="km/h"), Categories(names=("a", "b", "c"))
    )
    mechanism = Mechanism(name="crossed", kind="direct", noise_epsilon=Fraction(10), margins=True)

    one = case_of(population=People(21, 6, domain=cross), mechanism=mechanism)
    outcome = NetworkEngine(transport="grpc").run(one, 0, [0], SEED)

    assert outcome.released.tolist() == [True]
    assert outcome.counted.tolist() == [[3] * 7]
    assert np.abs(outcome.outputs[0] - np.array([3] * 6 + [9] * 2 + [6] * 3)).max() <= 2


@pytest.mark.nightly
def test_a_fleet_with_several_categories_at_once_is_counted_in_all_and_once_as_holders(tmp_path: Path) -> None:
    """The same in memory, and quick: tests/simulator/engines/test_sets.py, tests/client/test_sets.py."""
    rows = ["P", "U;P", "", "B;C;U"] * 6
    table = "vehicle,value\n" + "".join(f"{number},{row}\n" for number, row in enumerate(rows))
    (tmp_path / "codes.csv").write_text(table)
    asked = {"cells": "categories", "values": ["B", "C", "P", "U"], "at_once": 2}
    people = build({"kind": "categories", "file": "codes.csv"}, asked, 1, tmp_path)
    one = case_of(population=people, mechanism=Mechanism(name="sets", kind="direct", noise_epsilon=Fraction(10)))

    outcome = NetworkEngine(transport="grpc").run(one, 0, [0], SEED)

    assert (outcome.released.tolist(), outcome.participants.tolist()) == ([True], [24])
    (none, *told), (*opened, holders) = outcome.counted[0].tolist(), outcome.outputs[0].tolist()
    assert none == 6
    # Six tell P, six U and P, and six two of three: each of these names is told by their sum at most.
    assert told[2] == 12
    assert sum(told) == 6 + 12 + 12
    assert np.abs(np.array(opened) - told).max() <= 2
    assert abs(holders - 18) <= 2


@pytest.mark.nightly
def test_mosquitto_carries_a_fleet_as_the_embedded_broker_does() -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    case = case_of()

    (asked,) = NetworkEngine(transport="mqtt", broker="mosquitto").ask(case, 0, [0], SEED)

    # The embedded one is held to the same sums above.
    assert asked.account.counted.tolist() == [10, 10, 10, 10]
    assert raw(asked) == expected_sums(asked, coin_seed_of(SEED, 0), case.population.truths(0, 0, 40))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mechanism", "values", "outputs"),
    [
        (Mechanism(name="k", kind="k-ary", epsilon_local=Fraction(2), noise_epsilon=Fraction(10)), 3, 4),
        (Mechanism(name="v", kind="mangat-vector", epsilon_local=Fraction(2), noise_epsilon=Fraction(10)), 3, 3),
        (Mechanism(name="u", kind="unary", epsilon_local=Fraction(2), noise_epsilon=Fraction(10)), 3, 3),
        (Mechanism(name="d", kind="direct", noise_epsilon=Fraction(10)), 3, 3),
        (Mechanism(name="g", kind="direct", noise_variance=Fraction(1, 2)), 3, 3),
        (Mechanism(name="o", kind="one-sided", noise_epsilon=Fraction(10), direction="up"), 3, 3),
        (Mechanism(name="p", kind="one-sided", noise_epsilon=Fraction(10), direction="down"), 3, 3),
        (Mechanism(name="m", kind="mangat", epsilon_local=Fraction(1), noise_epsilon=Fraction(10)), 1, 2),
        (
            Mechanism(
                name="a", kind="asymmetric", epsilon_local=Fraction(2), noise_epsilon=Fraction(10), flips=(*Flips,)
            ),
            3,
            3,
        ),
    ],
)
def test_every_kind_of_question_on_the_wire_can_be_asked(mechanism: Mechanism, values: int, outputs: int) -> None:
    case = case_of(24, values, mechanism)

    outcome = NetworkEngine(transport="grpc").run(case, 0, [0], SEED)

    assert outcome.released.tolist() == [True]
    assert outcome.counted.tolist() == [case.population.histogram(0).tolist()]
    assert outcome.outputs.shape == (1, outputs)
    # At e1 = 10 the noise of two aggregators is 0 but once in 5,000 draws, and never as large as 10; Gaussian noise of
    # two variances of 1/2 is as large less than once in 10^21 times.
    if mechanism.kind in {"direct", "one-sided"}:
        assert np.abs(outcome.outputs[0] - outcome.counted[0][1:]).max() < 10
    if mechanism.kind == "k-ary":
        assert abs(int(outcome.outputs[0].sum()) - 24) < 10


def test_what_real_devices_cannot_be_asked_is_refused_before_anything_starts() -> None:
    liar = Attacker(name="mallory", kind="liars", parameters=(("count", "3"),))
    for case, named in [
        (case_of(faults=Faults(naive=True)), "faults.naive"),
        (case_of(attackers=(liar,)), "'mallory' of kind 'liars'"),
        (case_of(1), "1 devices"),
        (case_of(values=5000), "5000 values"),
        (case_of(aggregators=6), "aggregators.count is 6"),
        (case_of(mechanism=Mechanism(name="d", kind="direct")), "no noise"),
        (case_of(mechanism=Mechanism(name="s", kind="sampling")), "sampling_rate is missing"),
        (case_of(faults=Faults(outage=((0, "lunch", Fraction(1)),))), "'lunch'"),
    ]:
        with pytest.raises(ScenarioError, match=named):
            NetworkEngine().run(case, 0, [0], SEED)
    with pytest.raises(ScenarioError, match="transport is 'pigeon'"):
        NetworkEngine(transport="pigeon")
    with pytest.raises(ScenarioError, match="broker is 'hive'"):
        NetworkEngine(broker="hive")


def test_an_answer_law_without_a_number_on_the_wire_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(MECHANISM_NUMBERS, OptimizedUnaryEncoding)
    unary = Mechanism(name="u", kind="unary", epsilon_local=Fraction(1), noise_epsilon=Fraction(1))

    with pytest.raises(ScenarioError, match="not on the wire"):
        NetworkEngine().run(case_of(mechanism=unary), 0, [0], SEED)


def descendants(parent: int) -> dict[int, str]:
    """Return the process ids below a process, each with its start time, so that a number used anew is another."""
    seen: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields and fields[0] != "Z":
            seen[int(entry.name)] = (int(fields[1]), fields[19])
    below = {parent}
    while born := {number for number, (above, _) in seen.items() if above in below} - below:
        below |= born
    return {number: seen[number][1] for number in below - {parent} if number in seen}


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_study_ends_its_aggregators_their_workers_the_broker_and_the_clients(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "study.toml").write_text(example_text("network-small"))
    study = subprocess.Popen(
        [sys.executable, "-m", "fleetcount", "simulate", "study.toml", "--output", "out"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    )
    # Two aggregators with a worker each, the broker, and a client process a transport.
    wait_until(lambda: len(descendants(study.pid)) >= 7 or study.poll() is not None, "everybody runs", 60)
    everybody = descendants(study.pid)

    study.send_signal(number)
    _, err = study.communicate(timeout=60)

    assert len(everybody) >= 7
    assert study.returncode == 130
    assert err.splitlines()[-1] == "fleetcount simulate: interrupted"
    assert "Traceback" not in err
    assert descendants(1).items() & everybody.items() == set()
    assert list((tmp_path / "tmp").iterdir()) == []
