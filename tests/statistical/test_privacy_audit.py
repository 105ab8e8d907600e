"""Every mechanism and every adversary's view as an exact law: its loss is the loss claimed, and samplers follow it.

Deployed releases are attacked in test_audit.py. Here, three links. The real samplers follow the exact laws (chi-square,
20,000 draws each). Of mechanisms that no question has, a lower bound of the loss, wrong with probability at most 0.001,
from two million draws of each law stays below the claim. And this audit catches planted bugs: noise times 0.9,
truncation for rounding, reused noise, wrong sensitivity, a missing side, a missing aggregator, split noise, a
probability rounded up, aborts charged once, floating-point Laplace.

Power, from 100 repetitions of each audit at two million draws a database, asserted below: every planted bug is caught
in 100 of 100, and for every view with a tight claim a claim 10 % too low is seen in at least 99 of 100.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_evidence.papers.geometric.bounded_geometric import bounded_geometric_row
from fleetcount_mechanisms.answers import AnswerLaw, Truth
from fleetcount_mechanisms.asymmetric import (
    AsymmetricGeometric,
    Direction,
    ratio_above,
)
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.geometric import TwoSidedGeometric
from fleetcount_mechanisms.losses import Neighbours
from fleetcount_mechanisms.noise import NoiseLaw, NoNoise, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import noise_epsilon_for, response_release_epsilon
from fleetcount_mechanisms.randomness import SeededRandom
from fleetcount_mechanisms.responses import (
    KaryResponse,
    Mangat,
    MangatVector,
    OptimizedUnaryEncoding,
    RandomizedResponse,
    TwoCoin,
    Warner,
)
from fleetcount_mechanisms.sampling import SamplingDie, toss
from fleetcount_mechanisms.sparse_vector import (
    AsymmetricSparseVector,
    SanitizedSparseVector,
    sanitized_law,
)
from fleetcount_mechanisms.statement import AdversaryView, views_of

from tests.support.audit import (
    View,
    chi_square_p,
    delta_lower_bound,
    epsilon_lower_bound,
    histograms,
    law_loss,
)
from tests.support.bounded_geometric import BoundedGeometric
from tests.support.nightly import NIGHTLY
from tests.support.plain_sparse_vector import PlainSparseVector

TRIALS = 1_000_000  # To choose the event; as many again to judge it.
SAMPLED = 20_000 if NIGHTLY else 8_000
REACH = 6
Law = dict[Hashable, Fraction]

BINARY = SamplingDie.uniform(Fraction(9, 20), 1)
MULTI = SamplingDie.uniform(Fraction(1, 4), 4)
NOISE_ONE = noise_epsilon_for(Fraction(1), BINARY.sampling_rate, Neighbours.ONE_CELL)
NOISE_TWO = noise_epsilon_for(Fraction(1), MULTI.sampling_rate, Neighbours.TWO_CELL)


# Laws of what is seen, for a device whose own contribution is all that is unknown.


def noisy(epsilon: Fraction, shift: int = 0) -> Law:
    """The law of shift + Z, clamped to -REACH..REACH (which an adversary can do as well)."""
    row = bounded_geometric_row(ratio_above(epsilon), shift + REACH, 2 * REACH)
    return {answer - REACH: mass for answer, mass in enumerate(row)}


def mixture(*parts: tuple[Fraction, Mapping[Hashable, Fraction]]) -> Law:
    total: Law = {}
    for weight, law in parts:
        for output, mass in law.items():
            total[output] = total.get(output, Fraction(0)) + weight * mass
    return total


def product(*laws: Mapping[Hashable, Fraction]) -> Law:
    return {
        tuple(output for output, _ in choice): math.prod((mass for _, mass in choice), start=Fraction(1))
        for choice in itertools.product(*(law.items() for law in laws))
    }


def image(law: Mapping[Hashable, Fraction], function: Callable[..., Hashable]) -> Law:
    total: Law = {}
    for output, mass in law.items():
        seen = function(output)
        total[seen] = total.get(seen, Fraction(0)) + mass
    return total


def release_law(die: SamplingDie, noise: Fraction, truth: int, rate: Fraction | None = None) -> Law:
    """One aggregator's noise over the difference of the rounds: cell 1 for V = 1, cells 1 and 2 above."""
    rate = die.sampling_rate if rate is None else rate
    cells = min(die.values, 2)
    hidden = product(*[noisy(noise)] * cells)
    shown = product(*[noisy(noise, int(cell == truth)) for cell in range(1, cells + 1)])
    return mixture((1 - rate, hidden), (rate, shown))


def release_sampler(die: SamplingDie, noise: Fraction, truth: int, seed: int) -> Callable[[int], Iterable[Hashable]]:
    """The real device's coins and the real noise, read as the adversary reads them."""

    def sample(count: int) -> Iterable[Hashable]:
        source, cells = SeededRandom(seed), range(1, min(die.values, 2) + 1)
        noises = iter(TwoSidedGeometric(noise).sample_many(source, count * len(cells)))
        for _ in range(count):
            answer = toss(die, truth, source)
            moved = [int(answer.round_two == cell) - int(answer.round_one == cell) for cell in cells]
            yield tuple(min(max(move + next(noises), -REACH), REACH) for move in moved)

    return sample


def two_party_views(answer: AnswerLaw, noise: NoiseLaw) -> tuple[AdversaryView, ...]:
    return views_of(Design(answer=answer, noise=noise, values=answer.values, aggregators=2))


def claim_of(views: Iterable[object], adversary: str) -> float:
    """The printed claim of an adversary's view, as everybody reads it."""
    return next(float(view.epsilon) for view in views if view.adversary == adversary)


def release_view(name: str, adversary: str, die: SamplingDie, noise: Fraction, rate: Fraction | None = None) -> View:
    truths = (1, 0) if die.values == 1 else (1, 2)
    views = two_party_views(die, TwoSidedNoise(noise))
    samplers = [release_sampler(die, noise, truth, 40 + truth) for truth in truths] if rate is None else []
    return View(
        name=name,
        first=release_law(die, noise, truths[0], rate),
        second=release_law(die, noise, truths[1], rate),
        claim=claim_of(views, adversary),
        samplers=tuple(samplers),
    )


def public_view(name: str, die: SamplingDie, noise: Fraction) -> View:
    """What the public sees: the noises of two honest aggregators, so less than is claimed."""
    one = release_view(name, "public_and_broker", die, noise)
    again = product(*[noisy(noise)] * min(die.values, 2))

    def blurred(law: Mapping[Hashable, Fraction]) -> Law:
        pairs = product(law, again)
        return image(pairs, lambda pair: tuple(min(max(a + b, -2), 2) for a, b in zip(*pair, strict=True)))

    return View(name=name, first=blurred(one.first), second=blurred(one.second), claim=one.claim, tight=False)


def response_view(name: str, response: RandomizedResponse, truths: tuple[int, int], *, one_sided: bool = False) -> View:
    def sampler(truth: int) -> Callable[[int], Iterable[Hashable]]:
        source = SeededRandom(60 + truth)
        return lambda count: [response.randomize(truth, source) for _ in range(count)]

    laws = [{o: response.probability(o, truth) for o in range(response.values + 1)} for truth in truths]
    return View(
        name=name,
        first=laws[0],
        second=laws[1],
        claim=claim_of(two_party_views(response, NoNoise()), "one_answer_alone"),
        one_sided=one_sided,
        samplers=tuple(sampler(truth) for truth in truths),
    )


def bits_view(
    name: str,
    response: MangatVector | OptimizedUnaryEncoding,
    bits: tuple[tuple[int, ...], tuple[int, ...]],
    claim: float,
    *,
    one_sided: bool,
) -> View:
    def law(truth: tuple[int, ...]) -> Law:
        return product(*[{out: response.bit_probability(out, bit) for out in (0, 1)} for bit in truth])

    def sampler(truth: tuple[int, ...]) -> Callable[[int], Iterable[Hashable]]:
        source = SeededRandom(70)
        return lambda count: [response.randomize_bits(truth, source) for _ in range(count)]

    return View(
        name=name,
        first=law(bits[0]),
        second=law(bits[1]),
        claim=claim,
        one_sided=one_sided,
        samplers=(sampler(bits[0]), sampler(bits[1])),
    )


def noised_response_law(response: RandomizedResponse, noise: Fraction, truth: int) -> Law:
    """The noised counts of both outputs of a binary response."""
    return mixture(
        *(
            (response.probability(output, truth), product(noisy(noise, 1 - output), noisy(noise, output)))
            for output in (0, 1)
        )
    )


def message_view(name: str, die: SamplingDie, truths: tuple[int, int]) -> View:
    def sampler(truth: int) -> Callable[[int], Iterable[Hashable]]:
        source = SeededRandom(50 + truth)
        return lambda count: [toss(die, truth, source).round_two for _ in range(count)]

    laws = [{o: die.round_two_probability(o, truth) for o in range(die.values + 1)} for truth in truths]
    return View(
        name=name,
        first=laws[0],
        second=laws[1],
        claim=claim_of(two_party_views(die, TwoSidedNoise(Fraction(1))), "one_round_two_message"),
        samplers=tuple(sampler(truth) for truth in truths),
    )


def first_message_view() -> View:
    def sampler(truth: int) -> Callable[[int], Iterable[Hashable]]:
        source = SeededRandom(55 + truth)
        return lambda count: [toss(MULTI, truth, source).round_one for _ in range(count)]

    law: Law = {output: MULTI.round_one_probability(output) for output in range(5)}
    return View(name="round-one message", first=law, second=law, claim=0, samplers=(sampler(1), sampler(2)))


def count_view(name: str, mechanism: AsymmetricGeometric | BoundedGeometric, counts: tuple[int, int]) -> View:
    def sampler(count: int) -> Callable[[int], Iterable[Hashable]]:
        return lambda draws: mechanism.sample_many(count, SeededRandom(80 + count), draws)

    return View(
        name=name,
        first=dict(enumerate(mechanism.row(counts[0]))),
        second=dict(enumerate(mechanism.row(counts[1]))),
        claim=float(mechanism.epsilon),
        one_sided=isinstance(mechanism, AsymmetricGeometric),
        samplers=tuple(sampler(count) for count in counts),
    )


def run_view(
    name: str, run: SanitizedSparseVector | AsymmetricSparseVector, counts: tuple[tuple[int, ...], ...]
) -> View:
    def sampler(given: tuple[int, ...]) -> Callable[[int], Iterable[Hashable]]:
        source = SeededRandom(90)
        return lambda draws: [run.run(given, source) for _ in range(draws)]

    return View(
        name=name,
        first=run.law(counts[0]),
        second=run.law(counts[1]),
        claim=float(run.total_epsilon),
        one_sided=True,
        samplers=tuple(sampler(given) for given in counts),
    )


def plain_run_view() -> View:
    run, counts = PlainSparseVector(epsilon=Fraction(1), thresholds=(1, 1, 1)), ((1, 1, 1), (2, 2, 0))

    def sampler(given: tuple[int, ...]) -> Callable[[int], Iterable[Hashable]]:
        source = SeededRandom(95)
        return lambda draws: [run.run(given, source) for _ in range(draws)]

    laws = [{answers: Fraction(mass) for answers, mass in run.law(given).items()} for given in counts]
    samplers = tuple(sampler(given) for given in counts)
    return View(name="plain sparse vector", first=laws[0], second=laws[1], claim=1, tight=False, samplers=samplers)


def direct_view(name: str, noise: Fraction, values: int) -> View:
    cells = min(values, 2)
    truths = (1, 0) if values == 1 else (1, 2)
    laws = [product(*[noisy(noise, int(cell == t)) for cell in range(1, cells + 1)]) for t in truths]
    claim = claim_of(two_party_views(Truth(values), TwoSidedNoise(noise)), "all_but_one_aggregators")
    return View(name=name, first=laws[0], second=laws[1], claim=claim)


WARNER, KARY = Warner.from_epsilon(Fraction(1)), KaryResponse.from_epsilon(Fraction(1), 9)
MANGAT = Mangat.from_epsilon(Fraction(1))
DESIGN_VIEWS = [
    message_view("round-two message, binary", BINARY, (1, 0)),
    message_view("round-two message, four values", MULTI, (1, 2)),
    message_view(
        "round-two message, unequal die",
        SamplingDie(sampling_rate=Fraction(1, 4), values=1, face_probabilities=(Fraction(1, 2), Fraction(1, 4))),
        (1, 0),
    ),
    first_message_view(),
    release_view("hardened release to all but one, one cell", "all_but_one_aggregators", BINARY, NOISE_ONE),
    release_view("hardened release to all but one, two cells", "all_but_one_aggregators", MULTI, NOISE_TWO),
    public_view("hardened release to the public, one cell", BINARY, NOISE_ONE),
    release_view("release, sampled bit leaked, one cell", "sampled_bit_leaked", BINARY, NOISE_ONE, Fraction(1)),
    release_view("release, sampled bit leaked, two cells", "sampled_bit_leaked", MULTI, Fraction(1, 2), Fraction(1)),
    direct_view("direct release, one cell", Fraction(1), 1),
    direct_view("direct release, two cells", Fraction(1, 2), 3),
    response_view("two coins", TwoCoin(Fraction(4, 5), Fraction(1, 5)), (1, 0)),
    response_view("Warner", WARNER, (1, 0)),
    response_view("Mangat", MANGAT, (1, 0), one_sided=True),
    response_view("k-ary", KARY, (3, 0)),
    bits_view("Mangat vector, one place", MangatVector(MANGAT.flip, 2), ((1, 0), (0, 0)), 1.0, one_sided=True),
    bits_view("Mangat vector, two places", MangatVector(MANGAT.flip, 2), ((1, 1), (0, 0)), 2.0, one_sided=True),
    bits_view(
        "optimized unary encoding",
        OptimizedUnaryEncoding.from_epsilon(Fraction(1), 2),
        ((1, 0), (0, 1)),
        1.0,
        one_sided=False,
    ),
    View(
        name="noised Warner counts",
        first=noised_response_law(WARNER, Fraction(1, 2), 1),
        second=noised_response_law(WARNER, Fraction(1, 2), 0),
        claim=float(response_release_epsilon(WARNER, Fraction(1, 2))),
    ),
    View(
        name="noised Mangat counts",
        first=noised_response_law(MANGAT, Fraction(1, 2), 1),
        second=noised_response_law(MANGAT, Fraction(1, 2), 0),
        claim=float(response_release_epsilon(MANGAT, Fraction(1, 2))),
    ),
]
MECHANISM_VIEWS = [
    count_view("AGeo, decreasing", AsymmetricGeometric(epsilon=Fraction(1), maximum=6), (3, 2)),
    count_view(
        "AGeo, increasing",
        AsymmetricGeometric(epsilon=Fraction(1), maximum=6, direction=Direction.INCREASING),
        (2, 3),
    ),
    count_view("bounded geometric", BoundedGeometric(epsilon=Fraction(1), maximum=5), (2, 3)),
    run_view(
        "SALap's integer form, one abort",
        SanitizedSparseVector(epsilon=Fraction(1), maximum=4, thresholds=(1, 1, 1)),
        ((2, 2, 2), (1, 1, 1)),
    ),
    run_view(
        "SALap's integer form, two aborts",
        SanitizedSparseVector(epsilon=Fraction(1, 2), maximum=4, thresholds=(1, 1, 1), aborts=2),
        ((2, 2, 2), (1, 1, 1)),
    ),
    run_view(
        "asymmetric sparse vector",
        AsymmetricSparseVector(epsilon=Fraction(1), maximum=4, thresholds=(1, 1, 1)),
        ((1, 1, 1), (0, 0, 0)),
    ),
    plain_run_view(),
]
VIEWS = DESIGN_VIEWS + MECHANISM_VIEWS
NAMES = [view.name for view in VIEWS]


# The planted bugs, each with the claim of the sound mechanism.


def truncated_laplace(epsilon: Fraction, shift: int) -> Law:
    """int(Laplace) truncates towards zero and doubles the mass of 0, where round() or a geometric law would not."""
    ratio = ratio_above(epsilon)
    law = {z: (1 - ratio) * (Fraction(1, 2) * ratio ** abs(z) if z else 1) for z in range(-60, 61)}
    law[60] += 1 - sum(law.values())
    return image(law, lambda z: min(max(z + shift, -REACH), REACH))


def split_noise(epsilon: Fraction, shift: int) -> Law:
    """One of two equal shares of a geometric noise: the difference of two negative binomials of order 1/2."""
    ratio, reach = math.exp(-epsilon), 60
    half = [math.sqrt(1 - ratio)]
    for g in range(1, reach):
        half.append(half[-1] * ratio * (g - 0.5) / g)
    law: Counter[int] = Counter()
    for (g, first), (h, second) in itertools.product(enumerate(half), repeat=2):
        law[min(max(g - h + shift, -REACH), REACH)] += first * second
    total = math.fsum(law.values())
    return {z: Fraction(mass / total) for z, mass in law.items()}


def one_noise_for_both_cells(truth: int) -> Law:
    noise = noisy(NOISE_TWO)
    hidden = image(noise, lambda z: (z, z))
    return mixture(
        (1 - MULTI.sampling_rate, hidden),
        (MULTI.sampling_rate, image(noise, lambda z: (z + (truth == 1), z + (truth == 2)))),
    )


def bug(name: str, first: Law, second: Law, claim: float, *, one_sided: bool = False) -> View:
    return View(name=name, first=first, second=second, claim=claim, one_sided=one_sided)


TENTH_LESS = NOISE_ONE / Fraction(9, 10)
ONE_CELL_NOISE = noise_epsilon_for(Fraction(1), MULTI.sampling_rate, Neighbours.ONE_CELL)
ROUNDED_UP = Warner(Fraction(74, 100))
HALF = Fraction(1, 2)
BUGS = [
    bug("noise times 0.9", release_law(BINARY, TENTH_LESS, 1), release_law(BINARY, TENTH_LESS, 0), 1),
    bug("truncation for rounding", truncated_laplace(Fraction(1), 1), truncated_laplace(Fraction(1), 0), 1),
    bug("one noise for two cells", one_noise_for_both_cells(1), one_noise_for_both_cells(2), 1),
    bug(
        "one noise for two answers, one of them without the device",
        image(noisy(HALF), lambda z: (z + 1, z)),
        image(noisy(HALF), lambda z: (z, z)),
        1,
    ),
    bug(
        "one-cell noise for two cells", release_law(MULTI, ONE_CELL_NOISE, 1), release_law(MULTI, ONE_CELL_NOISE, 2), 1
    ),
    bug(
        "a missing side",
        image(noisy(Fraction(1)), lambda z: min(abs(z) + 1, REACH)),
        image(noisy(Fraction(1)), lambda z: min(abs(z), REACH)),
        1,
    ),
    bug(
        "a missing aggregator",
        {1: BINARY.sampling_rate, 0: 1 - BINARY.sampling_rate},
        {0: Fraction(1)},
        1,
    ),
    bug("one noise split over the aggregators", split_noise(Fraction(1), 1), split_noise(Fraction(1), 0), 1),
    bug(
        "a probability rounded up",
        {o: ROUNDED_UP.probability(o, 1) for o in (0, 1)},
        {o: ROUNDED_UP.probability(o, 0) for o in (0, 1)},
        1,
    ),
    bug(
        "two aborts charged as one",
        sanitized_law(ratio_above(HALF), 4, (2, 2, 2), (1, 1, 1), 2),
        sanitized_law(ratio_above(HALF), 4, (1, 1, 1), (1, 1, 1), 2),
        0.5,
        one_sided=True,
    ),
    bug(
        "one-sided noise on a count that may also rise",
        dict(enumerate(AsymmetricGeometric(epsilon=Fraction(1), maximum=6).row(2))),
        dict(enumerate(AsymmetricGeometric(epsilon=Fraction(1), maximum=6).row(3))),
        1,
        one_sided=True,
    ),
]
BUG_NAMES = [view.name for view in BUGS]


# The audit.


@pytest.mark.parametrize("view", MECHANISM_VIEWS, ids=lambda view: view.name)
def test_no_view_loses_more_than_it_claims(view: View):
    counts = histograms(view, TRIALS, np.random.default_rng(1))

    bound = epsilon_lower_bound(counts, one_sided=view.one_sided)

    print(f"{view.name}: audited >= {bound:.4f}, claimed {view.claim:.5f}")
    assert bound <= view.claim


@pytest.mark.parametrize("view", VIEWS, ids=NAMES)
def test_the_claim_covers_the_exact_loss_and_is_not_padded(view: View):
    loss = law_loss(view.first, view.second)
    if not view.one_sided:
        loss = max(loss, law_loss(view.second, view.first))

    assert loss <= view.claim + 1e-9
    assert not view.tight or loss >= view.claim - 2e-5


@pytest.mark.parametrize("view", [view for view in VIEWS if view.samplers], ids=lambda view: view.name)
def test_the_real_sampler_follows_the_law_that_is_audited(view: View):
    for sampler, law, other in zip(view.samplers, (view.first, view.second), (view.second, view.first), strict=True):
        drawn = list(sampler(SAMPLED))

        assert chi_square_p(drawn, law) > 1e-20
        assert law == other or chi_square_p(drawn, other) < 1e-20


@pytest.mark.parametrize("view", BUGS, ids=BUG_NAMES)
def test_every_planted_bug_is_caught(view: View):
    counts = histograms(view, TRIALS, np.random.default_rng(2))

    bound = epsilon_lower_bound(counts, one_sided=view.one_sided)

    print(f"{view.name}: audited >= {bound:.4f}, claimed {view.claim:.5f}")
    assert bound > view.claim


def power(view: View, claim: float, repetitions: int = 100) -> float:
    """The share of audits whose bound exceeds the claim; counts drawn at once, as multinomials of the same laws."""
    rng = np.random.default_rng(3)
    outputs = sorted(set(view.first) | set(view.second), key=repr)
    laws = [np.array([float(law.get(o, 0)) for o in outputs]) for law in (view.first, view.second)]
    first, second, judged, judged_second = (
        rng.multinomial(TRIALS, law / law.sum(), size=repetitions) for law in (*laws, *laws)
    )
    caught = [
        epsilon_lower_bound(counts, one_sided=view.one_sided) > claim
        for counts in zip(first, second, judged, judged_second, strict=True)
    ]
    return sum(caught) / repetitions


@pytest.mark.nightly  # Ten seconds for both power tests together.
@pytest.mark.parametrize("view", BUGS, ids=BUG_NAMES)
def test_the_audit_catches_every_planted_bug_a_hundred_times_in_a_hundred(view: View):
    assert power(view, view.claim) == 1


@pytest.mark.nightly  # Ten seconds for both power tests together.
@pytest.mark.parametrize("view", [v for v in VIEWS if v.tight and v.claim > 0], ids=lambda view: view.name)
def test_the_audit_would_see_a_claim_ten_percent_too_low(view: View):
    assert power(view, 0.9 * view.claim) >= 0.99


# Views without a finite eps: the delta they claim.


def linked_pair_view() -> View:
    laws = [{(a, b): BINARY.pair_probability(a, b, truth) for a in (0, 1) for b in (0, 1)} for truth in (1, 0)]

    def sampler(truth: int) -> Callable[[int], Iterable[Hashable]]:
        source = SeededRandom(56 + truth)
        return lambda count: [tuple(toss(BINARY, truth, source)[:2]) for _ in range(count)]

    delta = next(v.delta for v in two_party_views(BINARY, TwoSidedNoise(NOISE_ONE)) if v.adversary == "all_aggregators")
    return View(
        name="both rounds of one device",
        first=laws[0],
        second=laws[1],
        claim=math.inf,
        delta=float(delta),
        samplers=(sampler(1), sampler(0)),
    )


def exact_difference_view() -> View:
    rate = BINARY.sampling_rate
    delta = next(v.delta for v in two_party_views(BINARY, NoNoise()) if v.adversary == "public_and_broker")
    return View(
        name="exact difference published",
        first={1: rate, 0: 1 - rate},
        second={0: Fraction(1)},
        claim=math.inf,
        delta=float(delta),
    )


REVEALING = [linked_pair_view(), exact_difference_view()]


@pytest.mark.parametrize("view", REVEALING, ids=lambda view: view.name)
def test_a_view_without_a_finite_eps_shows_the_truth_with_its_delta_and_no_more(view: View):
    counts = histograms(view, TRIALS, np.random.default_rng(4))

    assert 0.98 * view.delta < delta_lower_bound(counts, 1.0) <= view.delta
    assert epsilon_lower_bound(counts) > 8
    for sampler, law in zip(view.samplers, (view.first, view.second), strict=False):
        assert chi_square_p(sampler(SAMPLED), law) > 1e-20


def float_laplace(index: int) -> float:
    """Exponential noise of scale 1 from one of 2^53 uniform numbers, as programs with floats draw it."""
    return -math.log(math.ldexp(index, -53))


def can_come_from(answer: float, count: int) -> bool:
    """Whether count + noise can be this float: the candidates are the few numbers next to 2^53 e^(count - answer)."""
    middle = round(math.ldexp(math.exp(count - answer), 53))
    near = range(max(1, middle - 8), min(1 << 53, middle + 8) + 1)
    return answer >= count and any(count + float_laplace(index) == answer for index in near)


def test_floating_point_laplace_is_caught_because_its_outputs_name_the_count():
    draws = 10_000
    indices = np.random.default_rng(7).integers(1, 1 << 53, (4, draws), endpoint=True).tolist()
    seen = [
        [can_come_from(count + float_laplace(index), 0) for index in row]
        for count, row in zip((1, 0, 1, 0), indices, strict=True)
    ]

    bound = epsilon_lower_bound(
        [np.bincount(np.array(known, dtype=np.int64), minlength=2) for known in seen], one_sided=True
    )

    assert bound > 4
    assert all(seen[1])


# The peers, where they have the same mechanism.


def excess_of_geometric_noise():
    """Return delta at epsilon 1/4 of noise for epsilon 1/2, by the law."""
    law, other = noisy(HALF), noisy(HALF, 1)
    return math.fsum(max(0.0, float(law[z]) - math.exp(0.25) * float(other[z])) for z in law)


def test_delta_of_geometric_noise_is_that_of_dp_accounting_0_6():
    assert excess_of_geometric_noise() == pytest.approx(0.13768751663, abs=1e-4)


def test_the_losses_of_warner_s_and_k_ary_response_are_those_of_opendp_0_16():
    assert Warner(Fraction(3, 4)).epsilon == pytest.approx(1.0986122886681098, abs=1e-9)
    assert KaryResponse(Fraction(1, 2), 9).epsilon == pytest.approx(2.1972245773362196, abs=1e-9)


@pytest.mark.nightly
def test_opendp_s_geometric_noise_follows_the_law_that_ours_follows():
    dp = pytest.importorskip("opendp.prelude", reason="needs OpenDP (`make nightly` installs it)")
    dp.enable_features("contrib")
    peer = dp.m.make_geometric(dp.atom_domain(T=int), dp.absolute_distance(T=int), scale=1.0)

    theirs = [(min(max(peer(0), -REACH), REACH)) for _ in range(10_000)]
    ours = [min(max(z, -REACH), REACH) for z in TwoSidedGeometric(Fraction(1)).sample_many(SeededRandom(8), 10_000)]

    law = noisy(Fraction(1))
    assert chi_square_p(theirs, law) > 1e-20
    assert chi_square_p(ours, law) > 1e-20
    assert peer.map(1) == pytest.approx(1, abs=1e-9)


@pytest.mark.nightly
def test_opendp_states_the_same_loss_of_warner_s_and_k_ary_response():
    dp = pytest.importorskip("opendp.prelude", reason="needs OpenDP (`make nightly` installs it)")
    dp.enable_features("contrib")

    warner = dp.m.make_randomized_response_bool(prob=float(WARNER.keep))
    k_ary = dp.m.make_randomized_response(list(range(10)), prob=float(KARY.keep))

    assert warner.map(1) == pytest.approx(WARNER.epsilon, abs=1e-9)
    assert k_ary.map(1) == pytest.approx(KARY.epsilon, abs=1e-9)


@pytest.mark.nightly
def test_dp_accounting_states_the_same_delta_of_geometric_noise():
    pld = pytest.importorskip(
        "dp_accounting.pld.privacy_loss_distribution", reason="needs dp-accounting (`make nightly` installs it)"
    )
    peer = pld.from_discrete_laplace_mechanism(0.5, sensitivity=1, value_discretization_interval=1e-4)

    assert peer.get_delta_for_epsilon(0.25) == pytest.approx(excess_of_geometric_noise(), abs=1e-4)
    assert peer.get_delta_for_epsilon(0.5001) == 0
