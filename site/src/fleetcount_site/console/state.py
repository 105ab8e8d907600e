"""The state that a console shows: the aggregator's store, read-only, and the pages `/readyz` and `/windows`.

It must not write, and must not show a number of reports: of refused reports it has the reasons alone.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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

AskPage = Callable[[str], bytes | None]
"""Returns the answer of the aggregator's process at a path, None without an answer."""

_MOST_WINDOWS: Final = 100
_SPENT_S: Final = 60.0
"""Seconds for which the losses of signals are cached: adding up a year of hourly windows takes a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowState:
    """A window; `wait` is why it waits, "" once it has ended, `until` when the wait ends, Unix seconds or None."""

    line: WindowLine
    wait: str
    until: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check of /readyz; `reason` is "" where it holds."""

    name: str
    ok: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorState:
    """Everything on a console's page at one moment, `at` in Unix seconds.

    `store_error` says why the store could not be read: windows, questions and ledger are then empty. `answers` is
    whether the process answers, None where the configuration has no `[metrics]`. `spent` is the epsilon of each signal
    in the fullest period that has not ended, of `allowed`; `days_left` is by certificate, in days.
    """

    at: float
    aggregator: str
    store: str
    store_error: str
    answers: bool | None
    checks: Sequence[CheckResult]
    windows: Sequence[WindowState]
    quarantined: Mapping[str, str]
    questions: Sequence[QuestionLine]
    ledger: Sequence[LedgerRow]
    limits: str
    spent: Mapping[str, Decimal]
    allowed: Decimal
    days_left: Mapping[str, float]


class StateReader:
    """Reads the state of one aggregator; `ask` is None where the configuration has no `[metrics]`."""

    def __init__(self, config: AggregatorConfig, ask: AskPage | None, clock: Callable[[], float] = time.time) -> None:
        """Read the ends of the certificates.

        Raises:
            UsageError, OSError: a certificate cannot be read.
        """
        self._config = config
        self._ask = ask
        self._clock = clock
        self._certificate_ends = Watched.of(config).certificate_ends
        limits = config.limits
        self._limits = Limits(
            largest_epsilon=limits.largest_epsilon,
            total_epsilon=limits.total_epsilon,
            total_delta=limits.total_delta,
            budget_period_s=limits.budget_period_s,
        )
        self._spent: Mapping[str, Decimal] = {}
        self._spent_until = float("-inf")

    def check(self) -> None:
        """Check that the store can be read.

        Raises:
            StoreError: there is no store, it is of another version, or it cannot be read.
        """
        read_status(self._config.store_place, 1)

    def read(self) -> AggregatorState:
        """Return the state now."""
        now, place = self._clock(), self._config.store_place
        ready, windows = self._page("/readyz"), self._page("/windows")
        # An answer without checks is from another program at that address: the aggregator does not run.
        checks = [
            CheckResult(name=one["name"], ok=bool(one["ok"]), reason=one.get("reason", ""))
            for one in ready.get("checks", [])
        ]
        store_error = ""
        found: AggregatorStatus | None = None
        unfinished: Sequence[WindowLine] = ()
        spent: Mapping[str, Decimal] = {}
        try:
            found = read_status(place, _MOST_WINDOWS)
            unfinished = read_windows(place, _MOST_WINDOWS, unfinished=True)
            spent = self._spent_now(now)
        except StoreError as error:
            found, store_error = None, str(error)
        lines = {} if found is None else {one.number: one for one in (*unfinished, *found.windows)}
        waits = {row["window"]: row.get("wait") for row in windows.get("windows", [])}
        return AggregatorState(
            at=now,
            aggregator=self._config.aggregator.id,
            store=place.name,
            store_error=store_error,
            answers=None if self._ask is None else bool(checks),
            checks=checks,
            windows=_window_states(lines.values(), waits, now),
            quarantined=windows.get("quarantined", {}),
            questions=[] if found is None else found.questions,
            ledger=[] if found is None else found.ledger[::-1],
            limits=(
                f"Windows that overlap on one signal may lose epsilon {self._limits.largest_epsilon:f} together, all of"
                f" a signal {self._limits.period_epsilon:f} within {self._limits.budget_period_s / 86_400:g} days"
                " ([limits])."
            ),
            spent=spent,
            allowed=self._limits.period_epsilon,
            days_left=days_left(self._certificate_ends, now),
        )

    def _page(self, path: str) -> dict[str, Any]:
        """Return a page of the process as JSON, {} where it does not answer, or not with a JSON object."""
        answer = self._ask(path) if self._ask is not None else None
        try:
            found = json.loads(answer or b"{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _spent_now(self, now: float) -> Mapping[str, Decimal]:
        moment = time.monotonic()
        if moment >= self._spent_until:
            self._spent = read_spent(self._config.store_place, self._limits, now)
            self._spent_until = moment + _SPENT_S
        return self._spent


def _window_states(lines: Iterable[WindowLine], waits: Mapping[str, Any], now: float) -> Sequence[WindowState]:
    """Return windows, the newest first, with the process's reason of their wait, or else the reason by the store."""
    states = []
    for line in sorted(lines, key=lambda one: -one.number):
        waiting = waits.get(line.window_id.hex()) or {}
        wait, until = waiting.get("text"), waiting.get("until")
        if wait is None and line.wait is not None:
            wait, until = line.wait.text(now), line.wait.until
        states.append(WindowState(line=line, wait=wait or "", until=until))
    return states
