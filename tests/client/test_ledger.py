"""Whatever is asked, joined, left, stopped and answered, in whatever order: no period ever holds more than the limit.

The adversary is random; what it is held against is a plain sum over every period, made anew from what was told to it.
"""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from fractions import Fraction
from itertools import count
from pathlib import Path

import pytest
from fleetcount_client.charges import Charge, unit_id
from fleetcount_client.ledger import Ledger, budget_of, charges_of_question, open_units, spent_within
from fleetcount_client.policy import OwnerPolicy, PolicyRefusal, Trust, judge_question
from fleetcount_client.question_rows import QuestionRow, QuestionRows, QuestionState
from fleetcount_client.spool import Spool, SpoolFile
from fleetcount_client.spool_rows import Beginning, Phase, Report
from fleetcount_mechanisms.accounting.charges import unit_loss, window_loss
from fleetcount_mechanisms.accounting.solving import noise_for_promise
from fleetcount_mechanisms.accounting.vectors import LossVector
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.ids import QuestionId, WindowId
from fleetcount_protocol.question.fields import Coin, DrillDown, Schedule
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.window.domain import Prefixes
from fleetcount_protocol.window.fields import Mode, Release, ReleaseKind

from tests.client.deployment import SIGNAL, START, Deployment, charge_of, open_policy

WORLD = Deployment()
PERIOD = 36_000
"""Ten hours; a day coin's unit may well be longer."""
POLICY = open_policy(total_epsilon=Fraction(6), budget_period_s=PERIOD)


def schedule(hour: int, every_s: int, windows: int) -> Schedule:
    first = START + 3600 * hour
    return Schedule(first=first, every_s=every_s, windows=windows, round_one_s=600, round_two_s=600, expiry_s=3600)


def some_question() -> list[Question]:
    """Return question whose charges are windows, days and a whole question, weak and strong, short and long."""
    weak = Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1, 10), level=Fraction(19, 20))
    found = []
    for hour in (0, 7, 15, 30):
        found += [
            WORLD.question(name=f"windows {hour}", schedule=schedule(hour, 1800, 12)),
            WORLD.question(name=f"days {hour}", schedule=schedule(hour, 3600, 24), coin=Coin.DAY, release=weak),
            WORLD.question(name=f"whole {hour}", schedule=schedule(hour, 7200, 6), coin=Coin.QUESTION, release=weak),
        ]
    return found


QUESTION = some_question()


def most_held(policy: OwnerPolicy, held: Iterable[tuple[int, int, LossVector]]) -> bool:
    """Return whether every period of the policy's length holds no more than its limit: the plain sum."""
    rows, budget = list(held), budget_of(policy)
    starts = {first - policy.budget_period_s for first, _, _ in rows} | {until for _, until, _ in rows}
    for start in starts:
        total = LossVector.nothing(budget.orders)
        for first, until, loss in rows:
            # Half a second behind the start, so that the moment is inside whole seconds.
            if first < start + 0.5 + policy.budget_period_s and until > start + 0.5:
                total += loss
        if not budget.fits(total):
            return False
    return True


@dataclass
class Adversary:
    """Does at random what the world may do to a device, and remembers for itself what was answered."""

    path: Path
    random: random.Random
    now: float = START
    joined: set[QuestionId] = field(default_factory=set)
    answered: dict[bytes, tuple[int, int, LossVector]] = field(default_factory=dict)
    admitted: int = 0
    refused: int = 0
    number: int = 0

    def __post_init__(self) -> None:
        self.spool = SpoolFile(self.path, durable=False).device()

    def step(self) -> None:
        acts = [self.ask, self.ask, self.join, self.join, self.answer, self.answer, self.answer, self.leave, self.stop]
        self.random.choice([*acts, self.wait, self.wait, self.restart])()

    def wait(self) -> None:
        # Sometimes the clock is set back.
        self.now += self.random.choice([60, 1800, 7200, 20_000, -3600])

    def restart(self) -> None:
        self.spool = SpoolFile(self.path, durable=False).device()

    def ask(self) -> None:
        opens = int(self.now) + self.random.randrange(-1000, 5000)
        round_one_s = self.random.choice([100, 30_000])
        question = WORLD.once(opens, name=f"question {self.number}", round_one_s=round_one_s, round_two_s=1000)
        self.number += 1
        if self.reserve(question, [charge_of(question, POLICY)]):
            [charge] = (one for one in self.spool.charges() if one.question_id == question.question_id)
            self.begin(window_at(question, 0).window_id, charge)

    def begin(self, window_id: WindowId, charge: Charge) -> None:
        report = Report(window_id=window_id, phase=Phase.ROUND_ONE, reason="", secret=b"")
        dated = self.spool.ledger().dated(charge)

        def judge(ledger: Ledger) -> PolicyRefusal | None:
            return ledger.judge_reserved(POLICY, charge.charge_id)

        begun = Beginning(report=report, entries=(), sessions=())
        answered = self.spool.begin(charge, window_id, b"window", [], lambda _: begun, judge) == begun
        if answered:
            assert charge.loss is not None
            earlier = self.answered.get(charge.charge_id, (0, 0, charge.loss))
            self.answered[charge.charge_id] = charge.asked_at, max(earlier[1], dated.last), charge.loss

    def join(self) -> None:
        question = self.random.choice(QUESTION)
        charges = charges_of_question(question, POLICY, self.now, self.random.choice([-(10**12), START + 20_000]))
        if self.reserve(question, charges):
            self.joined.add(question.question_id)

    def reserve(self, question: Question, charges: Sequence[Charge]) -> bool:
        before = self.held()
        new = [one for one in charges if self.spool.ledger().get(one.charge_id) is None]
        dated = [self.spool.ledger().dated(one) for one in new]
        refusal = join(self.spool, question, charges, POLICY)
        self.judged(refusal is None, before, dated)
        return refusal is None

    def answer(self) -> None:
        """Answer some window of a joined question whose time has not come or is there, as its unit's charge stands."""
        joined = [one for one in QUESTION if one.question_id in self.joined]
        if not joined:
            return
        question = self.random.choice(joined)
        held = [one for one in self.spool.charges() if one.question_id == question.question_id]
        units = open_units(question, self.now)
        for unit, windows in self.random.sample(sorted(units.items()), len(units)):
            charge = next((one for one in held if one.charge_id == unit_id(question.question_id, unit)), None)
            if charge is not None:
                window = window_at(question, self.random.choice(windows))
                self.begin(window.window_id, charge)
                return

    def leave(self) -> None:
        if self.joined:
            self.free(self.random.choice(sorted(self.joined)), frozenset())

    def stop(self) -> None:
        """An order stops a question somewhere: what can never come is freed."""
        joined = [one for one in QUESTION if one.question_id in self.joined]
        if joined:
            question = self.random.choice(joined)
            stopped = range(self.random.randrange(question.schedule.windows), question.schedule.windows)
            units = open_units(question, self.now, [stopped])
            self.free(question.question_id, frozenset(unit_id(question.question_id, unit) for unit in units))

    def free(self, question_id: QuestionId, keep: frozenset[bytes]) -> None:
        row = QuestionRow(
            question_id=question_id, name="", offer=b"", state=QuestionState.LEFT, changed_at=0.0, reason=""
        )
        QuestionRows(self.spool).leave(row, keep)
        if not keep:
            self.joined.discard(question_id)

    def held(self) -> list[tuple[int, int, LossVector]]:
        return [(one.asked_at, one.last, one.loss) for one in self.spool.charges() if one.loss is not None]

    def judged(self, admitted: bool, before: list[tuple[int, int, LossVector]], new: list[Charge]) -> None:
        """Hold the filter's word against the plain sum: neither more nor less is admitted than fits."""
        rows = [(one.asked_at, one.last, one.loss) for one in new if one.loss is not None]
        if rows:
            assert admitted == most_held(POLICY, [*before, *rows])
            self.admitted, self.refused = self.admitted + admitted, self.refused + (not admitted)


@pytest.mark.parametrize("seed", range(12))
def test_no_period_ever_holds_more_than_the_limit(tmp_path: Path, seed: int) -> None:
    adversary = Adversary(tmp_path / "device.db", random.Random(seed))

    for _ in range(120):
        adversary.step()
        held = {one.charge_id: one for one in adversary.spool.charges()}
        assert set(adversary.answered) <= {name for name, one in held.items() if one.sent}

    assert most_held(POLICY, adversary.held())
    assert most_held(POLICY, adversary.answered.values())
    # It was an attack, not a walk: things were admitted until nothing fitted.
    assert adversary.admitted > 5
    assert adversary.refused > 2


def test_one_unit_is_charged_for_each_owner_under_his_own_promise() -> None:
    policies = [POLICY, replace(POLICY, total_epsilon=Fraction(5)), POLICY]

    charged = [charges_of_question(QUESTION[0], policy, START, START) for policy in policies]

    assert [{charge.promise for charge in charges} for charges in charged] == [{one.promise} for one in policies]
    assert charged[0] == charged[2]


def month(**changes: object) -> Question:
    """Return 720 hourly windows, 30 days, under a coin for each window or in direct mode."""
    first = START // 86_400 * 86_400
    rounds = 0 if changes.get("mode") is Mode.DIRECT else 600
    hourly = Schedule(first=first, every_s=3600, windows=720, round_one_s=600, round_two_s=rounds, expiry_s=60)
    return WORLD.question(**{"schedule": hourly} | changes)


@pytest.mark.parametrize(
    ("changes", "variance", "fits"),
    [
        # Standard deviation of one cell with two aggregators: 36.4 direct; 37 under a coin of 1/2 for each window.
        ({"mode": Mode.DIRECT, "mechanism": None}, Fraction(364, 10) ** 2 / 2, True),
        ({"mode": Mode.DIRECT, "mechanism": None}, Fraction(363, 10) ** 2 / 2, False),
        ({}, Fraction(185, 10) ** 2 / 2, True),
        ({}, Fraction(181, 10) ** 2 / 2, False),
    ],
)
def test_a_device_with_default_limits_has_room_for_a_month_of_hourly_maps(
    changes: dict[str, object], variance: Fraction, fits: bool
) -> None:
    half = SamplingDie.uniform(Fraction(1, 2), 3, allow_large_rate=True)
    release = Release(kind=ReleaseKind.GAUSSIAN, noise_epsilon=None, level=Fraction(19, 20), noise_variance=variance)
    question = month(**{"mechanism": half, "release": release} | changes)
    policy = OwnerPolicy(signals=frozenset({SIGNAL}), allow_direct=True)

    charges = charges_of_question(question, policy, START - 10**6, START - 10**6)

    assert judge_question(policy, question, window_at(question, 0)) is None
    assert len(charges) == 720
    assert (Ledger().judge(policy, charges) is None) is fits
    assert (spent_within(policy, charges, 0).epsilon <= 10) is fits


def test_the_order_is_that_of_the_question_a_ledger_takes_first_and_stays_while_a_period_may_hold_both() -> None:
    """At p = 1/100, a coin a day and (1/10, 1e-12) the order of direct answers would want nearly twice the noise."""
    promise = Fraction(1, 10), Fraction(1, 10**12)
    die = SamplingDie.uniform(Fraction(1, 100), 3)
    noise = noise_for_promise(die, month(coin=Coin.DAY).shape, *promise)
    release = Release(
        kind=ReleaseKind.GAUSSIAN, noise_epsilon=None, level=Fraction(19, 20), noise_variance=noise.variance
    )
    rare = month(coin=Coin.DAY, mechanism=die, release=release)
    policy = OwnerPolicy(signals=frozenset({SIGNAL}), total_epsilon=promise[0], total_delta=promise[1])
    usual, begin = budget_of(policy).orders, START - 10**6

    ledger = Ledger()
    charges = charges_of_question(rare, policy, begin, begin, (), ledger)

    orders = ledger.orders_for(rare, policy)
    assert orders != usual
    assert ledger.judge(policy, charges) is None
    assert Fraction(99, 1000) < spent_within(policy, charges, 0).epsilon <= promise[0]
    for charge in charges:
        ledger.put(charge)
    soon = WORLD.once(charges[-1].asked_until + policy.budget_period_s - 10)
    later = WORLD.once(charges[-1].asked_until + policy.budget_period_s + 10)
    assert ledger.orders_for(soon, policy) == orders
    assert ledger.orders_for(later, policy) == usual
    # Whoever charges at another order may not share a period with what is held.
    [wrong] = charges_of_question(soon, policy, begin, begin)
    refusal = ledger.judge(policy, [wrong])
    assert refusal is not None
    assert refusal.rule == "changed_limits"
    [free] = charges_of_question(later, policy, begin, begin, (), ledger)
    refusal = ledger.judge(policy, [free])
    assert refusal is None or refusal.rule == "total_epsilon"


@dataclass(frozen=True)
class Told:
    """A clock that says what it is told."""

    moment: float

    def now(self) -> float:
        return self.moment


MONTHS = [
    ("direct", {"mode": Mode.DIRECT, "mechanism": None}),
    ("coin a window", {"mechanism": SamplingDie.uniform(Fraction(1, 4), 3)}),
    ("coin a day", {"mechanism": SamplingDie.uniform(Fraction(1, 4), 3), "coin": Coin.DAY}),
    ("1/4 a question", {"mechanism": SamplingDie.uniform(Fraction(1, 4), 3), "coin": Coin.QUESTION}),
    (
        "1/2 a question",
        {"mechanism": SamplingDie.uniform(Fraction(1, 2), 3, allow_large_rate=True), "coin": Coin.QUESTION},
    ),
]


def months(changes: dict[str, object], *, followed: bool) -> Iterator[Question]:
    """Return months, each right after the one before, with the noise that is solved for the default promise."""
    plain = month(**changes)
    times, answer = plain.schedule, plain.design.answer
    periods = times.followed(plain.coin, OwnerPolicy(signals=frozenset()).budget_period_s) if followed else None
    noise = noise_for_promise(answer, plain.shape, Fraction(10), Fraction(1, 10**9), periods=periods)
    release = Release(
        kind=ReleaseKind.GAUSSIAN, noise_epsilon=None, level=Fraction(19, 20), noise_variance=noise.variance
    )
    for number in count():
        later = replace(times, first=times.opens(0) + number * times.windows * times.every_s)
        yield month(**changes, name=f"month {number}", schedule=later, release=release)


@pytest.mark.parametrize("followed", [True, False], ids=["followed", "alone"])
@pytest.mark.parametrize(("name", "changes"), MONTHS, ids=[name for name, _ in MONTHS])
def test_a_month_follows_a_month_on_a_real_ledger_or_is_refused_with_the_date_from_which_it_fits(
    tmp_path: Path, name: str, changes: dict[str, object], followed: bool
) -> None:
    policy = OwnerPolicy(signals=frozenset({SIGNAL}), allow_direct=True, largest_epsilon=Fraction(2))
    asked = months(changes, followed=followed)

    taken = -1
    while taken < 2:
        taken += 1
        question = next(asked)
        clock = Told(question.schedule.opens(0) - 60)
        # A device that begins anew reads its file again.
        spool = SpoolFile(tmp_path / "device.db", durable=False).device()
        charges = charges_of_question(question, policy, clock.now(), -(10**9), (), spool.ledger())
        refusal = join(spool, question, charges, policy)
        if refusal is not None:
            break
    held = spool.charges()
    ends = sorted({one.last for one in held})
    touched = [
        sum(one.loss.at[0] for one in held if one.loss and one.last >= end > one.asked_at - policy.budget_period_s)
        for end in ends[:: 1 + len(ends) // 100]
    ]
    [limit] = budget_of(policy, charges[0].loss.orders if charges[0].loss else None).limits
    assert max(touched) <= limit
    whole = name in ("direct", "coin a window")
    if followed or whole:
        assert refusal is None
        assert taken == 2
        assert max(touched) > limit * Fraction(99, 100)
        return
    assert taken == 1
    assert refusal is not None
    assert refusal.rule == "total_epsilon"
    found = re.search(r"the same would fit if it began (\d+) s later, at (\S+)$", refusal.message)
    assert found is not None
    moment = datetime.fromisoformat(found[2]).timestamp()
    assert moment == question.schedule.opens(0) + int(found[1])
    for shift, fits in ((0, True), (-1, False)):
        moved = replace(question.schedule, first=int(moment) + shift)
        # The coin of a day counts by days, so that a question moved by hours has other units.
        if name != "coin a day":
            again = month(**changes, name="later", schedule=moved, release=question.release)
            charges = charges_of_question(again, policy, moment - 60, -(10**9), (), spool.ledger())
            assert (spool.ledger().judge(policy, charges) is None) is fits


def join(spool: Spool, question: Question, charges: Sequence[Charge], policy: OwnerPolicy) -> PolicyRefusal | None:
    row = QuestionRow(
        question_id=question.question_id, name="", offer=b"", state=QuestionState.JOINED, changed_at=0.0, reason=""
    )
    return QuestionRows(spool).join(row, lambda held: held.judge(policy, held.new(charges)) or held.new(charges), 0.0)


def test_a_drill_down_costs_as_many_windows_whatever_its_levels() -> None:
    walk = DrillDown(levels=(2, 4), threshold=20, most_survivors=3)
    plain = month()
    walking = month(domain=Prefixes(bits=2, cells=(0, 1, 3)), drill_down=walk)

    costs = [[one.loss for one in charges_of_question(question, open_policy(), 0, 0)] for question in (plain, walking)]

    assert costs[0] == costs[1]
    assert len(costs[1]) == walking.schedule.windows


def test_what_all_operators_would_see_of_a_month_is_counted_in_two_sums() -> None:
    wary = open_policy(total_epsilon=Fraction(700), trust=Trust.NO_OPERATOR)
    hourly, whole = month(), month(coin=Coin.QUESTION)

    by_window, by_question = (charges_of_question(one, wary, START - 10**6, START - 10**6) for one in (hourly, whole))

    sums = [(spent.chance, spent.answers) for spent in (spent_within(wary, by, 0) for by in (by_window, by_question))]
    assert sums == [(Fraction(180), Fraction(180)), (Fraction(1, 4), Fraction(180))]
    refusal = Ledger().judge(wary, by_window)
    assert refusal is not None
    assert refusal.rule == "largest_chance"
    assert Ledger().judge(wary, by_question) is None


def test_a_unit_that_began_before_a_lost_ledger_is_not_answered_again() -> None:
    question = WORLD.question(coin=Coin.DAY, schedule=schedule(0, 3600, 60))
    policy = open_policy()
    days = question.schedule.units(Coin.DAY)
    opens = [question.schedule.opens(windows[0]) for windows in days.values()]

    everything = charges_of_question(question, policy, opens[0], opens[0])
    later = charges_of_question(question, policy, opens[0] + 7200, opens[0] + 1)

    assert len(everything) == len(days)
    assert len(later) == len(days) - 1
    assert all(charge.asked_at >= opens[1] for charge in later)


@pytest.mark.parametrize("coin", list(Coin))
def test_a_units_interval_reaches_to_its_last_window(coin: Coin) -> None:
    question = WORLD.question(coin=coin, schedule=schedule(0, 3600, 60))
    times, orders = question.schedule, budget_of(POLICY).orders

    charges = charges_of_question(question, POLICY, START, START - 10**6)

    for charge, windows in zip(charges, times.units(coin).values(), strict=True):
        assert (charge.asked_at, charge.asked_until) == (times.opens(windows[0]), times.opens(windows[-1]) + 600)
        alone = window_loss(question.design, orders)
        loss = alone if coin is Coin.WINDOW else unit_loss(question.design, orders, len(windows))
        assert charge.loss == loss
        assert len(windows) == 1 or loss.at[0] > alone.at[0]
        assert (charge.exposure, charge.answers) == (Fraction(1, 4), Fraction(len(windows), 4))
