"""What the owner of a device allows: which questions it answers at all, and at which cost.

A refusal is a value with a reason the owner can read. Never looks at a truth, a coin or the network.
"""

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Final, cast

from fleetcount_mechanisms.answers import AnswerForm
from fleetcount_mechanisms.design import LedgerLoss
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.window.domain import Part
from fleetcount_protocol.window.window import Window
from fleetcount_transport.settings import setting, settings
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import Range

from fleetcount_client.signals import SignalSource, unfit

if TYPE_CHECKING:
    from fleetcount_protocol.question.fields import Coin
    from fleetcount_protocol.question.question import Question

_REMEMBERED: Final = 128
_VSS_PATH: Final = r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*"
_SHARE: Final = Range("(0, 1]")
_EPSILON: Final = Range("(0, 20]")
_TOTAL: Final = Range("(0, 700]")
_DELTA: Final = Range("(0, 1/1000]")
_ANSWERS: Final = Range("(0, 1000000]")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCost:
    """`loss` by the published result, and for which change of the truth; `exposure` to all aggregators together."""

    loss: LedgerLoss
    exposure: Fraction


class _ById:
    """A window that is equal to another of the same id, so that finding it again costs no comparison of its fields."""

    __slots__ = ("window",)

    def __init__(self, window: Window) -> None:
        self.window = window

    def __hash__(self) -> int:
        return hash(self.window.window_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.window.window_id == self.window.window_id


def cost_of(window: Window) -> WindowCost:
    """Return the cost of answering a window."""
    return _cost(_ById(window))


@lru_cache(maxsize=_REMEMBERED)
def _cost(named: _ById) -> WindowCost:
    from fleetcount_mechanisms.statement import ledger_loss_of  # With the first window: a start does without.

    return WindowCost(loss=ledger_loss_of(named.window.design), exposure=named.window.design.exposure)


ALL_AGGREGATORS: Final = "all_aggregators"
_HOUR_S: Final = 3600
_TEN_YEARS_S: Final = 315_360_000
_MAX_ANSWERS: Final = 10**6


class Trust(enum.Enum):
    """Whom the owner trusts among the operators of the aggregators."""

    ONE_HONEST_OPERATOR = "one honest operator"
    """At least one of them keeps to the protocol. What all together could see is counted and shown, and limits nothing
    but direct questions, which need their own permission."""
    NO_OPERATOR = "no operator"
    """All may work together: what they could see is limited, and direct questions are refused."""


class JoinRule(enum.Enum):
    """What a device does with a question that its owner's policy and budget allow."""

    ASK = "ask"
    """It waits for the owner's word."""
    AUTO = "auto"
    """It joins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRefusal:
    """Why the device does not answer: `rule` is the policy key, `message` names the value and the limit."""

    rule: str
    message: str


def in_range(limits: object, name: str, low: int, high: Fraction | int) -> None:
    """Refuse what is not above `low` or not at most `high`."""
    if not low < (value := getattr(limits, name)) <= high:
        raise UsageError(f"{name} is {value}; allowed is more than {low} and at most {high}")


def _signal_names(table: Table, key: str) -> frozenset[str]:
    names = table.raw(key)
    paths = cast("list[object]", names) if isinstance(names, list) else [None]
    if not all(isinstance(name, str) and re.fullmatch(_VSS_PATH, name) for name in paths):
        raise table.refuse(key, 'a list of VSS paths: ["Vehicle.Speed"]')
    return frozenset(map(str, paths))


def _trust(table: Table, key: str) -> Trust:
    return Trust(table.choice(key, [one.value for one in Trust]))


DEFAULT_PERIOD_S: Final = 2_592_000
"""30 days: the period over which a device adds up what it answers, unless its owner says otherwise."""


@settings
class OwnerPolicy:
    """[policy]: the owner's limits; a window beyond any of them is refused (docs/embedding.md, "Policy").

    `largest_epsilon` is the loss of one release against the public for any value replaced by any other, or for a value
    replaced by none where only that has a finite loss and `allow_one_sided` is set; `largest_local_epsilon` that of a
    randomized response against all aggregators together; `largest_sampling_rate` the chance that all aggregators
    together see the truth. The promise of the ledger is (`total_epsilon`, `total_delta`) over any `budget_period_s`
    seconds. With trust in no operator the answers of a period are seen by all of them together with a chance of at
    most `largest_chance`, and `largest_expected_answers` of them are expected to be. A ledger that may have lost
    charges answers nothing for `fresh_ledger_wait_s` (None: `budget_period_s`, after which what it may have lost counts
    no more), a new certificate nothing for `enrolment_wait_s` (None: as long).

    Raises:
        UsageError: a limit outside its range, or one text where signals are a set of them.
    """

    signals: frozenset[str] = setting(_signal_names)
    largest_epsilon: Fraction = setting(Table.number, _EPSILON, default=Fraction(1))
    largest_local_epsilon: Fraction = setting(Table.number, _EPSILON, default=Fraction(4))
    largest_sampling_rate: Fraction = setting(Table.number, _SHARE, default=Fraction(1, 2))
    smallest_min_batch_size: int = setting(Table.integer, 2, 10**9, default=10)
    total_epsilon: Fraction = setting(Table.number, _TOTAL, default=Fraction(10))
    total_delta: Fraction = setting(Table.number, _DELTA, default=Fraction(1, 10**9))
    trust: Trust = setting(_trust, default=Trust.ONE_HONEST_OPERATOR)
    largest_chance: Fraction = setting(Table.number, _SHARE, default=Fraction(1, 2))
    largest_expected_answers: Fraction = setting(Table.number, _ANSWERS, default=Fraction(360))
    budget_period_s: int = setting(Table.integer, _HOUR_S, _TEN_YEARS_S, default=DEFAULT_PERIOD_S)
    fresh_ledger_wait_s: int | None = setting(Table.integer, 0, _TEN_YEARS_S, default=None)
    enrolment_wait_s: int | None = setting(Table.integer, 0, _TEN_YEARS_S, default=None)
    allow_direct: bool = setting(Table.boolean, default=False)
    allow_exact_release: bool = setting(Table.boolean, default=False)
    allow_one_sided: bool = setting(Table.boolean, default=False)

    def __post_init__(self) -> None:
        from fleetcount_mechanisms.accounting.vectors import LARGEST_BUDGET  # Only with the first policy.

        if isinstance(cast("object", self.signals), str):  # Every part of it would be allowed.
            raise UsageError(f"signals is {self.signals!r}; allowed is a set of VSS paths")
        for name in ("largest_epsilon", "largest_local_epsilon", "total_epsilon"):
            in_range(self, name, 0, LARGEST_BUDGET)
        in_range(self, "total_delta", 0, Fraction(1, 1000))
        in_range(self, "largest_chance", 0, 1)
        in_range(self, "largest_expected_answers", 0, _MAX_ANSWERS)
        in_range(self, "largest_sampling_rate", 0, 1)
        in_range(self, "smallest_min_batch_size", 1, 10**9)
        in_range(self, "budget_period_s", _HOUR_S - 1, _TEN_YEARS_S)
        if self.fresh_ledger_wait_s is not None:
            in_range(self, "fresh_ledger_wait_s", -1, _TEN_YEARS_S)
        if self.enrolment_wait_s is not None:
            in_range(self, "enrolment_wait_s", -1, self.ledger_wait_s)

    def __hash__(self) -> int:
        """Return a hash of two fields: a device has one policy, mostly the same object, and fractions take long."""
        return hash((self.signals, self.budget_period_s))

    @property
    def ledger_wait_s(self) -> int:
        """How long a ledger answers nothing that may have lost charges."""
        return self.budget_period_s if self.fresh_ledger_wait_s is None else self.fresh_ledger_wait_s

    @property
    def promise(self) -> str:
        """What the ledger's charges are held against, as the ledger names it: it is fixed while charges count."""
        return f"{self.total_epsilon} {self.total_delta} {self.budget_period_s}"


def judge_window(policy: OwnerPolicy, window: Window) -> PolicyRefusal | None:
    """Return why the owner does not allow this window, without regard to earlier answers; None when it is allowed."""
    for rule in (_signal, _batch, _mode, _release, _relation, _epsilon, _local_epsilon, _sampling_rate):
        refusal = rule(policy, window)
        if refusal is not None:
            return refusal
    return None


def judge_question(policy: OwnerPolicy, question: "Question", window: Window) -> PolicyRefusal | None:
    """Return why the owner does not allow a question, without regard to its whole cost; None when it is allowed.

    Every window is judged as a window. Under a coin that holds for longer than a window one answer is not hidden by it:
    its other answers betray the coin, so the loss of an answer is that without the coin.
    """
    return _judged(policy, question.coin, _ById(window))


@lru_cache(maxsize=_REMEMBERED)
def _judged(policy: OwnerPolicy, coin: "Coin", named: _ById) -> PolicyRefusal | None:
    from fleetcount_protocol.question.fields import Coin  # Only with the first question.

    window = named.window
    refusal = judge_window(policy, window)
    if refusal is not None or coin is Coin.WINDOW:
        return refusal
    from fleetcount_mechanisms.statement import views_of  # As above.

    known = [view.epsilon for view in views_of(window.design) if view.adversary == "sampled_bit_leaked"]
    if known and all(e is not None and Fraction(e) <= policy.largest_epsilon for e in known):
        return None
    shown = ", ".join("not finite" if e is None else str(e) for e in known) or "not stated"
    message = f"epsilon of one answer is {shown}, as its coin holds for longer; the largest allowed is"
    return PolicyRefusal(rule="largest_epsilon", message=f"{message} {_number(policy.largest_epsilon)}")


def judge_sources(signals: Mapping[str, SignalSource], parts: Iterable[Part]) -> PolicyRefusal | None:
    """Return why no source says a value of one of the parts: a wrong cell would be its answer, or always none."""
    for part in parts:
        if part.signal not in signals:
            known = ", ".join(sorted(signals)) or "none"
            message = f"no source is configured for {part.signal}; configured are: {known}"
            return PolicyRefusal(rule="signals", message=message)
        if why := unfit(signals, part.signal, part.domain):
            return PolicyRefusal(rule="signals", message=f"{part.signal}: {why}")
    return None


def _signal(policy: OwnerPolicy, window: Window) -> PolicyRefusal | None:
    denied = next((part.signal for part in window.parts if part.signal not in policy.signals), None)
    if denied is None:
        return None
    allowed = ", ".join(sorted(policy.signals)) or "none"
    return PolicyRefusal(rule="signals", message=f"the window asks for {denied}; allowed are: {allowed}")


def _batch(policy: OwnerPolicy, window: Window) -> PolicyRefusal | None:
    if window.min_batch_size >= policy.smallest_min_batch_size:
        return None
    message = f"min_batch_size is {window.min_batch_size}; the smallest allowed is {policy.smallest_min_batch_size}"
    return PolicyRefusal(rule="smallest_min_batch_size", message=message)


def _mode(policy: OwnerPolicy, window: Window) -> PolicyRefusal | None:
    if window.design.form is not AnswerForm.TRUTH:
        return None
    if policy.trust is Trust.NO_OPERATOR:
        message = (
            "the window takes the truth in shares (direct mode), which all operators together could read; allowed only"
        )
        return PolicyRefusal(rule="trust", message=f"{message} with trust = {Trust.ONE_HONEST_OPERATOR.value!r}")
    if policy.allow_direct:
        return None
    message = "the window takes the truth in shares (direct mode); allowed only with allow_direct = true"
    return PolicyRefusal(rule="allow_direct", message=message)


def _release(policy: OwnerPolicy, window: Window) -> PolicyRefusal | None:
    if window.design.noised or policy.allow_exact_release:
        return None
    message = "the window publishes sums without noise; allowed only with allow_exact_release = true"
    return PolicyRefusal(rule="allow_exact_release", message=message)


def _relation(policy: OwnerPolicy, window: Window) -> PolicyRefusal | None:
    relation, what, local = cost_of(window).loss.relation, "release", window.design.kind.relation
    if policy.trust is Trust.NO_OPERATOR and window.design.device_randomizes and local.one_way:
        # Nobody's noise is counted on, so that what the answer itself hides is all there is.
        relation, what = local, "answer"
    if not relation.one_way or policy.allow_one_sided:
        return None
    message = f"the {what} hides {relation.hidden} only ({relation.value}); allowed only with allow_one_sided = true"
    return PolicyRefusal(rule="allow_one_sided", message=message)


def _epsilon(policy: OwnerPolicy, window: Window) -> PolicyRefusal | None:
    loss = cost_of(window).loss
    if loss.epsilon is None:
        return _no_finite_epsilon(policy)
    if Fraction(loss.epsilon) <= policy.largest_epsilon:
        return None
    limit = _number(policy.largest_epsilon)
    at = "" if loss.pure else f" at delta {loss.delta:f}"
    message = f"epsilon of the release is {loss.epsilon}{at} ({loss.relation.value}); the largest allowed is {limit}"
    return PolicyRefusal(rule="largest_epsilon", message=message)


def _no_finite_epsilon(policy: OwnerPolicy) -> PolicyRefusal | None:
    if policy.allow_exact_release:
        return None
    message = "the release has no finite epsilon; allowed only with allow_exact_release = true"
    return PolicyRefusal(rule="allow_exact_release", message=message)


def _local_epsilon(policy: OwnerPolicy, window: Window) -> PolicyRefusal | None:
    # The central noise of a response window may be strong while its coins hide next to nothing: all aggregators
    # together see the answer behind the coins alone.
    if not window.design.device_randomizes:
        return None
    from fleetcount_mechanisms.statement import views_of  # As above.

    views = [view.epsilon for view in views_of(window.design) if view.adversary == ALL_AGGREGATORS]
    if views and all(e is not None and Fraction(e) <= policy.largest_local_epsilon for e in views):
        return None
    shown = ", ".join("not finite" if e is None else str(e) for e in views) or "not stated"
    limit = _number(policy.largest_local_epsilon)
    message = f"epsilon against all aggregators together is {shown}; the largest allowed is {limit}"
    return PolicyRefusal(rule="largest_local_epsilon", message=message)


def _sampling_rate(policy: OwnerPolicy, window: Window) -> PolicyRefusal | None:
    exposure = cost_of(window).exposure
    # Direct mode always has exposure 1, so `allow_direct` decides. A response is judged by its local epsilon.
    # The total counts all of them.
    if window.design.rounds == 1 or exposure <= policy.largest_sampling_rate:
        return None
    limit = _number(policy.largest_sampling_rate)
    message = f"the sampling rate is {_number(exposure)}; the largest allowed is {limit}"
    return PolicyRefusal(rule="largest_sampling_rate", message=message)


def _number(value: Fraction) -> str:
    """Return a fraction as people write it: as a decimal where it has a short one."""
    decimal = Decimal(value.numerator) / Decimal(value.denominator)
    return f"{decimal:f}" if Fraction(decimal) == value else str(value)
