"""The part of a release that each adversary of a statement sees, by the slug of its view, as numbers of outcomes.

Each observation is everything that the adversary has, less the parts that are independent of the truth: an
aggregator's share is uniform for every answer (tests/evidence/audit/test_audit.py), and known noise is subtracted.
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
"""Numbers are cut to -5..5, and closer where there are many: an adversary could do the same, so the bound stays a lower
bound."""
_MOST_OUTCOMES: Final = 100_000
"""Of so many an attack can estimate the chances; seven numbers from -5 to 5 are 19 million."""


def _all_but_one(seen: Seen) -> Integers:
    return np.asarray(seen.opened - seen.noises[:-1].sum(axis=0))


OBSERVATIONS: Final[Mapping[str, Observation]] = MappingProxyType(
    {
        "public_and_broker": lambda seen: seen.opened,
        "one_aggregator": lambda seen: seen.opened - seen.noises[0],
        "all_but_one_aggregators": _all_but_one,
        "all_aggregators": lambda seen: seen.messages,
        # The strongest adversary that sees the release and the bit: all but one aggregator.
        "sampled_bit_leaked": lambda seen: _all_but_one(seen)[seen.sampled],
        "one_round_two_message": lambda seen: seen.messages[:, 1:],
        "one_answer_alone": lambda seen: seen.messages,
    }
)
"""From the slug of a view to the function that returns its observation of n releases, (rows, columns) int64.

Only `sampled_bit_leaked` has fewer rows than releases.
"""


def observation_of(view: AdversaryView) -> Observation:
    """Return the function that gives the observation of a view's adversary.

    Raises:
        ScenarioError: the audit does not know the view's slug: a line that is not attacked must not pass.
    """
    if view.adversary not in OBSERVATIONS:
        raise ScenarioError(f"a statement names the adversary {view.adversary!r}, which the audit does not know")
    return OBSERVATIONS[view.adversary]


def outcome_count(columns: int, one_in: int = 1) -> int:
    """Return the number of outcomes of an observation with this number of columns, in one window of `one_in`."""
    return one_in * _outcomes_a_window(columns, one_in)


def outcomes(seen: Integers, slots: Integers | None = None, one_in: int = 1) -> Integers:
    """Return each row as one number below `outcome_count`, (rows,) int64: its entries, cut, are the digits.

    `slots` is (rows,), 0 to one_in - 1: the window of each row, the first digit.
    """
    columns = seen.shape[1]
    reach = _reach(columns, one_in)
    codes = np.asarray((np.clip(seen, -reach, reach) + reach) @ (2 * reach + 1) ** np.arange(columns), dtype=np.int64)
    return codes if slots is None else codes + slots * _outcomes_a_window(columns, one_in)


def _outcomes_a_window(columns: int, one_in: int) -> int:
    return int((2 * _reach(columns, one_in) + 1) ** columns)


def _reach(columns: int, one_in: int) -> int:
    return next((one for one in range(_REACH, 1, -1) if one_in * (2 * one + 1) ** columns <= _MOST_OUTCOMES), 1)
