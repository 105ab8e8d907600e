"""The owner's limits hold, at the limit and one step beyond it, and a refusal names value and limit."""

import random
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from math import inf

import pytest
from fleetcount_client.charges import Charge, LedgerAge, judge_age, ready_at, unknown_before
from fleetcount_client.ledger import Ledger, budget_of, spent_within
from fleetcount_client.policy import OwnerPolicy, PolicyRefusal, Trust, judge_question, judge_window
from fleetcount_mechanisms.accounting.vectors import LossVector
from fleetcount_mechanisms.answers import Relation
from fleetcount_mechanisms.renyi import pure_divergence
from fleetcount_mechanisms.responses import (
    AsymmetricVector,
    Flips,
    KaryResponse,
    Mangat,
    MangatVector,
    RandomizedResponse,
)
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_mechanisms.statement import epsilon_of, views_of
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.question.fields import Coin
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.fields import Mode, Release, ReleaseKind

from tests.client.deployment import SIGNAL, START, Deployment, charge_of, open_policy

WORLD = Deployment()
EXACT = Release(kind=ReleaseKind.EXACT, noise_epsilon=None, level=Fraction(19, 20))


def test_a_window_within_every_limit_is_allowed() -> None:
    assert judge_window(open_policy(), WORLD.window()) is None


def test_epsilon_is_allowed_at_the_limit_and_refused_just_above_it() -> None:
    window = WORLD.window()
    epsilon = epsilon_of(window.design)
    assert epsilon is not None

    at = judge_window(open_policy(largest_epsilon=Fraction(epsilon)), window)
    above = judge_window(open_policy(largest_epsilon=Fraction(epsilon) - Fraction(1, 10**6)), window)

    assert at is None
    assert above is not None
    assert above.rule == "largest_epsilon"
    assert str(epsilon) in above.message


def test_one_window_is_judged_for_each_owner_by_his_own_policy() -> None:
    question = WORLD.once()
    window = window_at(question, 0)
    strict = open_policy(smallest_min_batch_size=window.min_batch_size + 1)
    assert hash(strict) == hash(open_policy())

    judged = [judge_question(policy, question, window) for policy in (open_policy(), strict, open_policy())]

    assert [None if one is None else one.rule for one in judged] == [None, "smallest_min_batch_size", None]


@pytest.mark.parametrize(
    ("policy", "window", "rule", "shown"),
    [
        ({"signals": frozenset({"Vehicle.Speed"})}, {}, "signals", SIGNAL),
        ({"smallest_min_batch_size": 11}, {}, "smallest_min_batch_size", "10"),
        ({"largest_sampling_rate": Fraction(24, 100)}, {}, "largest_sampling_rate", "0.25"),
        ({}, {"release": EXACT}, "allow_exact_release", "allow_exact_release"),
        (
            {},
            {"mode": Mode.DIRECT, "mechanism": None},
            "allow_direct",
            "allow_direct",
        ),
        (
            {"largest_local_epsilon": Fraction(1)},
            {
                "mode": Mode.RESPONSE,
                "mechanism": KaryResponse(keep=Fraction(99, 100), values=3),
            },
            "largest_local_epsilon",
            "5.69",
        ),
    ],
)
def test_a_refusal_names_the_rule_the_value_and_the_limit(
    policy: dict[str, object], window: dict[str, object], rule: str, shown: str
) -> None:
    refusal = judge_window(open_policy(**policy), WORLD.window(**window))

    assert refusal is not None
    assert refusal.rule == rule
    assert shown in refusal.message


def vectors() -> Question:
    mechanism = MangatVector(Fraction(1, 10), 3)
    release = Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1), level=Fraction(19, 20))
    return WORLD.once(mode=Mode.RESPONSE, mechanism=mechanism, release=release)


def test_a_vector_is_charged_for_a_value_that_moves_and_not_for_one_place() -> None:
    window, charge = window_at(vectors(), 0), charge_of(vectors(), open_policy())

    assert (epsilon_of(window.design), charge.epsilon) == (Decimal("0.93471"), Decimal("1.77614"))
    assert charge.relation is Relation.ANY_VALUE
    assert judge_window(open_policy(largest_epsilon=Fraction("1.77614")), window) is None
    refusal = judge_window(open_policy(largest_epsilon=Fraction("1.77613")), window)
    assert refusal is not None
    assert "1.77614 (any-value)" in refusal.message


def test_a_one_sided_release_is_refused_unless_the_owner_says_so_and_is_charged_as_one() -> None:
    release = Release(
        kind=ReleaseKind.ONE_SIDED, noise_epsilon=Fraction(1, 2), level=Fraction(1, 2), thresholds=(3, 3, 3)
    )
    question = WORLD.once(mode=Mode.DIRECT, mechanism=None, release=release)
    window, cost = window_at(question, 0), charge_of(question, open_policy())

    refusal = judge_window(open_policy(allow_direct=True), window)

    assert refusal is not None
    assert refusal.rule == "allow_one_sided"
    assert "one-sided" in refusal.message
    assert judge_window(open_policy(allow_direct=True, allow_one_sided=True), window) is None
    assert cost.relation is Relation.ONE_SIDED
    assert spent_within(open_policy(), [cost, charge(1, START)], 0).one_sided == 1


def test_what_is_hidden_one_way_shares_no_period_with_what_is_hidden_the_other_way() -> None:
    """Losses add up over the changes that all of them cover ([ADP] Theorem VIII.6): here there is none."""
    up = Release(kind=ReleaseKind.ONE_SIDED, noise_epsilon=Fraction(1, 2), level=Fraction(1, 2), thresholds=(3, 3, 3))
    policy = open_policy(allow_direct=True, allow_one_sided=True)
    charges = [
        charge_of(WORLD.once(mode=Mode.DIRECT, mechanism=None, release=replace(up, direction=direction)), policy)
        for direction in ("up", "down")
    ]
    assert [one.relation for one in charges] == [Relation.ONE_SIDED, Relation.ONE_SIDED_DOWN]
    for held, new in (charges, charges[::-1]):
        refusal = Ledger([held]).judge(policy, [new])
        assert refusal is not None
        assert refusal.rule == "allow_one_sided"
        free = held.asked_until + policy.budget_period_s
        assert f"from Unix time {free} on" in refusal.message
        moved = {"asked_at": free, "asked_until": free + 10, "counts_until": free}
        assert Ledger([held]).judge(policy, [replace(new, **moved)]) is None
        assert Ledger([held]).judge(policy, [replace(held, charge_id=b"x" * 32)]) is None
        assert Ledger([charge(1, START)]).judge(policy, [new]) is None


def test_a_loss_with_a_delta_is_charged_in_divergences_and_never_as_a_pure_one() -> None:
    release = Release(
        kind=ReleaseKind.GAUSSIAN, noise_epsilon=None, noise_variance=Fraction(662), level=Fraction(19, 20)
    )
    question = WORLD.once(mode=Mode.DIRECT, mechanism=None, release=release)
    policy = open_policy(allow_direct=True, largest_epsilon=Fraction("0.30355"))

    assert judge_window(policy, window_at(question, 0)) is None
    refusal = judge_window(replace(policy, largest_epsilon=Fraction("0.30354")), window_at(question, 0))
    assert refusal is not None
    assert "epsilon of the release is 0.30355 at delta 0.000000001" in refusal.message
    charge = charge_of(question, policy)
    assert (charge.epsilon, charge.loss is not None and charge.loss.pure) == (None, None)
    assert charge.loss is not None
    # Order 5, two cells: 5 * 2 / (2 * 662), in units of 1e-12, rounded up.
    assert (charge.loss.orders, charge.loss.at) == ((5,), (-(-5 * 10**12 // 662),))


def test_an_exact_release_and_direct_mode_are_answered_when_the_owner_says_so() -> None:
    direct = WORLD.window(mode=Mode.DIRECT, mechanism=None)

    assert judge_window(open_policy(allow_exact_release=True), WORLD.window(release=EXACT)) is None
    assert judge_window(open_policy(allow_direct=True), direct) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"largest_epsilon": Fraction(0)},
        {"total_epsilon": Fraction(-1)},
        {"largest_sampling_rate": Fraction(11, 10)},
        {"smallest_min_batch_size": 1},
        {"budget_period_s": 10},
        {"fresh_ledger_wait_s": -1},
        {"signals": "Vehicle.Speed"},
    ],
)
def test_a_limit_outside_its_range_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(changes))):
        open_policy(**changes)


@pytest.mark.parametrize(("given", "waits"), [({}, 7_776_000), ({"fresh_ledger_wait_s": 60}, 60)])
def test_a_ledger_that_may_have_lost_charges_waits_as_long_as_they_would_count(
    given: dict[str, int], waits: int
) -> None:
    policy = OwnerPolicy(signals=frozenset({SIGNAL}), budget_period_s=7_776_000, **given)

    assert policy.ledger_wait_s == waits
    assert ready_at(policy, LedgerAge(created_at=0.0)) == waits


def charge(
    number: int, asked_at: int, epsilon: str | None = "1", exposure: str = "1/4", asked_until: int | None = None
) -> Charge:
    return Charge(
        charge_id=WindowId(number.to_bytes(32)),
        name="q",
        signal=SIGNAL,
        asked_at=asked_at,
        asked_until=asked_at + 1 if asked_until is None else asked_until,
        epsilon=None if epsilon is None else Decimal(epsilon),
        exposure=Fraction(exposure),
        answers=Fraction(exposure),
    )


def judge_charge(policy: OwnerPolicy, held: Sequence[Charge], one: Charge) -> PolicyRefusal | None:
    """Judge charges as the ledger does; those of `charge` lose what their epsilon says, under the policy's promise."""
    orders = budget_of(policy).orders

    def priced(one: Charge) -> Charge:
        if one.epsilon is None or one.loss is not None:
            return one
        exact = Fraction(one.epsilon)
        loss = LossVector.of(orders, [pure_divergence(exact, order) for order in orders], exact)
        return replace(one, loss=loss, promise=policy.promise)

    return Ledger([priced(charge) for charge in held]).judge(policy, [priced(one)])


def test_the_budget_takes_the_last_charge_that_fits_and_no_more() -> None:
    policy = open_policy(total_epsilon=Fraction(3))
    spent = [charge(1, START), charge(2, START)]

    assert judge_charge(policy, spent, charge(3, START)) is None
    refusal = judge_charge(policy, spent, charge(3, START, "1.00001"))
    assert refusal is not None
    assert refusal.rule == "total_epsilon"
    assert "3.00001" in refusal.message


def test_a_sum_that_rounding_takes_over_the_limit_does_not_read_as_the_limit() -> None:
    # No multiple of 1e-12, in which losses are rounded up.
    third = "0.3333333333333"
    spent = [charge(1, START, third), charge(2, START, third)]

    refusal = judge_charge(open_policy(total_epsilon=Fraction(1)), spent, charge(3, START, third))

    assert refusal is not None
    assert "would add up to 1.000000000002 within" in refusal.message
    assert "the limit is 1;" in refusal.message


def test_decimals_of_twelve_places_fill_a_total_exactly() -> None:
    spent = [charge(1, START, "0.1"), charge(2, START, "0.1")]
    filled = open_policy(total_epsilon=Fraction("0.300000000001"))

    assert judge_charge(open_policy(total_epsilon=Fraction(3, 10)), spent, charge(3, START, "0.1")) is None
    assert judge_charge(filled, spent, charge(3, START, "0.100000000001")) is None
    refusal = judge_charge(filled, spent, charge(3, START, "0.100000000002"))
    assert refusal is not None
    assert "would add up to 0.300000000002 within" in refusal.message
    assert "the limit is 0.300000000001;" in refusal.message


def test_a_charge_of_the_last_year_is_refused_although_no_calendar_has_when_it_would_fit() -> None:
    last = 253_402_300_000

    refusal = judge_charge(open_policy(total_epsilon=Fraction(1)), [charge(1, last)], charge(2, last))

    assert refusal is not None
    assert refusal.message.endswith("s later, at 9999-12-31T23:59:59Z")


def test_exposure_has_limits_of_its_own_when_no_operator_is_trusted_and_exact_releases_spend_them_too() -> None:
    unit = replace(charge(1, START, None, "1/5"), answers=Fraction(6))
    wary = open_policy(trust=Trust.NO_OPERATOR, largest_chance=Fraction(2, 5), largest_expected_answers=Fraction(18))
    trusting = replace(wary, trust=Trust.ONE_HONEST_OPERATOR)

    def judged(policy: OwnerPolicy, *exposures: tuple[str, int]) -> str | None:
        held = [replace(charge(n, START, None, p), answers=Fraction(m)) for n, (p, m) in enumerate(exposures, 2)]
        refusal = judge_charge(policy, held, unit)
        return None if refusal is None else refusal.rule

    assert judged(wary, ("1/5", 12)) is None
    assert judged(wary, ("1/5", 12), ("1/1000", 0)) == "largest_chance"
    assert judged(wary, ("1/5", 13)) == "largest_expected_answers"
    assert judged(trusting, ("1/5", 13), ("1", 100)) is None
    assert spent_within(wary, [unit, unit], 0).without_epsilon == 2


def most_seen(held: Sequence[Charge], new: Sequence[Charge], period_s: int) -> tuple[Fraction, Fraction]:
    """Add up both exposures in every period that touches a new charge, in the middle of whole seconds."""
    most = Fraction(0), Fraction(0)
    for start in {one.asked_until - 1 for one in (*held, *new)}:
        seen, fresh = (
            [one for one in some if one.asked_at < start + 0.5 + period_s and one.asked_until > start + 0.5]
            for some in ([*held, *new], new)
        )
        if fresh:
            chance, answers = (
                sum(some, Fraction(0)) for some in zip(*((one.exposure, one.answers) for one in seen), strict=True)
            )
            most = max(most[0], chance), max(most[1], answers)
    return most


@pytest.mark.parametrize("seed", range(8))
def test_exposures_are_plain_sums_over_every_period_that_touches_a_new_charge(seed: int) -> None:
    rng, ledger = random.Random(seed), Ledger()
    limits = rng.choice([Fraction(1, 2), Fraction(1)]), Fraction(rng.choice([1, 2]))
    wary = open_policy(
        trust=Trust.NO_OPERATOR, budget_period_s=3600, largest_chance=limits[0], largest_expected_answers=limits[1]
    )

    def some_charge(number: int) -> Charge:
        first = START + 900 * rng.randrange(60)
        chance, answers = (Fraction(rng.randrange(3), rng.choice([4, 4, 9, 16])) for _ in range(2))
        one = charge(number, first, None, asked_until=first + rng.choice([1, 1799, 3600, 7200]))
        return replace(one, exposure=chance * (seed % 2), answers=answers, sent=False)

    for number in range(0, 240, 3):
        new = [some_charge(number + turn) for turn in range(rng.choice([1, 1, 3]))]
        found = most_seen(ledger.charges, new, 3600)
        over = [(f"{float(most):.15g}", most > limit) for most, limit in zip(found, limits, strict=True)]
        refusal = ledger.judge(wary, new)
        assert (refusal is not None) == any(above for _, above in over)
        if refusal is not None:
            assert next(shown for shown, above in over if above) in refusal.message
        for one in new:
            ledger.put(one)
        while len(ledger.charges) > 25:
            ledger.drop(rng.choice(ledger.charges).charge_id)


def test_with_trust_in_no_operator_a_direct_window_is_refused_even_where_it_is_allowed() -> None:
    direct = WORLD.window(mode=Mode.DIRECT, mechanism=None)

    refusal = judge_window(open_policy(allow_direct=True, trust=Trust.NO_OPERATOR), direct)

    assert refusal is not None
    assert (refusal.rule, "one honest operator" in refusal.message) == ("trust", True)


@pytest.mark.parametrize(
    ("answer", "hides"),
    [
        (Mangat(Fraction(1, 2)), "a value behind none"),
        (AsymmetricVector.from_epsilon(Fraction(2), (Flips.UP,)), "a value behind those that hide it"),
    ],
)
def test_who_trusts_no_operator_takes_no_answer_that_hides_one_way_only(answer: RandomizedResponse, hides: str) -> None:
    window = WORLD.window(mode=Mode.RESPONSE, mechanism=answer, domain=Categories(names=("A",)))
    wide = {"largest_local_epsilon": Fraction(20), "largest_epsilon": Fraction(20)}
    refusal = judge_window(open_policy(trust=Trust.NO_OPERATOR, **wide), window)

    assert refusal is not None
    assert refusal.rule == "allow_one_sided"
    assert f"the answer hides {hides} only" in refusal.message
    assert judge_window(open_policy(trust=Trust.NO_OPERATOR, allow_one_sided=True, **wide), window) is None
    assert judge_window(open_policy(**wide), window) is None, "the noise of an honest operator hides both"


def test_randomized_answers_to_the_same_question_do_not_go_on_for_ever() -> None:
    """Strong central noise costs the public next to nothing; all aggregators together see each answer behind its coin.

    With weight 3/4 that answer is the truth, so a few of them give it away.
    """
    policy = open_policy(trust=Trust.NO_OPERATOR, largest_chance=Fraction(1), largest_expected_answers=Fraction(3))
    question = WORLD.once(
        mode=Mode.RESPONSE,
        mechanism=KaryResponse(keep=Fraction(13, 16), values=3),
        release=Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1, 10**4), level=Fraction(19, 20)),
    )
    assert judge_question(policy, question, window_at(question, 0)) is None
    cost = charge_of(question, policy)
    assert cost.exposure == Fraction(3, 4)

    def other(number: int) -> Charge:
        return replace(cost, charge_id=bytes([number]), exposure=Fraction(0))

    fits = [judge_charge(policy, [other(number) for number in range(many)], cost) is None for many in range(5)]

    assert fits == [True] * 4 + [False]


def test_a_charge_leaves_the_period_exactly_when_it_is_over() -> None:
    policy = open_policy(total_epsilon=Fraction(1), budget_period_s=3600)
    spent = [charge(1, START)]

    assert judge_charge(policy, spent, charge(2, START + 3600)) is not None
    assert judge_charge(policy, spent, charge(2, START + 3601)) is None


def test_windows_that_can_be_answered_at_one_moment_share_one_budget_whenever_they_opened() -> None:
    """A window may be longer than the period: what counts is when the truth may have been read, not the opening."""
    policy = open_policy(total_epsilon=Fraction(1), budget_period_s=3600)
    spent = [charge(1, START, asked_until=START + 7200)]

    assert judge_charge(policy, spent, charge(2, START + 7199, asked_until=START + 14_400)) is not None
    assert judge_charge(policy, spent, charge(2, START + 10_799)) is not None
    assert judge_charge(policy, spent, charge(2, START + 10_800)) is None


def test_a_window_from_the_past_finds_the_later_charges_there() -> None:
    policy = open_policy(total_epsilon=Fraction(1), budget_period_s=3600)

    assert judge_charge(policy, [charge(1, START)], charge(2, START - 10**6)) is not None


def test_a_new_ledger_waits_and_a_clock_set_back_does_not_shorten_that() -> None:
    policy, age = open_policy(fresh_ledger_wait_s=1000), LedgerAge(created_at=START)

    refusal = judge_age(policy, age, START + 999)
    assert refusal is not None
    assert refusal.rule == "fresh_ledger"
    assert judge_age(policy, age, START + 1000) is None
    assert judge_age(policy, age, START - 5000) is not None
    assert judge_age(open_policy(), age, START - 5000) is None


@pytest.mark.parametrize(
    ("born", "enrolment", "ready", "lost"),
    [
        (0, None, 1000, False),  # A new vehicle: its ledger begins with its certificate.
        (400, None, 1000, False),  # Begun later, or wiped since: nobody answered before 1000 all the same.
        (1000, None, 1000, False),
        (1001, None, 2001, True),  # Wiped, perhaps, after it could have answered.
        (0, 50, 50, False),
        (50, 50, 50, False),
        (51, 50, 1051, True),
        (-300, 50, 50, False),  # Begun before the certificate was valid.
    ],
)
def test_the_wait_counts_from_the_certificate_unless_a_ledger_may_have_been_lost(
    born: int, enrolment: int | None, ready: int, lost: bool
) -> None:
    policy = open_policy(fresh_ledger_wait_s=1000, enrolment_wait_s=enrolment)
    age = LedgerAge(created_at=START + born, first_valid=START)

    assert ready_at(policy, age) == START + ready
    assert unknown_before(policy, age) == (START + born if lost else -inf)
    assert judge_age(policy, age, START + ready - 1) is not None
    assert judge_age(policy, age, START + ready) is None


def test_a_wait_is_a_date_with_its_reason_and_the_key_that_changes_it() -> None:
    policy = open_policy(fresh_ledger_wait_s=2_592_000, enrolment_wait_s=86_400)
    began = 1_790_000_000  # 2026-09-21T14:13:20Z

    lost = judge_age(policy, LedgerAge(created_at=began + 86_401, first_valid=began), began + 86_402)
    young = judge_age(policy, LedgerAge(created_at=began, first_valid=began), began + 1)

    assert lost is not None
    assert lost.message == (
        "this device answers from 2026-10-22T14:13:21Z, because its ledger began 2026-09-22T14:13:21Z and may stand in"
        " for a lost one; set fresh_ledger_wait_s in [policy] to change it"
    )
    assert young is not None
    assert young.message == (
        "this device answers from 2026-09-22T14:13:20Z, because a new ledger answers nothing under a certificate that"
        " is younger than 1 days; set enrolment_wait_s in [policy], before a certificate's first start, to change it"
    )


def test_however_often_a_ledger_is_wiped_what_was_spent_before_is_over_when_it_answers() -> None:
    policy = open_policy(fresh_ledger_wait_s=3600, budget_period_s=3600, enrolment_wait_s=100)
    for born in (0, 60, 100, 101, 700, 5000):
        first = ready_at(policy, LedgerAge(created_at=START, first_valid=START))
        again = LedgerAge(created_at=START + born, first_valid=START)
        spent_until = START + born if START + born > first else None
        assert spent_until is None or ready_at(policy, again) >= spent_until + policy.budget_period_s


def test_charges_under_other_limits_never_share_a_period_with_new_ones() -> None:
    old, new = open_policy(total_epsilon=Fraction(10)), open_policy(total_epsilon=Fraction(12))
    held = charge_of(WORLD.once(), old)

    def asked(at: int) -> Charge:
        return replace(
            charge_of(WORLD.once(), new), charge_id=b"new", asked_at=at, asked_until=at + 100, counts_until=None
        )

    free = held.asked_until + new.budget_period_s
    refusal = judge_charge(new, [held], asked(free - 1))
    assert refusal is not None
    assert (refusal.rule, str(free) in refusal.message) == ("changed_limits", True)
    assert judge_charge(new, [held], asked(free)) is None
    assert judge_charge(old, [held], replace(asked(free - 1), promise=old.promise, loss=held.loss)) is None


def test_pure_charges_add_up_at_the_orders_of_the_policy() -> None:
    policy = open_policy(total_epsilon=Fraction(10))
    small = [charge(number, START, "0.1") for number in range(600)]

    fits = [judge_charge(policy, small[:many], charge(900, START, "0.1")) is None for many in (99, 100, 200, 216, 599)]

    # Basic composition ends at 100; at order 5 a charge of .1 costs .0249 and 218 of them fit into 5.4446.
    assert fits == [True, True, True, True, False]


def test_a_window_costs_its_public_epsilon_and_its_sampling_rate() -> None:
    question = WORLD.once(mechanism=SamplingDie.uniform(Fraction(1, 5), 3))
    window = window_at(question, 0)

    cost = charge_of(question, open_policy())

    assert (cost.epsilon, cost.exposure) == (epsilon_of(window.design), Fraction(1, 5))
    assert (cost.asked_at, cost.asked_until) == (window.round_one_opens, window.round_one_closes)


def test_the_local_epsilon_is_allowed_at_the_limit_and_refused_just_above_it() -> None:
    response = KaryResponse.from_epsilon(Fraction(2), 3)
    window = WORLD.window(mode=Mode.RESPONSE, mechanism=response)
    [local] = [view.epsilon for view in views_of(window.design) if view.adversary == "all_aggregators"]
    assert local is not None

    def judged(limit: Fraction) -> str | None:
        policy = open_policy(largest_local_epsilon=limit, largest_epsilon=Fraction(10))
        refusal = judge_window(policy, window)
        return None if refusal is None else refusal.rule

    assert judged(Fraction(local)) is None
    assert judged(Fraction(local) - Fraction(1, 10**6)) == "largest_local_epsilon"


def test_one_answer_under_a_coin_of_a_day_is_judged_without_its_coin() -> None:
    window, day = (WORLD.question(coin=coin) for coin in (Coin.WINDOW, Coin.DAY))
    amplified, direct = epsilon_of(window.design), 2 * Fraction(1, 2)
    assert amplified is not None
    policy = open_policy(largest_epsilon=(Fraction(amplified) + direct) / 2)

    assert judge_question(policy, window, window_at(window, 0)) is None
    refusal = judge_question(policy, day, window_at(day, 0))
    assert refusal is not None
    assert (refusal.rule, "epsilon of one answer is 1.00000" in refusal.message) == ("largest_epsilon", True)
    assert judge_question(open_policy(largest_epsilon=direct), day, window_at(day, 0)) is None
