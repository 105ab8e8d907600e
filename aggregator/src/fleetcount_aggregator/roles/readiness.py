"""Whether an aggregator can do its work, why not, and what its operator watches: pages and gauges.

Everything is looked at when it is asked for, so that nothing on a page is older than its question. Names and labels
are from closed lists; no number of reports is among them.
"""

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final, Protocol

from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.messages import WindowState
from fleetcount_transport.operator_pages import Check, Page, Pages, health_pages, json_page, metrics_page
from fleetcount_transport.watching import certificate_ends, days_left, ended, gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from fleetcount_aggregator.config import AggregatorConfig
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.broker_connection import BrokerConnection
from fleetcount_aggregator.host.health_observations import Dependency
from fleetcount_aggregator.host.reasons import Wait, expected_wait
from fleetcount_aggregator.host.states import UNFINISHED
from fleetcount_aggregator.memory.installed import InstalledWindow

_ROOM_BYTES: Final = 64 * 2**20
_LEAST_FREE_BYTES: Final = 2 * _ROOM_BYTES
_MOST_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What the configuration names to look at: when each certificate ends, Unix seconds, the state, the broker.

    `mqtt_slots` is 0 without a broker.
    """

    certificate_ends: Mapping[str, float]
    state_directory: Path | None = None
    mqtt_slots: int = 0

    @classmethod
    def of(cls, config: AggregatorConfig) -> "Watched":
        """Return what a configuration names.

        Raises:
            UsageError, OSError: a certificate cannot be read.
        """
        tls = config.tls
        files = {"device_ca": tls.device_ca_file}
        if not config.grpc.insecure:
            files |= {"aggregator_ca": tls.aggregator_ca_file, "own": tls.certificate_file}
            files |= {f"ca_of_{peer.id}": peer.ca_file for peer in config.peers if peer.ca_file is not None}
        return cls(
            certificate_ends=certificate_ends(files),
            state_directory=config.aggregator.state_directory,
            mqtt_slots=0 if config.mqtt is None else config.mqtt.slots,
        )


class ElectionState(Protocol):
    """What one of several processes of an aggregator knows of its part."""

    @property
    def is_coordinator(self) -> bool:
        """Whether it is the coordinator, which calls the other aggregators, as far as it knows."""
        ...


class Readiness(Collector):
    """The pages and gauges of one process; `election` is None if it is the only one of its aggregator."""

    def __init__(self, context: Context, watched: Watched, election: ElectionState | None = None) -> None:
        self._context = context
        self._host = context.host
        self._windows = context.windows
        self._watched = watched
        self._election = election
        self.is_draining = False
        context.host.metrics.registry.register(self)

    def pages(self) -> Pages:
        """Return `/metrics`, `/healthz`, `/readyz` and `/windows`."""
        return {
            "/metrics": metrics_page(self._host.metrics.registry),
            **health_pages(self.checks),
            "/windows": lambda _: self._windows_page(),
        }

    # Readiness.

    def checks(self) -> Sequence[Check]:
        """Return every check, always all of them and in this order."""
        problems = {
            "serving": "the process ends: calls under way are finished, none is begun" if self.is_draining else "",
            "store": self._host.health.complaint(Dependency.STORE) or self._disk_problem(),
            "keys": self._keys_problem(),
            "certificate": ended(self._watched.certificate_ends, self._host.moment().now),
            "deny_list": self._deny_list_problem(),
            "peers": self._complaints(Dependency.PEER, self._peers),
            "broker": self._broker_problem(),
            "clock": self._clock_problem(),
            "background": self._complaints(Dependency.BACKGROUND, self._host.health.all_of(Dependency.BACKGROUND)),
        }
        return [Check(name=name, ok=not problem, reason=problem) for name, problem in problems.items()]

    @property
    def _peers(self) -> Iterable[AggregatorId]:
        """Whom this process talks to: among several, the coordinator alone does."""
        return self._context.peers if self._election is None or self._election.is_coordinator else ()

    def _disk_problem(self) -> str:
        free = self._free_bytes()
        if free is None or free >= _LEAST_FREE_BYTES:
            return ""
        return f"{free // 2**20} MiB free in {self._watched.state_directory}; needed: {_LEAST_FREE_BYTES // 2**20} MiB"

    def _free_bytes(self) -> int | None:
        """Return the free room, rounded down: every report has the same size, so that bytes would count reports."""
        if self._watched.state_directory is None:
            return None
        free = shutil.disk_usage(self._watched.state_directory).free
        return free - free % _ROOM_BYTES

    def _keys_problem(self) -> str:
        keys, now = self._host.keys, self._host.now()
        if keys.is_unusable:
            return "a file in the directory of sealing keys cannot be used; the log names it"
        if not any(one.not_before <= now < one.not_after for _, _, one in keys.listed()):
            return "no sealing key is valid now"
        return ""

    def _deny_list_problem(self) -> str:
        stale = self._host.denials.is_stale(self._host.now())
        return "there is none that has not ended: nobody is served until the next one" if stale else ""

    def _broker_problem(self) -> str:
        if not self._watched.mqtt_slots:
            return ""
        held = self._host.health.all_of(Dependency.BROKER)
        if not held and self._election is not None:
            return ""  # Other processes have the connections.
        return self._complaints(Dependency.BROKER, held or [""])

    def _clock_problem(self) -> str:
        largest = self._host.limits.largest_skew_s
        far = {name: skew for name, skew in self._host.health.skew_s.items() if abs(skew) > largest}
        differ = [f"{name} is {skew:+.1f} s from ours; allowed: {largest:g} s" for name, skew in far.items()]
        unconfirmed = self._host.moments.complaint()
        return "; ".join([*([unconfirmed] if unconfirmed else []), *differ])

    def _complaints(self, what: Dependency, names: Iterable[str]) -> str:
        found = {f"{name}: " if name else "": self._host.health.complaint(what, name) for name in names}
        return "; ".join(f"{named}{complaint}" for named, complaint in found.items() if complaint)

    # Windows.

    def wait_of(self, window: InstalledWindow) -> Wait | None:
        """Return why a window does not go on now: what is wrong, else what is expected."""
        state, limits = self._windows.states[window.window_id], self._host.limits
        wrong = self._windows.waits.of(window.window_id)
        return wrong or expected_wait(window.asked, state, leads=window.is_leader, give_up_s=limits.give_up_s)

    def _windows_page(self) -> Page:
        """Return the windows that have not ended, the oldest first, `_MOST_ROWS` at most."""
        now, rows, states = self._host.moment().now, [], self._windows.states
        unfinished = [window for window in self._windows.live.values() if states[window.window_id] in UNFINISHED]
        for window in unfinished[:_MOST_ROWS]:
            wait = self.wait_of(window)
            told = {"window": str(window.window_id), "name": window.asked.name, "state": states[window.window_id].value}
            rows.append({**told, "wait": None if wait is None else wait.fields(now)})
        damaged = {str(window_id): str(one.damage) for window_id, one in self._windows.quarantined.items()}
        return json_page(HTTPStatus.OK, {"windows": rows, "more": len(unfinished) > _MOST_ROWS, "quarantined": damaged})

    # Gauges.

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield what is measured at the moment of the question."""
        windows, health = self._windows, self._host.health
        now = self._host.moment().now
        for name, text, label, values in (
            (
                "fleetcount_ready",
                "Whether a check of /readyz holds.",
                "check",
                {one.name: one.ok for one in self.checks()},
            ),
            ("fleetcount_certificate_days_left", "Until a certificate ends.", "certificate", self._days_left(now)),
            ("fleetcount_peer_reachable", "Whether a peer answered when last asked.", "peer", self._reachable()),
            ("fleetcount_clock_skew_seconds", "How far a peer's clock is ahead of ours.", "peer", health.skew_s),
            ("fleetcount_open_windows", "Windows that have not ended.", "state", self._open_windows()),
            (
                "fleetcount_window_overdue_seconds",
                "Since the last window of the oldest closed.",
                "state",
                self._overdue(now),
            ),
            (
                "fleetcount_quarantined_windows",
                "Set aside: the store is damaged.",
                "",
                {"": len(windows.quarantined)},
            ),
            (
                "fleetcount_waiting_windows",
                "Windows that wait against expectation.",
                "for",
                windows.waits.counts(),
            ),
        ):
            yield gauge(name, text, label, values)
        if self._election is not None:
            yield gauge("fleetcount_coordinator", "1 or 0.", "", {"": self._election.is_coordinator})
        yield from self._broker()
        if (free := self._free_bytes()) is not None:
            yield gauge("fleetcount_disk_free_bytes", "Where the state lies.", "", {"": free})
        again = "Transactions retried after conflicts with others."
        yield CounterMetricFamily("fleetcount_store_retries", again, value=self._context.store.retries)

    def _broker(self) -> Iterator[GaugeMetricFamily]:
        """Yield how the connections to the broker are: of a process of several, of all, whoever has them."""
        health, slots = self._host.health, self._watched.mqtt_slots
        held = health.all_of(Dependency.BROKER)
        if self._election is not None and slots:
            well = {
                str(slot): health.is_well(Dependency.BROKER, BrokerConnection(slot, slots).name)
                for slot in range(slots)
            }
            yield gauge("fleetcount_broker_slot_connected", "1 or 0: here.", "slot", well)
        if slots and (held or self._election is None):
            is_well = bool(held) and all(health.is_well(Dependency.BROKER, name) for name in held)
            yield gauge("fleetcount_broker_connected", "1 or 0.", "", {"": is_well})

    def _days_left(self, now: float) -> Mapping[str, float]:
        return days_left(self._watched.certificate_ends, now)

    def _reachable(self) -> Mapping[str, float]:
        return {name: self._host.health.is_well(Dependency.PEER, name) for name in self._peers}

    def _open_windows(self) -> Mapping[str, float]:
        found = Counter(self._windows.states[window_id] for window_id in self._windows.live)
        return {state.value: found[state] for state in WindowState if state in UNFINISHED}

    def _overdue(self, now: float) -> Mapping[str, float]:
        overdue = {state: 0.0 for state in WindowState if state in UNFINISHED}
        for window in self._windows.live.values():
            state = self._windows.states[window.window_id]
            if state in overdue:
                overdue[state] = max(overdue[state], now - window.closes)
        return {state.value: seconds for state, seconds in overdue.items()}
