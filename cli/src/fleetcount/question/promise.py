"""What comes out of a question and what that may tell of a device: [release] of its specification file.

Reads text and solves for the noise; it must not know when windows are, but for how many share a toss of the coin.
"""

from fractions import Fraction
from typing import Final, cast

from fleetcount_mechanisms.accounting.solving import noise_for_promise
from fleetcount_mechanisms.accounting.vectors import ScheduleShape
from fleetcount_mechanisms.answers import AnswerLaw
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.gaussian_losses import STATED_DELTA
from fleetcount_mechanisms.losses import PlannedNoise, noise_for
from fleetcount_mechanisms.noise import GaussianNoise, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.zooms import Zooms
from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.limits import MAX_ZOOMS
from fleetcount_protocol.window.domain import ValueDomain, zooms_of
from fleetcount_protocol.window.fields import Release, ReleaseKind
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import Range

_STRENGTHS: Final = {
    ReleaseKind.GAUSSIAN: ("sd", "variance"),
    ReleaseKind.GEOMETRIC: ("noise_epsilon",),
    ReleaseKind.ONE_SIDED: ("noise_epsilon",),
    ReleaseKind.EXACT: (),
}
"""The keys, one of which gives each aggregator's noise of a window; without one it is solved for `epsilon`."""
_NOISE_KEYS: Final = ("epsilon", "noise_epsilon", "sd", "variance")
_RELEASE_KEYS: Final = ("kind", *_NOISE_KEYS, "delta", "level", "thresholds", "zooms")
_LAWS: Final[dict[ReleaseKind, type[PlannedNoise]]] = {
    ReleaseKind.GEOMETRIC: TwoSidedNoise,
    ReleaseKind.ONE_SIDED: OneSidedNoise,
    ReleaseKind.GAUSSIAN: GaussianNoise,
}
_DELTA: Final = Range("(0, 1/1000]")
_EPSILON: Final = Range("(0, 100]")
_NOISE_EPSILON: Final = Range("(0, 10]")
_VARIANCE: Final = Range("[1/4, 100000000]")
_SD: Final = Range("[1/2, 10000]")
_LEVEL: Final = Range("(0, 1)")


def read_promise(
    root: Table, answer: AnswerLaw, domain: ValueDomain, shape: ScheduleShape, epsilon: Fraction | None
) -> tuple[Release, Fraction]:
    """Return the release of every window, and the delta at which the whole question is stated.

    `epsilon`, when given, stands in place of the file's.

    Raises:
        UsageError: with key, value and what is allowed.
    """
    table = root.section("release", _RELEASE_KEYS)
    usual = ReleaseKind.GEOMETRIC if shape.windows == 1 else ReleaseKind.GAUSSIAN
    kinds = {kind.label: kind for kind in _STRENGTHS}
    kind = kinds[table.choice("kind", tuple(kinds), usual.label)]
    delta = table.number("delta", _DELTA, STATED_DELTA)
    zooms = _zooms(table, domain)
    given = _given_key(table, kind, epsilon)
    if given is None:
        noise: NoNoise | PlannedNoise = NoNoise()
    elif given == "epsilon":
        target = table.number("epsilon", _EPSILON) if epsilon is None else epsilon
        try:
            noise = _solved_noise(kind, answer, shape, target, delta, zooms)
        except MechanismError as error:
            if epsilon is not None:
                raise
            raise table.wrong("epsilon", f"is {table.raw('epsilon')!r}: {error}") from None
    elif given == "noise_epsilon":
        noise = (OneSidedNoise if kind is ReleaseKind.ONE_SIDED else TwoSidedNoise)(table.number(given, _NOISE_EPSILON))
    else:
        noise = GaussianNoise(table.number(given, _VARIANCE) if given == "variance" else table.number(given, _SD) ** 2)
    release = Release(
        kind=kind,
        noise_epsilon=noise.epsilon,
        noise_variance=noise.variance if isinstance(noise, GaussianNoise) else None,
        level=table.number("level", _LEVEL, Fraction(95, 100)),
        thresholds=_thresholds(table),
        zooms=1 if zooms is None else zooms.count,
    )
    return release, delta


def _given_key(table: Table, kind: ReleaseKind, epsilon: Fraction | None) -> str | None:
    """Return the key that gives the noise, "epsilon" too where the command line does; None of an exact release."""
    own, given = _STRENGTHS[kind], [key for key in _NOISE_KEYS if table.has(key)]
    if kind is ReleaseKind.EXACT:
        if given or epsilon is not None:
            raise table.refuse("kind", "'geometric' or 'gaussian' beside a noise's size: an exact release has no noise")
        return None
    wrong = [key for key in given if key not in ("epsilon", *own)]
    if wrong:
        said = f"is for another kind: {kind.label!r} is asked, whose noise is given by {' or '.join(own)}"
        raise table.wrong(wrong[0], said)
    if epsilon is not None:
        return "epsilon"
    if len(given) != 1:
        allowed = f"exactly one of epsilon (of the whole question, at delta) and {' or '.join(own)} (of a window)"
        raise table.refuse("epsilon", allowed)
    return given[0]


def _solved_noise(
    kind: ReleaseKind, answer: AnswerLaw, shape: ScheduleShape, epsilon: Fraction, delta: Fraction, zooms: Zooms | None
) -> PlannedNoise:
    if shape.windows == 1 and (kind is not ReleaseKind.GAUSSIAN or delta == STATED_DELTA):
        # A single release has a promise without delta, or at the delta that all single ones are stated at.
        return noise_for(answer, epsilon, _LAWS[kind], 1 if zooms is None else zooms.count)
    # The exact sum of geometric losses has no filter: a ledger adds up more, and geometric noise is for who knows that.
    in_ledgers = kind is ReleaseKind.GAUSSIAN
    return noise_for_promise(answer, shape, epsilon, delta, _LAWS[kind], in_ledgers=in_ledgers, zooms=zooms)


def _zooms(table: Table, domain: ValueDomain) -> Zooms | None:
    """Return the zooms at which a release counts the squares of a grid, None at one alone."""
    count = table.integer("zooms", 1, MAX_ZOOMS, 1)
    try:
        return zooms_of(domain, count)
    except QuestionError as error:
        raise table.wrong("zooms", f"is {count}: {error}") from None


def _thresholds(table: Table) -> tuple[int, ...]:
    """Return the thresholds of a one-sided release; an empty tuple for another kind."""
    value = table.raw("thresholds") if table.has("thresholds") else None
    if value is None:
        return ()
    if not isinstance(value, list) or not value or not all(type(one) is int for one in cast("list[object]", value)):
        raise table.refuse("thresholds", "a list of whole numbers, one per value")
    return tuple(cast("list[int]", value))
