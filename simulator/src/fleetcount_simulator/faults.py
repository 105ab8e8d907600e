"""What a study's faults do to one device and to a release: the chance of every fate, and whether there is a release.

Probabilities and decisions only; the engines draw. The per-device engine draws the causes (coins, a clock's error,
sending times), the law engine uses the probabilities of `fates`; both draw from the same law.

A device with two rounds meets its faults in this order, a device with one round those of its only round:

    loss       neither instalment ever arrives
    clock      round one is sent outside its window: the device takes no part
    drop-out   the device is off in round two (a coin, or the population's own ignition)
    clock      round two is sent outside its window
    late       the last instalment arrives after its window has closed
    outage     an aggregator is down from before the last instalment until its window has closed

Times are those of the client: it sends the part of each aggregator at a random time of its own, uniform in the first
4/5 of each window (`SPREAD`) by its own clock, and a round is in its window when all its parts are. The clock's error
is uniform in [-s, s] and the same in both rounds. A device with a fast clock sends too early, is refused as early and
sends again until the window opens; it misses the window only if its clock is a whole window fast. A device with a slow
clock may send after the window has closed. The aggregators' clocks decide (docs/operating-questions.md); a window lasts
a minute here (`WINDOW_S`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from fleetcount_transport.failpoints import AGGREGATOR_FAILPOINTS

from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Faults

WINDOW_S: Final = 60
"""Length of each round's window."""

SPREAD: Final = Fraction(4, 5)
"""The share of a window in which a device first sends its parts; the rest is for re-sends (client
`DeliverySettings.spread`)."""

GIVE_UP_S: Final = 900
"""How long after the last window the leader waits for its peers (`give_up_s` of an aggregator)."""

COLLECTING: Final = "collecting"
_INTAKE: Final = ("intake.before_commit", "intake.after_commit", "verification.before_store")
_BOTH: Final = ("agreeing", "releasing", "release.after_draw", "release.after_draw_store")
_LEADER: Final = tuple(point for point in AGGREGATOR_FAILPOINTS if point.startswith("leader."))
_HELPER: Final = tuple(point for point in AGGREGATOR_FAILPOINTS if point.startswith("helper."))
_DONE: Final = frozenset({"leader.after_release", "helper.before_deliver_store", "helper.after_deliver_store"})
"""From these steps on the record has all signatures, so the release exists even if this aggregator stays down."""

OUTAGE_STEPS: Final = (COLLECTING, *_INTAKE, *_BOTH, *_LEADER, *_HELPER)
"""When an aggregator can go down: a state or a fail point of docs/operating-trouble.md. Those of the intake happen
in the middle of the last window, the others after it has closed."""

_SHARES: Final = ("loss", "drop_out", "late", "duplicates")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fates:
    """The chance of each fate of one device that takes part, exact; they sum to 1.

    `lost`: nothing arrives. `missed`: round one was sent outside its window, so the device takes no part. `dropped`:
    off in round two. `late`: the last instalment came too late. `cut`: it met an outage. The last three are half
    pairs. With one round there are none: `missed` is part of `late` and `cut` of `lost`. `counted`: none of these.
    """

    lost: Fraction
    missed: Fraction
    dropped: Fraction
    late: Fraction
    cut: Fraction

    @property
    def counted(self) -> Fraction:
        """The chance that the device is in the agreed set."""
        return 1 - self.lost - self.missed - self.dropped - self.late - self.cut

    def without_drop_out(self) -> "Fates":
        """Return the fates of a device known to be off in round two: `dropped` unless lost or missed."""
        dropped = 1 - self.lost - self.missed
        return Fates(lost=self.lost, missed=self.missed, dropped=dropped, late=Fraction(0), cut=Fraction(0))


def check(faults: Faults, aggregators: int) -> None:
    """Refuse faults outside their ranges, or that contradict each other.

    Raises:
        ScenarioError: a share outside [0, 1], a negative skew or downtime, ignition together with a drop-out rate, an
            unknown step or aggregator, or a step that the named aggregator never does; the message names the key.
    """
    for name in _SHARES:
        share = getattr(faults, name)
        if not 0 <= share <= 1:
            raise ScenarioError(f"faults.{name} is {share}; allowed is 0 to 1")
    if faults.clock_skew_s < 0:
        raise ScenarioError(f"faults.clock_skew_s is {faults.clock_skew_s}; allowed is 0 or more")
    if faults.ignition and faults.drop_out:
        raise ScenarioError(f"faults.drop_out is {faults.drop_out}; with ignition = true it must be 0")
    for position, step, seconds in faults.outage:
        _check_outage(position, step, seconds, aggregators)


def _check_outage(position: int, step: str, seconds: Fraction, aggregators: int) -> None:
    if not 0 <= position < aggregators:
        raise ScenarioError(f"faults.outage names aggregator {position}; allowed is 0 to {aggregators - 1}")
    if step not in OUTAGE_STEPS:
        raise ScenarioError(f"faults.outage names step {step!r}; allowed are: {', '.join(OUTAGE_STEPS)}")
    if (step in _LEADER and position != 0) or (step in _HELPER and position == 0):
        raise ScenarioError(
            f"faults.outage names step {step!r} of aggregator {position}; aggregator 0 leads, the others help"
        )
    if seconds < 0:
        raise ScenarioError(f"faults.outage is {seconds} s down; allowed is 0 (it never comes back) or more")


def skew_in_windows(faults: Faults) -> Fraction:
    """Return s, the largest error of a device's clock, in windows."""
    return faults.clock_skew_s / WINDOW_S


def cut_share(faults: Faults) -> Fraction:
    """Return the chance that a device's last instalment falls into an outage that outlasts its window.

    The outage begins in the middle of the window. A device that has sent before has its receipts; any other sends again
    and again, and succeeds if the aggregator is back before the window closes.
    """
    half = Fraction(WINDOW_S, 2)
    outlasts = any(
        step in (COLLECTING, *_INTAKE) and (seconds == 0 or seconds >= half) for _, step, seconds in faults.outage
    )
    return (SPREAD - Fraction(1, 2)) / SPREAD if outlasts else Fraction(0)


def is_released(faults: Faults) -> bool:
    """Return whether there is a release in spite of the outages: every aggregator is back before the others give up."""
    return all(_comes_back(step, seconds) for _, step, seconds in faults.outage)


def _comes_back(step: str, seconds: Fraction) -> bool:
    if step in _DONE:
        return True
    patience = GIVE_UP_S + (Fraction(WINDOW_S, 2) if step in (COLLECTING, *_INTAKE) else 0)
    return 0 < seconds <= patience


def fates(faults: Faults, rounds: int, aggregators: int) -> Fates:
    """Return the chance of each fate of a device that is on in both rounds; see the module for their order.

    With x = the time by which a clock is slow, in windows, the chance of sending one part too late is
    f(x) = clip((x - 1/5) / (4/5), 0, 1), each part on its own, and that of a round is 1 - (1 - f)^aggregators; x is
    uniform in [0, s] for half of the devices. A fast clock misses the window where it is a whole window fast.
    The caller applies `ignition`, by `without_drop_out`.
    """
    skew, last_late, cut = skew_in_windows(faults), faults.late, cut_share(faults)
    here = 1 - faults.loss
    missed, second = _clock_fates(skew, aggregators)
    if rounds == 1:
        late = missed + (1 - missed) * last_late
        unsent = faults.loss + here * (1 - late) * cut
        return Fates(lost=unsent, missed=Fraction(0), dropped=Fraction(0), late=here * late, cut=Fraction(0))
    stays = here * (1 - faults.drop_out)
    late = second + (1 - missed - second) * last_late
    return Fates(
        lost=faults.loss,
        missed=here * missed,
        dropped=here * (1 - missed) * faults.drop_out,
        late=stays * late,
        cut=stays * (1 - missed - late) * cut,
    )


def _clock_fates(skew: Fraction, parts: int) -> tuple[Fraction, Fraction]:
    """Return P[round one is missed] and P[round one is in time and round two too late], for the largest error s."""
    if skew == 0:
        return Fraction(0), Fraction(0)
    margin = 1 - SPREAD
    reach = min(max((skew - margin) / SPREAD, Fraction(0)), Fraction(1))
    beyond = max(skew - 1, Fraction(0))
    # Integrals over x in [0, s] of g = (1 - f)^parts and of g^2, as far as f < 1; then of 1 - g and of g (1 - g).
    once_all, twice_all = ((1 - (1 - reach) ** (power + 1)) / (power + 1) for power in (parts, 2 * parts))
    late = SPREAD * (reach - once_all) + beyond
    once = SPREAD * (once_all - twice_all)
    return (late + beyond) / (2 * skew), once / (2 * skew)


TALLIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "lost": "devices of which nothing arrived",
        "half_pairs": "devices with a first instalment alone, because they dropped out or an aggregator was down",
        "late": "devices whose clock or network missed a window",
        "absent": "devices that were off in round one",
        "refused": "devices whose ledger allowed no further answer",
        "resent": "devices that sent their bytes again",
        "counted_twice": "devices counted twice: 0",
        "liars": "attacking devices that claimed a value",
        "invalid": "attacking devices whose report was refused",
    }
)
"""The tallies that the law engine and the per-device engine give for every run, and what each counts."""
