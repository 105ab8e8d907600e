"""Remaps: the best answer by brute force, Theorem 3.1 for random users, every refusal."""

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from fleetcount_analysis.channels import SamplingChannel, noise_sum
from fleetcount_analysis.errors import RangeError, ShapeError, TooLargeError
from fleetcount_analysis.remap import (
    LOSSES,
    geometric_channel,
    geometric_remap,
    loss_matrix,
    one_sided_remap,
    optimal_remap,
    response_remap,
    sampling_remap,
    user_optimum,
)
from fleetcount_evidence.papers.geometric.bounded_geometric import bounded_geometric_matrix
from fleetcount_mechanisms.noise import OneSidedNoise
from hypothesis import given, settings
from hypothesis import strategies as st

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "golden.json").read_text())["geo.remap_uniform_abs_n4_a.8"]
UNIFORM = np.full(5, 0.2)
NOISE = Fraction(3, 2)


@st.composite
def monotone_losses(draw: st.DrawFn, size: int) -> np.ndarray:
    """Draw loss(i, j) = g_i(|i - j|) with every g_i non-decreasing from 0."""
    losses = np.zeros((size, size))
    for i in range(size):
        steps = draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))
        growth = np.concatenate([[0.0], np.cumsum(steps[1:])])
        losses[i] = growth[np.abs(np.arange(size) - i)]
    return losses


@st.composite
def users(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, float]:
    size = draw(st.integers(2, 7))
    weights = np.array(draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)), dtype=np.float64)
    weights[draw(st.integers(0, size - 1))] += 1
    ratio = draw(st.sampled_from([0.1, 0.5, 0.8, 0.95]))
    return weights / weights.sum(), draw(monotone_losses(size)), ratio


def test_the_remap_and_the_optimum_match_the_golden_numbers() -> None:
    found = geometric_remap(UNIFORM, "absolute", Fraction(4, 5))

    assert found.answers.tolist() == GOLDEN["remap"]
    assert found.expected_loss == pytest.approx(GOLDEN["lp"], rel=1e-9)
    assert user_optimum(UNIFORM, "absolute", Fraction(4, 5)).expected_loss == pytest.approx(GOLDEN["lp"], rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(users())
def test_the_remapped_geometric_mechanism_is_optimal_for_every_user(user: tuple[np.ndarray, np.ndarray, float]) -> None:
    prior, losses, ratio = user

    own = user_optimum(prior, losses, ratio).expected_loss
    assert geometric_remap(prior, losses, ratio).expected_loss == pytest.approx(own, abs=1e-8)


def test_the_optimal_mechanism_is_private_and_attains_its_loss() -> None:
    prior = np.array([0.5, 0.1, 0.2, 0.2])

    found = user_optimum(prior, "squared", 0.7)

    x = found.mechanism
    np.testing.assert_allclose(x.sum(axis=1), 1, atol=1e-9)
    assert np.all(x[:-1] >= 0.7 * x[1:] - 1e-9)
    assert np.all(x[1:] >= 0.7 * x[:-1] - 1e-9)
    assert (prior[:, None] * x * loss_matrix("squared", 3)).sum() == pytest.approx(found.expected_loss)


def test_the_range_restricted_mechanism_is_the_mechanisms_own() -> None:
    exact = bounded_geometric_matrix(Fraction(1, 2), 5)

    np.testing.assert_allclose(geometric_channel(5, Fraction(1, 2)), np.array(exact, dtype=np.float64), rtol=1e-15)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([*LOSSES, "matrix"]), st.sampled_from([Fraction(1, 4), Fraction(1)]))
def test_no_other_answer_loses_less(seed: int, loss: str, rate: Fraction) -> None:
    generator = np.random.default_rng(seed)
    prior = generator.dirichlet(np.ones(9))
    chosen = generator.integers(0, 6, (9, 9)).astype(np.float64) if loss == "matrix" else loss
    channel = SamplingChannel(sampling_rate=rate, noise=noise_sum(NOISE, 2))
    smallest, matrix = channel.matrix(8)

    found = sampling_remap(prior, chosen, rate, NOISE, 2)

    costs = loss_matrix(chosen, 8).T @ (prior[:, None] * matrix)
    best = costs.min(axis=0)
    assert found.smallest_output == smallest
    np.testing.assert_allclose(costs[found.answers, np.arange(matrix.shape[1])], best, rtol=1e-9)
    assert found.expected_loss == pytest.approx(best.sum(), rel=1e-9)


def test_one_sided_counts_lose_a_third_less_when_they_are_remapped() -> None:
    # q = 9/10, seven counts, [ADP] Theorem VIII.3; taken at face value, and cut at the largest count, 2.292 is lost.
    noise = OneSidedNoise(Fraction(-math.log(0.9)).limit_denominator(10**12), "up")
    down = replace(noise, direction="down")
    laws = [[0.0] * count + [0.1 * 0.9**z for z in range(3000)] for count in range(7)]
    prior = [1 / 7] * 7

    found, mirrored = (one_sided_remap(prior, "absolute", one, 1) for one in (noise, down))

    best = sum(
        min(sum(law[y] * abs(n - answer) for n, law in enumerate(laws)) for answer in range(7)) for y in range(3000)
    )
    assert sum(laws[n][y] * abs(min(y, 6) - n) for n in range(7) for y in range(3000)) / 7 == pytest.approx(
        2.292, abs=5e-4
    )
    assert best / 7 == pytest.approx(1.515, abs=5e-4)
    assert found.expected_loss == pytest.approx(best / 7, rel=1e-9)
    assert mirrored.expected_loss == pytest.approx(best / 7, rel=1e-9)
    assert mirrored.read([-2, 6]).tolist() == [6 - int(answer) for answer in found.read([8, 0])] == [2, 6]


def test_one_sided_noises_of_all_aggregators_are_reckoned_with() -> None:
    noise, prior = OneSidedNoise(Fraction(1), "up"), [0.4, 0.3, 0.2, 0.1]
    one = np.array([(1 - math.exp(-1)) * math.exp(-z) for z in range(60)])
    three = np.convolve(np.convolve(one, one), one)[:60]

    found = one_sided_remap(prior, "squared", noise, 3)

    for y in range(20):
        posterior = [weight * (three[y - n] if y >= n else 0) for n, weight in enumerate(prior)]
        costs = [sum(mass * (n - answer) ** 2 for n, mass in enumerate(posterior)) for answer in range(4)]
        assert costs[found.read([y]).item()] == pytest.approx(min(costs), rel=1e-9)


@pytest.mark.parametrize("channel", [(Fraction(3, 4), Fraction(1, 8)), (Fraction(1), Fraction(1, 3))])
def test_answers_that_devices_randomize_are_read_by_their_exact_law(channel: tuple[Fraction, Fraction]) -> None:
    (hit, miss), devices, prior = (float(one) for one in channel), 12, [0.5, 0.2, 0.2, 0.1]
    noise = np.exp(noise_sum(NOISE, 2).log_mass(np.arange(-60, 61)))
    laws = []
    for count in range(4):
        law = noise
        for device in range(devices):
            chance = hit if device < count else miss
            law = np.convolve(law, [1 - chance, chance])
        laws.append(law)

    found = response_remap(prior, "absolute", channel, devices, NOISE, 2)

    joint = np.array(prior)[:, None] * np.array(laws)
    costs = loss_matrix("absolute", 3).T @ joint
    answers = found.read(np.arange(-60, 61 + devices))
    likely = joint.sum(axis=0) > 1e-11
    np.testing.assert_allclose(costs[answers, np.arange(answers.size)][likely], costs.min(axis=0)[likely], rtol=1e-4)
    assert found.expected_loss == pytest.approx(costs.min(axis=0).sum(), rel=1e-6)


def test_a_prior_beyond_the_devices_of_a_response_is_refused() -> None:
    with pytest.raises(RangeError, match="largest count of the prior is 4; allowed is up to the 3 devices"):
        response_remap(UNIFORM, "absolute", (Fraction(3, 4), Fraction(1, 8)), 3, NOISE, 2)


def test_ties_go_to_the_smallest_answer() -> None:
    half = np.array([[0.5, 0.5], [0.5, 0.5]])

    for loss in [*LOSSES, loss_matrix("absolute", 1)]:
        assert optimal_remap([0.5, 0.5], half, loss).answers.tolist() == [0, 0]
    # Every answer between two equally likely counts has the same mean error.
    ends = np.array([[1.0], [0.0], [0.0], [1.0]])
    assert optimal_remap([0.5, 0, 0, 0.5], ends, "absolute").answers.tolist() == [0]


def test_an_output_of_no_mass_keeps_its_own_value() -> None:
    channel = np.array([[0.0, 1.0, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0]])

    found = optimal_remap([0.5, 0.5], channel, "absolute", smallest_output=-1)

    assert found.answers.tolist() == [0, 0, 1, 1]


def test_all_noises_are_reckoned_with() -> None:
    prior = np.full(41, 1 / 41)

    one, three = (sampling_remap(prior, "absolute", Fraction(1, 4), NOISE, k) for k in (1, 3))

    assert three.expected_loss > one.expected_loss
    assert three.read([0]).item() > one.read([0]).item()


def test_outputs_beyond_the_table_are_read_as_its_ends() -> None:
    found = sampling_remap(UNIFORM, "squared", Fraction(1, 4), NOISE, 2)

    assert found.read([-(10**6), 10**6]).tolist() == [found.answers[0], found.answers[-1]]


@pytest.mark.parametrize(
    ("prior", "named"),
    [
        ([0.5, 0.6], "sum of the prior is 1.1"),
        ([1.5, -0.5], "prior of count 1 is -0.5"),
        ([float("nan"), 1], "prior of count 0 is nan"),
        (["a", "b"], r"prior is \['a', 'b'\]; allowed is a number for each count"),
        ([1], "prior has shape"),
        ([[0.5, 0.5]], "prior has shape"),
    ],
)
def test_a_prior_that_is_none_is_refused(prior: list, named: str) -> None:
    with pytest.raises((RangeError, ShapeError), match=named):
        sampling_remap(prior, "absolute", Fraction(1, 4), NOISE, 2)


def test_other_arguments_outside_their_range_are_refused() -> None:
    with pytest.raises(RangeError, match="loss is cubic; allowed is one of absolute, squared, zero-one"):
        sampling_remap(UNIFORM, "cubic", Fraction(1, 4), NOISE, 2)
    with pytest.raises(ShapeError, match=r"loss has shape \(2, 2\); allowed is \(5, 5\)"):
        sampling_remap(UNIFORM, np.zeros((2, 2)), Fraction(1, 4), NOISE, 2)
    with pytest.raises(RangeError, match=r"loss is .*; allowed is one of absolute, .* or a matrix of numbers"):
        sampling_remap(UNIFORM, [["a", "b"]], Fraction(1, 4), NOISE, 2)  # type: ignore[arg-type]
    assert loss_matrix([[0, 1], [1, 0]], 1).tolist() == [[0, 1], [1, 0]]  # type: ignore[arg-type] # a list is a matrix
    with pytest.raises(RangeError, match="loss of answering 1 at count 0 is -1"):
        loss_matrix(np.array([[0.0, -1.0], [1.0, 0.0]]), 1)
    with pytest.raises(ShapeError, match="5 rows"):
        optimal_remap(UNIFORM, np.eye(4), "absolute")
    for ratio in (0, 1, Fraction(3, 2)):
        with pytest.raises(RangeError, match=f"ratio alpha is {ratio}"):
            geometric_remap(UNIFORM, "absolute", ratio)
    with pytest.raises(TooLargeError, match="n = 101; allowed is 1 to 100"):
        user_optimum(np.full(102, 1 / 102), "absolute", 0.5)
