"""One [[mechanism]] table: which keys a kind takes, and the `Mechanism` it becomes once V is known.

Reads and resolves exact numbers; draws nothing and estimates nothing. The laws behind the kinds are those of
`fleetcount_mechanisms`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Literal, cast, get_args

from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.losses import neighbours_of, noise_epsilon_for
from fleetcount_mechanisms.planning import default_sampling_rate

from fleetcount_simulator.model import Mechanism, MechanismKind
from fleetcount_simulator.scenario.laws import law_of
from fleetcount_simulator.scenario.values import Range, Section

__all__ = ["MECHANISM_KEYS", "AskedMechanism", "read_mechanism"]

KINDS: Final = get_args(MechanismKind)
CENTRAL: Final = ("sampling", "direct", "one-sided")
"""Kinds whose privacy is the aggregators' noise: `epsilon` is the loss of a release, from which the noise follows."""
MECHANISM_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "sampling": ("sampling_rate", "epsilon", "noise_epsilon"),
    "two-coin": ("epsilon_local", "truth_probability", "yes_probability", "noise_epsilon"),
    "warner": ("epsilon_local", "keep", "noise_epsilon"),
    "mangat": ("epsilon_local", "flip", "noise_epsilon"),
    "k-ary": ("epsilon_local", "keep", "noise_epsilon"),
    "vector-mangat": ("epsilon_local", "flip", "noise_epsilon"),
    "unary": ("epsilon_local", "flip", "noise_epsilon"),
    "direct": ("epsilon", "noise_epsilon"),
    "one-sided": ("epsilon", "noise_epsilon", "direction"),
}
"""The keys of each kind, besides `name` and `kind`."""

_OWN: Final = {"two-coin": "truth_probability", "warner": "keep", "k-ary": "keep"}
"""The parameter that may stand in place of `epsilon_local`; "flip" for the others."""
_RATE: Final = Range("(0, 1/2)")
_EPSILON: Final = Range("[1/1000, 20]")
_NOISE: Final = Range("[1/100000, 100]")
_OPEN_UNIT: Final = Range("(0, 1)")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AskedMechanism:
    """A mechanism as the file asks for it: what depends on the number of values V is still open.

    `epsilon` is the loss of a release that the noise is to be planned for, None when the noise is given.
    """

    name: str
    kind: MechanismKind
    sampling_rate: Fraction | None
    epsilon: Fraction | None
    noise_epsilon: Fraction | None
    epsilon_local: Fraction | None
    direction: Literal["up", "down"] | None
    parameters: tuple[tuple[str, Fraction], ...]
    table: Section = field(repr=False)

    def for_values(self, values: int) -> Mechanism:
        """Return the mechanism for a question of V values, with its law and noise checked.

        Raises:
            ScenarioError: this kind does not ask V values, or no noise reaches the loss asked for; names the key.
        """
        rate = self.sampling_rate
        if self.kind == "sampling" and rate is None:
            rate = default_sampling_rate(values)
        made = Mechanism(
            name=self.name,
            kind=self.kind,
            sampling_rate=rate,
            epsilon_local=self.epsilon_local,
            noise_epsilon=self._noise(rate, values),
            direction=self.direction,
            parameters=self.parameters,
        )
        self.table.naming(lambda: law_of(made, values), "kind", MechanismError)
        return made

    def _noise(self, rate: Fraction | None, values: int) -> Fraction | None:
        """Return e1 of every aggregator, planned for the loss of a release where that is what was asked for."""
        if self.epsilon is None or self.kind == "one-sided":
            return self.noise_epsilon if self.epsilon is None else self.epsilon
        target, of = self.epsilon, rate or Fraction(1)
        planned = self.table.naming(
            lambda: noise_epsilon_for(target, of, neighbours_of(values)), "epsilon", MechanismError
        )
        return cast("Fraction", planned)


def read_mechanism(table: Section) -> AskedMechanism:
    """Return the mechanism of one table.

    Raises:
        ScenarioError: an unknown kind, a key this kind does not take, a number outside its range, both or neither of
            two keys that exclude each other.
    """
    kind = cast("MechanismKind", table.choice("kind", KINDS))
    name = table.slug("name", kind)
    _only_known(table, kind)
    epsilon, noise = _noise_keys(table, kind)
    local, own = _local_keys(table, kind)
    up_or_down = table.choice("direction", ("up", "down"), "up") if kind == "one-sided" else None
    return AskedMechanism(
        name=name,
        kind=kind,
        sampling_rate=table.optional("sampling_rate", _RATE),
        epsilon=epsilon,
        noise_epsilon=noise,
        epsilon_local=local,
        direction=cast('Literal["up", "down"] | None', up_or_down),
        parameters=own,
        table=table,
    )


def _only_known(table: Section, kind: str) -> None:
    allowed = ("name", "kind", *MECHANISM_KEYS[kind])
    for key in table.content:
        if key not in allowed:
            raise table.wrong(key, f"is not a key of kind {kind!r}; its keys are: {', '.join(allowed)}")


def _noise_keys(table: Section, kind: str) -> tuple[Fraction | None, Fraction | None]:
    """Return (loss of a release, e1): the one given; (None, None) is no noise."""
    if table.has("epsilon") and table.has("noise_epsilon"):
        raise table.wrong("epsilon", "and noise_epsilon are both given; give the loss of a release or the noise's own")
    if table.raw("noise_epsilon") == "none":
        if kind in {"direct", "one-sided"}:
            raise table.refuse("noise_epsilon", f"a number: kind {kind!r} has no privacy without noise")
        return None, None
    if kind in CENTRAL and not table.has("epsilon") and not table.has("noise_epsilon"):
        raise table.wrong("epsilon", f"is missing; kind {kind!r} needs epsilon (of a release) or noise_epsilon")
    return table.optional("epsilon", _EPSILON), table.optional("noise_epsilon", _NOISE)


def _local_keys(table: Section, kind: str) -> tuple[Fraction | None, tuple[tuple[str, Fraction], ...]]:
    """Return the local loss and the law's own parameters."""
    if kind in CENTRAL:
        return None, ()
    key = _OWN.get(kind, "flip")
    if table.has("epsilon_local") == table.has(key):
        raise table.wrong("epsilon_local", f"or {key}: kind {kind!r} needs exactly one of the two")
    own = [(name, table.number(name, _OPEN_UNIT)) for name in (key, "yes_probability") if table.has(name)]
    return table.optional("epsilon_local", _EPSILON), tuple(own)
