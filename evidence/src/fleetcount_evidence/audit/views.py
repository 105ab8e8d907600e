"""What each adversary of a statement sees of a release, by the slug of its view, as numbers of outcomes.

Each observation is all that the adversary has, with what is independent of every truth left out: a share of an
aggregator is uniform whatever the answer (tests/evidence/audit/test_audit.py), and noise it knows is subtracted.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
from fleetcount_mechanisms.statement import AdversaryView
from fleetcount_simulator.errors import ScenarioError
from numpy.typing import NDArray

from fleetcount_evidence.audit.releases import Seen

Integers = NDArray[np.int64]
Observation = Callable[[Seen], Integers]

_REACH: Final = 5
"""Numbers are cut to -5..5, which every adversary can do as well."""
_SIDE: Final = 2 * _REACH + 1


def _all_but_one(seen: Seen) -> Integers:
    return np.asarray(seen.opened - seen.noises[:-1].sum(axis=0))


OBSERVATIONS: Final[Mapping[str, Observation]] = MappingProxyType(
    {
        "public_and_broker": lambda seen: seen.opened,
        "one_aggregator": lambda seen: seen.opened - seen.noises[0],
        "all_but_one_aggregators": _all_but_one,
        "all_aggregators": lambda seen: seen.messages,
        # The strongest reader of the release who also knows the bit: all but one aggregator.
        "sampled_bit_leaked": lambda seen: _all_but_one(seen)[seen.sampled],
        "one_round_two_message": lambda seen: seen.messages[:, 1:],
        "one_answer_alone": lambda seen: seen.messages,
    }
)
"""From the slug of a view to what that adversary sees of n releases: (rows, columns) of whole numbers."""


def observation_of(view: AdversaryView) -> Observation:
    """Return what the adversary of a view sees.

    Raises:
        ScenarioError: a slug without an observation: a line of a statement that nobody attacks must not pass.
    """
    if view.adversary not in OBSERVATIONS:
        raise ScenarioError(f"a statement names the adversary {view.adversary!r}, whom the audit does not know")
    return OBSERVATIONS[view.adversary]


def outcome_count(columns: int) -> int:
    """Return how many outcomes an observation of so many columns has."""
    return int(_SIDE**columns)


def outcomes(seen: Integers) -> Integers:
    """Return each row as one number below `outcome_count`: its entries, cut, as digits."""
    digits = np.clip(seen, -_REACH, _REACH) + _REACH
    return np.asarray(digits @ _SIDE ** np.arange(seen.shape[1]), dtype=np.int64)
