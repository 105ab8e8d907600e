"""One [[mechanism]] table: which keys a kind takes, and the `Mechanism` it becomes once V is known.

Reads and resolves exact numbers; draws nothing and estimates nothing. The laws behind the kinds are those of
`fleetcount_mechanisms`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, Literal, cast

from fleetcount_mechanisms.accounting.solving import noise_for_promise
from fleetcount_mechanisms.answers import (
    AnswerForm,
    AnswerLaw,
    Truth,
    answer_names,
    kind_named,
    most_of,
    require_levels,
)
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import GaussianNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import PlannedNoise, Spread, geometric_for, noise_for
from fleetcount_mechanisms.planning import SHOWN, default_sampling_rate, not_shown
from fleetcount_mechanisms.protection import flips_protecting
from fleetcount_mechanisms.responses import Flips
from fleetcount_protocol.limits import MAX_ZOOMS
from fleetcount_protocol.window.domain import Numbers
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import Range

from fleetcount_simulator.model import ONE_SIDED, AnswerSpace, Mechanism, MechanismKind, shown_spread
from fleetcount_simulator.standing import StandingQuestion

_NOISE_PROTECTS: Final = (AnswerForm.TWO_ROUNDS, AnswerForm.TRUTH)
_NOISE_ALONE: Final = ("direct", ONE_SIDED)
_PROMISING: Final = ("sampling", "direct")
"""Kinds whose noise a question's promise can decide."""
_RATE: Final = Range("(0, 1/2)")
_EPSILON: Final = Range("[1/1000, 20]")
_NOISE: Final = Range("[1/100000, 100]")
_VARIANCE: Final = Range("[1/4, 100000000]")
_SD: Final = Range("[1/2, 10000]")
_GAUSSIAN: Final = ("noise_variance", "noise_sd")
_OPEN_UNIT: Final = Range("(0, 1)")
_NO_SHOW: Final = {
    "number": "of answers that are no numbers, allowed: question.cells = 'number'",
    "mode": "of answers that are not direct, allowed: kind = 'direct'; a mean of others is read from their cells",
    "one-sided": "of one-sided counts, allowed: kind = 'direct'",
    "zooms": "beside zooms, allowed: show = 'quantiles', or no zooms",
}
"""Why a mechanism does not show what it asks for."""
_FEWER: Final = "fewer question.points, or more epsilon, need less noise on what is opened beside them"


def mechanism_kinds() -> tuple[str, ...]:
    """Return every kind there is."""
    return *answer_names(), ONE_SIDED


def mechanism_keys(kind: str) -> tuple[str, ...]:
    """Return the keys of a kind, besides `name` and `kind`.

    `zooms` is the number of zooms of a square grid; `margins` opens those of a cross, whose noise is given; `show` is
    what a number is asked for. `noise` is "geometric" or "gaussian", for noise that follows from the promise of a
    question. `epsilon` is the loss of a release, from which the noise follows, for kinds that noise alone protects;
    `epsilon_local` is the loss of one answer that a device randomizes. Gaussian noise is given by its variance or by
    its standard deviation.
    """
    if kind == ONE_SIDED:
        return "epsilon", "noise_epsilon", "direction", "zooms"
    family = kind_named(kind)
    if family.form in _NOISE_PROTECTS:
        shown = ["show"] * (family.form is AnswerForm.TRUTH)
        return *family.parameters, "epsilon", "noise_epsilon", *_GAUSSIAN, "noise", "zooms", "margins", *shown
    local = () if family.from_epsilon is None else ("epsilon_local",)
    return *local, *family.parameters, *["protects"] * family.flips, "noise_epsilon", *_GAUSSIAN


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AskedMechanism:
    """A mechanism as the file asks for it, before the number of values V is known.

    `epsilon` is the loss of a release that the noise is to be planned for, None when the noise is given. `promised` is
    the question whose promise decides the noise, of law `noise`; None where the noise does not follow from a promise.
    """

    name: str
    kind: MechanismKind
    sampling_rate: Fraction | None
    epsilon: Fraction | None
    noise_epsilon: Fraction | None
    noise_variance: Fraction | None
    noise: Literal["geometric", "gaussian"]
    promised: StandingQuestion | None
    epsilon_local: Fraction | None
    direction: Literal["up", "down"] | None
    parameters: tuple[tuple[str, Fraction], ...]
    zooms: int
    margins: bool
    show: str | None
    protects: Mapping[int, Collection[int]] | None
    table: Table = field(repr=False)

    def for_question(self, question: AnswerSpace) -> Mechanism:
        """Return the mechanism for a question, with its law and noise checked.

        Raises:
            ScenarioError: this kind does not ask it, or no noise reaches the loss asked for; names the key.
        """
        values, most = question.values, question.most
        made = self._without_noise(values)
        answer = cast("AnswerLaw", self.table.naming(lambda: made.answer(values), "kind", MechanismError))
        if most > 1:
            answer = self._of_sets(values, most)
        if self.show is not None:
            return self._of_number(made, answer, question)
        target = self.epsilon
        if self.promised is not None:
            spread = Spread(levels=Levels(values, most=most_of(answer)))
            noise = self.table.naming(lambda: self._promised_noise(answer, spread), "noise", MechanismError)
            return _with_noise(made, noise)
        if target is None:
            return made
        share, one_sided = Fraction(1, require_levels(answer, self.zooms)), self.kind == ONE_SIDED
        if most > 1:
            share = Spread(levels=Levels(values, most=most)).cells_share(TwoSidedNoise)
        noise = self.table.naming(lambda: geometric_for(answer, target, one_sided, share), "epsilon", MechanismError)
        return replace(made, noise_epsilon=noise.epsilon)

    def _without_noise(self, values: int) -> Mechanism:
        rate = self.sampling_rate
        if self.kind == "sampling" and rate is None:
            rate = default_sampling_rate(values)
        return Mechanism(
            name=self.name,
            kind=self.kind,
            sampling_rate=rate,
            epsilon_local=self.epsilon_local,
            noise_epsilon=self.noise_epsilon,
            noise_variance=self.noise_variance,
            direction=self.direction,
            parameters=self.parameters,
            zooms=self.zooms,
            margins=self.margins,
            show=self.show,
            flips=self._flips(values),
        )

    def _of_number(self, made: Mechanism, answer: AnswerLaw, question: AnswerSpace) -> Mechanism:
        """Return the mechanism of a number that is asked for its mean or quantiles."""
        show, values, target = str(self.show), question.values, self.epsilon
        if not isinstance(question.domain, Numbers):
            raise self.table.wrong("show", f"is {show!r} {_NO_SHOW['number']}")
        try:
            spread = shown_spread(show, values, self._law, self.zooms)
            if self.promised is not None:
                made = _with_noise(made, self._promised_noise(answer, spread))
            elif target is not None:
                made = _with_noise(made, noise_for(answer, target, TwoSidedNoise, spread))
            spread.design(answer, made.noise)
        except MechanismError as error:
            raise self.table.wrong("show", f"is {show!r} of {values} points: {error}; {_FEWER}") from error
        return made

    def _flips(self, values: int) -> tuple[Flips, ...]:
        asked = self.protects
        if asked is None:
            return ()
        made = self.table.naming(lambda: flips_protecting(values, asked), "protects", MechanismError)
        return cast("tuple[Flips, ...]", made)

    def _of_sets(self, values: int, most: int) -> Truth:
        if self.kind != "direct" or self.zooms > 1:
            key = "kind" if self.kind != "direct" else "zooms"
            allowed = "'direct'" if key == "kind" else "1"
            raise self.table.refuse(key, f"{allowed} with question.at_once = {most}")
        return Truth(values, most)

    @property
    def _law(self) -> type[PlannedNoise]:
        """The law of the noise that is given or solved for, where it has two sides."""
        gaussian = self.noise_variance is not None or self.noise == "gaussian"
        return GaussianNoise if gaussian else TwoSidedNoise

    def _promised_noise(self, answer: AnswerLaw, spread: Spread) -> PlannedNoise:
        """Return the least noise that keeps the promise of the question."""
        return _promised_noise(answer, cast("StandingQuestion", self.promised), self._law, spread)  # type: ignore[arg-type]  # Laws are frozen values.


def _with_noise(made: Mechanism, noise: PlannedNoise) -> Mechanism:
    if isinstance(noise, GaussianNoise):
        return replace(made, noise_variance=noise.variance)
    return replace(made, noise_epsilon=noise.epsilon)


@lru_cache(maxsize=256)
def _promised_noise(
    answer: AnswerLaw, question: StandingQuestion, law: type[PlannedNoise], spread: Spread
) -> PlannedNoise:
    # Cached: a case is made in several places, and the exact sums of a long unit take seconds.
    return noise_for_promise(
        answer, question.shape, cast("Fraction", question.epsilon), question.delta, law, spread=spread
    )


def read_mechanism(table: Table, question: StandingQuestion | None = None) -> AskedMechanism:
    """Return the mechanism of one table, asked in a question or by itself.

    Raises:
        ScenarioError: an unknown kind, a key this kind does not take, a number outside its range, both or neither of
            two keys that exclude each other.
    """
    kind = table.choice("kind", mechanism_kinds())
    name = table.slug("name", kind)
    _refuse_unknown_keys(table, kind)
    promised = _promise(table, kind, question)
    variance = _variance(table)
    given = promised is not None or variance is not None
    epsilon, noise = (None, None) if given else _noise_keys(table, kind)
    local, own = _local_keys(table, kind)
    up_or_down = table.choice("direction", ("up", "down"), "up") if kind == ONE_SIDED else None
    return AskedMechanism(
        name=name,
        kind=kind,
        sampling_rate=table.optional("sampling_rate", _RATE),
        epsilon=epsilon,
        noise_epsilon=noise,
        noise_variance=variance,
        noise=cast("Any", table.choice("noise", ("geometric", "gaussian"), "geometric")),
        promised=promised,
        epsilon_local=local,
        direction=cast('Literal["up", "down"] | None', up_or_down),
        parameters=own,
        zooms=_zooms(table, promised),
        margins=_margins(table, promised),
        show=_show(table, kind, variance),
        protects=_protects(table) if table.has("protects") else None,
        table=table,
    )


def _refuse_unknown_keys(table: Table, kind: str) -> None:
    allowed = ("name", "kind", *mechanism_keys(kind))
    for key in table.content:
        # A kind that shows no number is told why, and not that there is no such key.
        if key not in (*allowed, "show"):
            raise table.wrong(key, f"is not a key of kind {kind!r}; its keys are: {', '.join(allowed)}")


def _promise(table: Table, kind: str, question: StandingQuestion | None) -> StandingQuestion | None:
    """Return the question whose promise decides the noise, None where the table gives it."""
    if question is None or question.epsilon is None:
        if table.has("noise"):
            raise table.wrong("noise", "is for a promise of the whole question; give schedule.epsilon too")
        return None
    if kind not in _PROMISING:
        raise table.refuse("kind", f"with schedule.epsilon one of: {', '.join(map(repr, _PROMISING))}")
    for key in ("epsilon", "noise_epsilon", *_GAUSSIAN):
        if table.has(key):
            raise table.wrong(key, "and schedule.epsilon are both given; the question decides the noise, or the table")
    return question


def _zooms(table: Table, promised: StandingQuestion | None) -> int:
    zooms = table.integer("zooms", 1, MAX_ZOOMS, 1)
    if zooms > 1 and promised is not None and not table.has("show"):
        raise table.wrong("zooms", "and schedule.epsilon are both given; give the noise of a number in its place")
    return zooms


def _margins(table: Table, promised: StandingQuestion | None) -> bool:
    asked = table.boolean("margins", default=False)
    if asked and (promised is not None or table.has("epsilon")):
        raise table.wrong("margins", "and an epsilon are both given; give the noise of a number in its place")
    return asked


def _show(table: Table, kind: str, variance: Fraction | None) -> str | None:
    """Return what a number is asked for; whether it is one is known with the question."""
    if not table.has("show"):
        return None
    show, zoomed = table.choice("show", SHOWN), table.integer("zooms", 1, MAX_ZOOMS, 1) > 1
    form = AnswerForm.TRUTH if kind == ONE_SIDED else kind_named(kind).form
    law = OneSidedNoise if kind == ONE_SIDED else TwoSidedNoise if variance is None else GaussianNoise
    if why := not_shown(show, form, law, number=True, zoomed=zoomed, total=True):
        raise table.wrong("show", f"is {show!r} {_NO_SHOW[why]}")
    if table.boolean("margins", default=False):
        raise table.wrong("margins", "and show are both given; a number has no margins")
    return show


def _protects(table: Table) -> Mapping[int, Collection[int]]:
    """Return which values are protected against which, by their numbers; 0 is none."""
    asked = table.raw("protects")
    rows = cast("dict[str, object]", asked) if isinstance(asked, dict) else {}
    read = {int(one): others for one, others in rows.items() if one.isascii() and one.isdigit()}
    whole = all(isinstance(others, list) and all(type(one) is int for one in others) for others in read.values())
    if not rows or len(read) != len(rows) or not whole:
        raise table.refuse("protects", 'values by number, each with those that hide it, 0 being none: {"1" = [2, 0]}')
    return cast("Mapping[int, Collection[int]]", read)


def _variance(table: Table) -> Fraction | None:
    """Return the parameter of Gaussian noise, None where the noise is not Gaussian."""
    given = [key for key in ("epsilon", "noise_epsilon", *_GAUSSIAN) if table.has(key)]
    if not set(given) & set(_GAUSSIAN):
        return None
    if len(given) > 1:
        raise table.wrong(given[0], f"and {given[1]} are both given; the noise follows from one of them")
    sd = table.optional("noise_sd", _SD)
    return table.optional("noise_variance", _VARIANCE) if sd is None else sd**2


def _noise_keys(table: Table, kind: str) -> tuple[Fraction | None, Fraction | None]:
    """Return (loss of a release, e1), of which one is None; (None, None) is no noise."""
    if table.has("epsilon") and table.has("noise_epsilon"):
        raise table.wrong("epsilon", "and noise_epsilon are both given; give the loss of a release or the noise's own")
    if table.raw("noise_epsilon") == "none":
        if kind in _NOISE_ALONE:
            raise table.refuse("noise_epsilon", f"a number: kind {kind!r} has no privacy without noise")
        return None, None
    if "epsilon" in mechanism_keys(kind) and not table.has("epsilon") and not table.has("noise_epsilon"):
        raise table.wrong("epsilon", f"is missing; kind {kind!r} needs epsilon (of a release) or noise_epsilon")
    return table.optional("epsilon", _EPSILON), table.optional("noise_epsilon", _NOISE)


def _local_keys(table: Table, kind: str) -> tuple[Fraction | None, tuple[tuple[str, Fraction], ...]]:
    """Return the local loss and the law's own parameters."""
    if kind == ONE_SIDED or kind_named(kind).form in _NOISE_PROTECTS:
        return None, ()
    family = kind_named(kind)
    key = family.own
    if family.from_epsilon is not None and table.has("epsilon_local") == table.has(key):
        raise table.wrong("epsilon_local", f"or {key}: kind {kind!r} needs exactly one of the two")
    own = [(name, table.number(name, _OPEN_UNIT)) for name in family.parameters if table.has(name)]
    return table.optional("epsilon_local", _EPSILON), tuple(own)
