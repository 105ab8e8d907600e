"""The exact law behind a study's `Mechanism`: the die, the randomized response or the bit vector of V values.

One place says what the parameters of each kind mean; it draws and estimates nothing.
"""

from fractions import Fraction

from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.responses import (
    KaryResponse,
    Mangat,
    MangatVector,
    OptimizedUnaryEncoding,
    RandomizedResponse,
    TwoCoin,
    Warner,
)
from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_simulator.model import Mechanism

__all__ = ["BitLaw", "Law", "law_of"]

BitLaw = MangatVector | OptimizedUnaryEncoding
Law = SamplingDie | RandomizedResponse | MangatVector | OptimizedUnaryEncoding | None

_HALF = Fraction(1, 2)


def law_of(mechanism: Mechanism, values: int) -> Law:
    """Return the law of a device's answer for V values; None for `direct` and `one-sided`, where it is the truth.

    Raises:
        MechanismError: a parameter is missing or outside its range, or a yes-or-no kind is asked V > 1 values.
    """
    if mechanism.kind in {"direct", "one-sided"}:
        return None
    if mechanism.kind == "sampling":
        return SamplingDie.uniform(_needed(mechanism.sampling_rate, "sampling_rate"), values)
    if mechanism.kind in {"two-coin", "warner", "mangat"}:
        if values != 1:
            raise MechanismError(f"kind {mechanism.kind!r} answers yes or no, V = 1; this question has V = {values}")
        return _binary(mechanism, dict(mechanism.parameters))
    return _many(mechanism, dict(mechanism.parameters), values)


def _binary(mechanism: Mechanism, given: dict[str, Fraction]) -> RandomizedResponse:
    local = mechanism.epsilon_local
    if mechanism.kind == "two-coin":
        yes = given.get("yes_probability", _HALF)
        if "truth_probability" in given:
            return TwoCoin(given["truth_probability"], yes)
        return TwoCoin.from_epsilon(_needed(local, "epsilon_local"), yes)
    if mechanism.kind == "warner":
        return Warner(given["keep"]) if "keep" in given else Warner.from_epsilon(_needed(local, "epsilon_local"))
    return Mangat(given["flip"]) if "flip" in given else Mangat.from_epsilon(_needed(local, "epsilon_local"))


def _many(mechanism: Mechanism, given: dict[str, Fraction], values: int) -> RandomizedResponse | BitLaw:
    local = mechanism.epsilon_local
    if mechanism.kind == "k-ary":
        if "keep" in given:
            return KaryResponse(given["keep"], values)
        return KaryResponse.from_epsilon(_needed(local, "epsilon_local"), values)
    law = MangatVector if mechanism.kind == "vector-mangat" else OptimizedUnaryEncoding
    return law(given["flip"], values) if "flip" in given else law.from_epsilon(_needed(local, "epsilon_local"), values)


def _needed(value: Fraction | None, name: str) -> Fraction:
    if value is None:
        raise MechanismError(f"{name} is missing")
    return value
