"""The parts of a report say what the coins say, and the faces follow the die."""

import math
from collections import Counter
from fractions import Fraction

import pytest
from fleetcount_client.answering import (
    MAX_SECRET_BYTES,
    TwoRoundSecret,
    draw_two_round,
    envelope_parts,
    one_round_parts,
    round_one_parts,
    round_two_parts,
    truth_of,
)
from fleetcount_client.signals import Reading
from fleetcount_mechanisms.randomness import SeededRandom
from fleetcount_mechanisms.responses import AsymmetricVector, Flips, KaryResponse, Mangat, MangatVector
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.errors import DecodeError, QuestionError
from fleetcount_protocol.ids import Digest, ReportId
from fleetcount_protocol.window.domain import Bins, Categories
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.window.window import Window, context_of, prio3_for

from tests.client.deployment import Deployment
from tests.support.protocol_samples import session_secret

DEVICE = Digest(bytes(32))

WORLD = Deployment()
SOURCE = SeededRandom(1)


def one_round(**changes: object) -> Window:
    return WORLD.window(**changes)


def sums(window: Window, parts: tuple[bytes, ...]) -> list[int]:
    """Return what the measurement shares of a whole report add up to."""
    prio3 = prio3_for(window)
    length = prio3.circuit.measurement_length
    total = prio3.field.decode_vector(parts[0][: 8 * length], length)
    for position, part in enumerate(parts[1:], start=1):
        words = prio3.helper_measurement_share(context_of(window), position, part[:32])
        total = [(a + b) % prio3.field.modulus for a, b in zip(total, words, strict=True)]
    return total


@pytest.mark.parametrize("aggregators", [2, 5])
def test_the_state_between_the_rounds_is_small_and_comes_back_exactly(aggregators: int) -> None:
    world = Deployment(aggregators)
    window = world.window()
    keys = tuple(session_secret(f"{n}").window_key for n in range(aggregators))

    secret = draw_two_round(window, 2, keys, SeededRandom(1), device=DEVICE)

    assert len(secret.encode()) == 54 + 50 * aggregators <= MAX_SECRET_BYTES
    assert TwoRoundSecret.decode(secret.encode()) == secret


def test_the_largest_positions_fit_the_state() -> None:
    secret = TwoRoundSecret(report_id=ReportId(bytes(16)), seed=bytes(32), round_one=4095, round_two=4095, keys=())

    assert TwoRoundSecret.decode(secret.encode()) == secret


def test_a_damaged_state_is_refused_at_every_length() -> None:
    secret = draw_two_round(WORLD.window(), 2, (session_secret().window_key,), SeededRandom(1), device=DEVICE).encode()

    for stored in [secret[:n] for n in range(len(secret))] + [secret + b"\0", b"\1" + secret[1:]]:
        with pytest.raises(DecodeError):
            TwoRoundSecret.decode(stored)


def test_the_same_state_gives_the_same_bytes_and_both_rounds_join_to_the_envelope() -> None:
    window = WORLD.window()
    secret = draw_two_round(window, 2, (), SeededRandom(2), device=DEVICE)

    first, again = round_one_parts(window, secret), round_one_parts(window, TwoRoundSecret.decode(secret.encode()))
    second = round_two_parts(window, secret)
    whole = envelope_parts(window, secret)

    assert first == again
    assert tuple(a + b for a, b in zip(first.parts, second.parts, strict=True)) == whole.parts
    assert (first.public_share, second.public_share) == (b"", whole.public_share)


def test_messages_have_one_size_whatever_the_truth_and_the_coins() -> None:
    window = WORLD.window()
    sizes = set()

    for seed in range(60):
        secret = draw_two_round(window, seed % 4, (), SeededRandom(seed), device=DEVICE)
        first, second = round_one_parts(window, secret), round_two_parts(window, secret)
        sizes.add((*map(len, first.parts), *map(len, second.parts), len(second.public_share), len(secret.encode())))

    assert len(sizes) == 1


def faces(die: SamplingDie, truth: int, draws: int) -> Counter[tuple[int, int]]:
    window = WORLD.window(mechanism=die)
    source = SeededRandom(7)
    counted: Counter[tuple[int, int]] = Counter()
    for _ in range(draws):
        secret = draw_two_round(window, truth, (), source, device=DEVICE)
        counted[secret.round_one, secret.round_two] += 1
    return counted


def worst_deviation(counted: Counter[tuple[int, int]], die: SamplingDie, truth: int, draws: int) -> float:
    """Return the largest distance of a cell from its law, in standard deviations; infinite for an impossible pair."""
    worst = 0.0
    for pair in set(counted) | {(v, v) for v in range(4)} | {(0, truth)}:
        probability = float(die.pair_probability(*pair, truth))
        if probability == 0:
            return math.inf
        sd = math.sqrt(draws * probability * (1 - probability))
        worst = max(worst, abs(counted[pair] - draws * probability) / sd)
    return worst


def test_the_pairs_follow_the_die_and_another_die_is_told_apart() -> None:
    draws = 40_000
    die = SamplingDie(
        sampling_rate=Fraction(3, 10),
        values=3,
        face_probabilities=(Fraction(1, 10), Fraction(2, 10), Fraction(1, 10), Fraction(3, 10)),
    )
    other = SamplingDie.uniform(Fraction(39, 100), 3)

    counted = faces(die, 2, draws)

    # 9.3 standard deviations is p = 1e-20, two-sided.
    assert worst_deviation(counted, die, 2, draws) < 9.3
    assert worst_deviation(counted, other, 2, draws) > 9.3


def test_a_response_is_one_hot_at_the_randomized_value() -> None:
    window = one_round(mode=Mode.RESPONSE, mechanism=KaryResponse(keep=Fraction(9, 10), values=3))
    seen = Counter()

    for seed in range(300):
        parts = one_round_parts(window, 2, SeededRandom(seed), device=DEVICE)
        words = sums(window, parts.parts)
        assert sorted(words) == [0, 0, 0, 1]
        seen[words.index(1)] += 1

    assert parts.round == 0
    assert 230 < seen[2] < 300


def test_a_yes_always_answers_yes_under_mangat() -> None:
    window = one_round(mode=Mode.RESPONSE, domain=Categories(names=("yes",)), mechanism=Mangat(flip=Fraction(1, 3)))

    answers = {
        tuple(sums(window, one_round_parts(window, 1, SeededRandom(seed), device=DEVICE).parts)) for seed in range(40)
    }

    assert answers == {(0, 1)}


def test_vector_mangat_never_clears_a_true_bit_and_always_says_that_it_takes_part() -> None:
    window = one_round(mode=Mode.RESPONSE, mechanism=MangatVector(flip=Fraction(1, 3), values=3))
    truth = truth_of(window, Reading(value=frozenset({"A", "C"})), SOURCE)
    flips = 0

    for seed in range(60):
        words = sums(window, one_round_parts(window, truth, SeededRandom(seed), device=DEVICE).parts)
        assert (words[0], words[1], words[3]) == (1, 1, 1)
        flips += words[2]

    assert truth == (1, 0, 1)
    assert 5 < flips < 40


def test_an_asymmetric_answer_is_wrong_only_the_ways_that_hide_a_value() -> None:
    law = AsymmetricVector(Fraction(1, 3), (Flips.UP, Flips.DOWN, Flips.BOTH))
    window = one_round(mode=Mode.RESPONSE, mechanism=law)
    seen = {}
    for truth in range(4):
        drawn = (one_round_parts(window, truth, SeededRandom(seed), device=DEVICE).parts for seed in range(60))
        seen[truth] = [sums(window, parts) for parts in drawn]

    assert truth_of(window, Reading(value="A"), SOURCE) == 1
    assert all(words[0] == 1 for answers in seen.values() for words in answers), "it takes part"
    assert all(words[1] == 1 for words in seen[1]), "who has A always says so"
    assert all(words[2] == 0 for truth in (0, 1, 3) for words in seen[truth]), "nobody else says B"
    # 60 answers each: a chance of 1/3, 1/3 and 1/4 to be wrong has no 0 and no 60 but with one of 10^-7.
    assert 0 < sum(words[1] for words in seen[2]) < 60
    assert 0 < sum(words[2] for words in seen[2]) < 60
    assert 0 < sum(words[3] for words in seen[3]) < 60
    assert 0 < sum(words[3] for words in seen[2]) < 60


def test_direct_mode_shares_the_truth_itself() -> None:
    window = one_round(mode=Mode.DIRECT, mechanism=None)

    assert sums(window, one_round_parts(window, 3, SeededRandom(1), device=DEVICE).parts) == [0, 0, 0, 1]


def test_a_two_round_window_is_not_answered_in_one_and_the_reverse() -> None:
    with pytest.raises(QuestionError):
        one_round_parts(WORLD.window(), 1, SeededRandom(1), device=DEVICE)
    with pytest.raises(QuestionError):
        draw_two_round(one_round(mode=Mode.DIRECT, mechanism=None), 1, (), SeededRandom(1), device=DEVICE)


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        ("B", 2),
        ("Z", 0),
        (None, 0),
        (7.5, 0),
        (True, 0),
        (frozenset({"B"}), 2),
        (frozenset({"A", "B"}), 0),
        ((1, 2), 0),
    ],
)
def test_a_reading_becomes_a_position_or_none_of_them(reading: object, expected: int) -> None:
    assert truth_of(WORLD.window(), Reading(value=reading), SOURCE) == expected  # type: ignore[arg-type]


def test_a_number_becomes_its_bin() -> None:
    bins = Bins(edges=(Fraction(0), Fraction(50)), open_above=True, unit="km/h")
    window = WORLD.window(domain=bins, mechanism=SamplingDie.uniform(Fraction(1, 4), 2))

    speeds = (-1.0, 0.0, 49.9, 50, math.inf, math.nan)
    assert [truth_of(window, Reading(value=speed), SOURCE) for speed in speeds] == [0, 1, 1, 2, 0, 0]


def test_a_number_in_another_unit_than_the_questions_is_converted_or_none() -> None:
    bins = Bins(edges=(Fraction(0), Fraction(50)), open_above=True, unit="km/h")
    window = WORLD.window(domain=bins, mechanism=SamplingDie.uniform(Fraction(1, 4), 2))

    found = [truth_of(window, Reading(value=14, unit=unit), SOURCE) for unit in ("m/s", "km/h", "", "parsecs", "kWh")]
    assert found == [2, 1, 1, 1, 0]
    assert truth_of(window, Reading(value=50 / 3.6, unit="m/s"), SOURCE) == 2
