"""What a console knows of its aggregator: the store, read-only, and the pages of the process where it runs.

It must not write, and takes over no number of reports: of what was refused the reasons, and roughly how often.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from fleetcount_aggregator.config import AggregatorConfig
from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.roles.readiness import Watched
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.row_types import LedgerRow
from fleetcount_aggregator.windows.status import (
    AggregatorStatus,
    QuestionLine,
    WindowLine,
    read_spent,
    read_status,
    read_windows,
)
from fleetcount_transport.watching import days_left

from fleetcount_site.console.alerts import NAMES, Standing, Watch
from fleetcount_site.console.history import History, Sample, samples

Ask = Callable[[str], bytes | None]
"""Returns what the aggregator's process answers at a path, None if nothing answers."""

_REFUSED: Final = ("fleetcount_refusals_total", "fleetcount_shed_total")
_METRICS: Final = NAMES | frozenset(_REFUSED)
_MOST_WINDOWS: Final = 100
_RATE_S: Final = 300.0
_SPENT_S: Final = 60.0
"""How long what signals have spent is not added up again: a year of hours takes a second."""
_OFTEN: Final = ((1.0, "now and then"), (60.0, "every minute"))


def how_often(a_minute: float, seen_s: float = _RATE_S) -> str:
    """Return a rate in coarse words; an exact one, summed up, would be a number of refused reports.

    `seen_s`: for how many seconds somebody has looked; what was before that is not known.
    """
    if a_minute <= 0:
        return "not in the last 5 minutes" if seen_s >= _RATE_S else "not since this console began to look"
    return next((words for most, words in _OFTEN if a_minute <= most), "every second")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSeen:
    """A window, why it does not go on, "" if it has ended, and until when that lasts, Unix seconds, None if unknown."""

    line: WindowLine
    wait: str
    until: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of /readyz; `reason` is "" where it holds."""

    name: str
    ok: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another aggregator; what is None is not known now: only the process that talks to it knows."""

    name: str
    operator: str
    answers: bool | None
    skew_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All of a console's page at one moment, `at` in Unix seconds.

    `trouble` says why the store could not be read now: windows, question and ledger are then empty. `runs` is None
    where the configuration has no page to ask. `spent` is what each signal loses in the fullest period that is not
    over, of `allowed`.
    """

    at: float
    aggregator: str
    store: str
    trouble: str
    runs: bool | None
    checks: Sequence[Check]
    windows: Sequence[WindowSeen]
    quarantined: Mapping[str, str]
    questions: Sequence[QuestionLine]
    ledger: Sequence[LedgerRow]
    limits: str
    spent: Mapping[str, Decimal]
    allowed: Decimal
    peers: Sequence[Peer]
    days_left: Mapping[str, float]
    refused: Mapping[str, str]
    alerts: Sequence[Standing]
    watched_s: float


class Looker:
    """Looks at one aggregator, again and again; `ask` is None where the configuration has no `[metrics]`."""

    def __init__(self, config: AggregatorConfig, ask: Ask | None, clock: Callable[[], float] = time.time) -> None:
        """Read the certificates.

        Raises:
            UsageError, OSError: one cannot be read.
        """
        self._config = config
        self._ask = ask
        self._clock = clock
        self._ends = Watched.of(config).certificate_ends
        self._history = History()
        self._watch = Watch(config.aggregator.id)
        limits = config.limits
        self._limits = Limits(
            largest_epsilon=limits.largest_epsilon,
            total_epsilon=limits.total_epsilon,
            total_delta=limits.total_delta,
            budget_period_s=limits.budget_period_s,
        )
        self._spent: tuple[float, Mapping[str, Decimal]] | None = None

    def check(self) -> None:
        """Return if the store can be read.

        Raises:
            StoreError: there is none, it is of another version, or it cannot be read.
        """
        read_status(self._config.store_place, 1)

    def look(self) -> Seen:
        """Return what is seen now."""
        now, moment = self._clock(), time.monotonic()
        asked = self._running(moment)
        trouble = ""
        found: AggregatorStatus | None = None
        unfinished: Sequence[WindowLine] = ()
        spent: Mapping[str, Decimal] = {}
        try:
            found, unfinished = self._stored()
            spent = self._spent_now(now, moment)
        except StoreError as error:
            trouble = str(error)
        told = self._json("/windows") if asked else {}
        checks = self._json("/readyz").get("checks", []) if asked else []
        lines = {} if found is None else {one.number: one for one in (*unfinished, *found.windows)}
        return Seen(
            at=now,
            aggregator=self._config.aggregator.id,
            store=self._config.store_place.name,
            trouble=trouble,
            runs=asked,
            checks=[Check(name=one["name"], ok=bool(one["ok"]), reason=one.get("reason", "")) for one in checks],
            windows=_waiting(lines.values(), {row["window"]: row.get("wait") for row in told.get("windows", [])}, now),
            quarantined=told.get("quarantined", {}),
            questions=[] if found is None else found.questions,
            ledger=[] if found is None else found.ledger[::-1],
            limits=self._limits_text(),
            spent=spent,
            allowed=self._limits.period_epsilon,
            peers=self._peers(known=bool(asked)),
            days_left=days_left(self._ends, now),
            refused=self._refused() if asked else {},
            alerts=[] if asked is None else self._watch.standings(self._history, moment, answers=asked),
            watched_s=self._history.seen_s(),
        )

    def _stored(self) -> tuple[AggregatorStatus, Sequence[WindowLine]]:
        place = self._config.store_place
        return read_status(place, _MOST_WINDOWS), read_windows(place, _MOST_WINDOWS, unfinished=True)

    def _running(self, moment: float) -> bool | None:
        """Return whether the process answers, and remember its metrics; None where there is no page to ask."""
        if self._ask is None:
            return None
        page = self._ask("/metrics")
        try:
            found = None if page is None else samples(page, _METRICS)
        except ValueError:
            found = None
        # Another program at that address is no aggregator that runs.
        if not found or not found["fleetcount_ready"]:
            return False
        self._history.add(moment, found)
        return True

    def _json(self, path: str) -> dict[str, Any]:
        try:
            found = json.loads((self._ask and self._ask(path)) or b"{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _spent_now(self, now: float, moment: float) -> Mapping[str, Decimal]:
        if self._spent is None or moment - self._spent[0] >= _SPENT_S:
            self._spent = moment, read_spent(self._config.store_place, self._limits, now)
        return self._spent[1]

    def _limits_text(self) -> str:
        limits = self._limits
        return (
            f"Windows that overlap on one signal may lose epsilon {limits.largest_epsilon:f} together, all of a signal"
            f" {limits.period_epsilon:f} within {limits.budget_period_s / 86_400:g} days ([limits])."
        )

    def _peers(self, *, known: bool) -> Sequence[Peer]:
        def of(metric: str) -> dict[str, float]:
            rows: Sequence[Sample] = self._history.now.get(metric, ()) if known else ()
            return {dict(labels)["peer"]: value for labels, value in rows}

        reached, skews = of("fleetcount_peer_reachable"), of("fleetcount_clock_skew_seconds")
        return [
            Peer(
                name=peer.id,
                operator=peer.operator,
                answers=bool(reached[peer.id]) if peer.id in reached else None,
                skew_s=skews.get(peer.id),
            )
            for peer in self._config.peers
        ]

    def _refused(self) -> Mapping[str, str]:
        """Return roughly how often each reason was given of late, of those that were given at all."""
        seen_s = self._history.seen_s()
        window_s = max(min(_RATE_S, seen_s), 60.0)
        grown: dict[str, float] = {}
        for name in _REFUSED:
            for labels, increase in self._history.increase(name, _RATE_S).items():
                reason = dict(labels).get("reason", "")
                grown[reason] = grown.get(reason, 0.0) + increase
        return {reason: how_often(60 * grown[reason] / window_s, seen_s) for reason in sorted(grown)}


def _waiting(lines: Any, waits: Mapping[str, Any], now: float) -> Sequence[WindowSeen]:
    """Return windows, the newest first, with what the process says of them; else what the store lets one expect."""
    rows = []
    for line in sorted(lines, key=lambda one: -one.number):
        told = waits.get(line.window_id.hex()) or {}
        wait, until = told.get("text"), told.get("until")
        if wait is None and line.wait is not None:
            wait, until = line.wait.text(now), line.wait.until
        rows.append(WindowSeen(line=line, wait=wait or "", until=until))
    return rows
