"""Events of a network run for a page or a log, beside the stages of `ProgressCallback`.

Values only. Only the simulation of the devices knows them: an aggregator tells no number of participants, and a page
must not show these numbers as an aggregator's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fleetcount_protocol.window.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """Every operator has signed the question; `window` is its first window, whose times are known."""

    window: Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Devices, by their numbers in the population, that since the last event got the last receipt they needed.

    It is told of the first window alone. `first` hold the receipts of round one, or of the whole report where there is
    one round; `every` those of all rounds.
    """

    first: tuple[int, ...] = field(repr=False)
    every: tuple[int, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """How often aggregators refused messages of a fleet process, by reason: in all, since the process began."""

    process: str
    reasons: Mapping[str, int]


RunEvent = Signed | Held | Refused
Listener = Callable[[RunEvent], None]
