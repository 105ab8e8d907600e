"""Estimates: unbiased by enumeration, equal to the mechanisms' own, with the standard errors of the exact law."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.channels import SamplingChannel, noise_sum
from fleetcount_analysis.errors import RangeError, ShapeError
from fleetcount_analysis.estimates import (
    CellEstimates,
    one_sided_cells,
    response_cells,
    response_channel,
    response_standard_errors,
    sampling_cells,
    sampling_standard_errors,
    unary_cells,
)
from fleetcount_analysis.reading import exact_estimates
from fleetcount_mechanisms import planned_noise
from fleetcount_mechanisms.answers import AnswerLaw, Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.noise import TwoSidedNoise
from fleetcount_mechanisms.one_sided_geometric import OneSidedGeometric
from fleetcount_mechanisms.responses import KaryResponse, Mangat, MangatVector, OptimizedUnaryEncoding, TwoCoin, Warner
from fleetcount_mechanisms.sampling import SamplingDie

RESPONSES = [
    Mangat(Fraction(1, 3)),
    Warner(Fraction(3, 4)),
    TwoCoin(Fraction(4, 5), Fraction(1, 5)),
    KaryResponse(Fraction(3, 5), 1),
    KaryResponse(Fraction(1, 2), 3),
]


def estimates_of(outputs: list[int], answer: AnswerLaw) -> list[Fraction]:
    noise = TwoSidedNoise(Fraction(1))
    return exact_estimates(Design(answer=answer, noise=noise, values=answer.values, aggregators=2), outputs)


@pytest.mark.parametrize("response", RESPONSES)
def test_response_estimates_are_exactly_unbiased(response: KaryResponse) -> None:
    truths = [1, 0, 1] if response.values == 1 else [1, 3, 0]
    outputs = range(response.values + 1)
    expected = [Fraction(0)] * response.values
    for answers in itertools.product(outputs, repeat=len(truths)):
        chance = Fraction(1)
        for answer, truth in zip(answers, truths, strict=True):
            chance *= response.probability(answer, truth)
        estimates = estimates_of([answers.count(output) for output in outputs], response)
        expected = [total + chance * one for total, one in zip(expected, estimates, strict=True)]

    assert expected == [truths.count(value) for value in range(1, response.values + 1)]


@pytest.mark.parametrize("response", RESPONSES)
def test_response_estimates_are_the_exact_ones_as_floats(response: KaryResponse) -> None:
    outputs = [90, 55, 13, -2][: response.values + 1]

    exact = estimates_of(outputs, response)

    np.testing.assert_allclose(response_cells(outputs, response, None, 2).counts, [float(one) for one in exact])


def test_mangat_subtracts_the_flipped_share_of_the_sum() -> None:
    assert estimates_of([60, 40], Mangat(Fraction(1, 5))) == [Fraction(40 * 4 - 60, 4)]


@pytest.mark.parametrize("response", RESPONSES)
def test_response_standard_errors_are_those_of_the_enumerated_law(response: KaryResponse) -> None:
    truths = [1, 0, 1] if response.values == 1 else [1, 3, 0]
    outputs = range(response.values + 1)
    second = Fraction(0)
    for answers in itertools.product(outputs, repeat=len(truths)):
        chance = Fraction(1)
        for answer, truth in zip(answers, truths, strict=True):
            chance *= response.probability(answer, truth)
        second += chance * estimates_of([answers.count(output) for output in outputs], response)[0] ** 2
    count = truths.count(1)

    error = response_standard_errors(count, len(truths), response, None, 2)

    assert float(error) == pytest.approx(float(second - count**2) ** 0.5, rel=1e-12)


def test_noise_on_every_output_enters_a_response_with_its_weight() -> None:
    generator, response = np.random.default_rng(5), KaryResponse(Fraction(2, 5), 3)
    draws, keep = (200_000, 2, 4), 1 - np.exp(-0.25)
    noise = (generator.geometric(keep, draws) - generator.geometric(keep, draws)).sum(axis=1)

    cells = response_cells(noise + np.array([40, 30, 20, 10]), response, Fraction(1, 4), 2)
    alone = response_cells([40, 30, 20, 10], response, None, 2)

    added = cells.counts[:, 0].var()
    expected = noise_sum(Fraction(1, 4), 2).variance * (0.8**2 + 3 * 0.2**2) / 0.2**2
    assert added == pytest.approx(expected, rel=0.02)
    noised = response_standard_errors(alone.counts, 100, response, Fraction(1, 4), 2)
    np.testing.assert_allclose(noised**2 - alone.standard_errors**2, expected, rtol=1e-9)
    assert cells.counts.mean(axis=0) == pytest.approx(alone.counts, abs=6 * (added / 200_000) ** 0.5)


def test_a_law_that_treats_values_unevenly_is_refused() -> None:
    class Uneven:
        values = 2

        def probability(self, output: int, truth: int) -> Fraction:
            return [[5, 3, 2], [1, 7, 2], [2, 3, 5]][truth][output] * Fraction(1, 10)

    with pytest.raises(RangeError, match="uneven"):
        response_channel(Uneven())


def test_a_law_that_never_tells_is_refused() -> None:
    class Blind:
        values = 1

        def probability(self, output: int, truth: int) -> Fraction:
            return Fraction(1, 2)

    with pytest.raises(RangeError, match=r"P\[v \| v\] is 1/2; allowed is above"):
        response_channel(Blind())


def test_sampling_estimates_divide_by_the_rate_exactly() -> None:
    assert estimates_of([45, 0, -2], SamplingDie.uniform(Fraction(9, 20), 3)) == [100, 0, Fraction(-40, 9)]
    assert estimates_of([4, -1], Truth(2)) == [4, -1]
    with pytest.raises(RangeError, match="sampling rate is 0"):
        sampling_cells([1], Fraction(0), None, 2)


@pytest.mark.parametrize("count", [0, 3, 1000])
def test_sampling_standard_errors_are_those_of_the_mechanisms(count: int) -> None:
    ours = sampling_standard_errors([count], Fraction(1, 4), Fraction(17, 10), 2)

    assert ours[0] == pytest.approx(planned_noise.release_sd(count, Fraction(1, 4), Fraction(17, 10), 2), rel=1e-12)
    channel = SamplingChannel(sampling_rate=Fraction(1, 4), noise=noise_sum(Fraction(17, 10), 2))
    assert ours[0] ** 2 == pytest.approx(16 * float(channel.variance(np.array([float(count)]))[0]), rel=1e-12)


def test_cells_keep_the_shape_of_ten_thousand_releases() -> None:
    outputs = np.zeros((50, 4, 7))

    assert sampling_cells(outputs, Fraction(1, 4), Fraction(1), 2).counts.shape == (50, 4, 7)
    assert response_cells(outputs, KaryResponse(Fraction(1, 2), 6), None, 2).counts.shape == (50, 4, 6)
    assert sampling_cells(outputs, Fraction(1), Fraction(1), 2).standard_errors[0, 0, 0] ** 2 == pytest.approx(
        noise_sum(Fraction(1), 2).variance
    )


@pytest.mark.parametrize(
    ("response", "hit"),
    [(MangatVector(Fraction(1, 3), 2), Fraction(1)), (OptimizedUnaryEncoding(Fraction(1, 4), 2), Fraction(1, 2))],
)
def test_expected_bits_are_estimated_as_their_devices(response: MangatVector, hit: Fraction) -> None:
    whole = hit * 30 + response.flip * 60  # The expected bits of 30 devices among 90.

    cells = unary_cells([float(whole)], 90, hit, response.flip)

    assert cells.counts.tolist() == pytest.approx([30])
    assert cells.standard_errors[0] == pytest.approx(response.standard_deviation(30, 90))


def test_bits_carry_the_noise_of_the_number_of_devices_too() -> None:
    miss = Fraction(1, 3)
    alone = unary_cells([50], 90, Fraction(1), miss).standard_errors[0] ** 2

    noised = unary_cells([50], 90, Fraction(1), miss, Fraction(1), 3).standard_errors[0] ** 2

    assert noised - alone == pytest.approx(noise_sum(Fraction(1), 3).variance * (1 + 1 / 9) / (2 / 3) ** 2)


@pytest.mark.parametrize(("direction", "sign"), [("up", 1), ("down", -1)])
def test_one_sided_estimates_take_the_mean_noise_off(direction: str, sign: int) -> None:
    noise = OneSidedGeometric(Fraction(3, 4))

    cells = one_sided_cells([10, 20], Fraction(3, 4), 2, direction)

    np.testing.assert_allclose(cells.counts, np.array([10, 20]) - sign * 2 * noise.mean, rtol=1e-12)
    np.testing.assert_allclose(cells.standard_errors**2, 2 * noise.variance, rtol=1e-12)


def test_shapes_and_ranges_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"a release has 3 outputs; allowed is 2"):
        estimates_of([1, 2, 3], Warner(Fraction(3, 4)))
    with pytest.raises(ShapeError, match=r"last axis has 3 outputs"):
        response_cells([[1, 2, 3]], Warner(Fraction(3, 4)), None, 2)
    with pytest.raises(ShapeError, match="counts have shape"):
        CellEstimates(counts=np.zeros(2), standard_errors=np.zeros(3))
    with pytest.raises(RangeError, match="0 <= Q < P <= 1"):
        unary_cells([1], 2, Fraction(1, 4), Fraction(1, 2))
    with pytest.raises(RangeError, match="count is -1"):
        sampling_standard_errors([-1], Fraction(1, 4), None, 2)
    with pytest.raises(RangeError, match="epsilon above 0"):
        one_sided_cells([1], Fraction(0), 1, "up")
