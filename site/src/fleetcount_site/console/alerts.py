"""The alerts of deploy/monitoring that one aggregator's pages decide, and which of their conditions hold now.

A test compares every row with the shipped rule. It must not send anything to anybody.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fleetcount_transport.watching import duration

from fleetcount_site.console.history import History, Labels, Sample

_SLOT: Final = re.compile(r"\{\{ \$(?:labels\.(?P<label>\w+)|value)(?: \| (?P<as>\w+))? \}\}")
_MINUTE_S: Final = 60.0
_HERE: Final = "here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One alert: `expression` compares a metric with a bound, for `wait_s` seconds before it counts."""

    name: str
    severity: str
    metric: str
    compared: str
    bound: str
    summary: str
    how: str = "{}"
    """What is done to the metric before it is compared, as Prometheus writes it."""
    over_s: float = 0.0
    only: tuple[str, str] | None = None
    wait_s: float = 0.0

    @property
    def expression(self) -> str:
        """The condition as Prometheus writes it."""
        chosen = self.metric if self.only is None else f'{self.metric}{{{self.only[0]}="{self.only[1]}"}}'
        return f"{self.how.format(chosen)} {self.compared} {self.bound}"

    def holds(self, value: float) -> bool:
        """Return whether the condition holds for a value."""
        base, _, power = self.bound.partition("^")
        bound = math.pow(float(base), float(power or 1))
        return {"<": value < bound, ">": value > bound, "==": value == bound}[self.compared]

    def values(self, history: History) -> Iterator[Sample]:
        """Yield what is compared."""
        if self.over_s:
            for labels, grown in history.increase(self.metric, self.over_s).items():
                yield Sample(labels, grown / self.over_s if "rate(" in self.how else grown)
            return
        for labels, value in history.now.get(self.metric, ()):
            yield Sample(labels, abs(value) if "abs(" in self.how else value)


def _rule(name: str, severity: str, condition: tuple[str, str, str], summary: str, **more: object) -> Rule:
    metric, compared, bound = condition
    fields: dict[str, object] = {"metric": metric, "compared": compared, "bound": bound} | more
    return Rule(name=name, severity=severity, summary=summary, **fields)  # type: ignore[arg-type] # Rule's own fields.


_FAILS: Final = {"how": "increase({}[10m])", "over_s": 600.0}
DOWN: Final = Rule(
    name="FleetcountDown",
    severity="page",
    metric='up{job=~"fleetcount-.*"}',
    compared="==",
    bound="0",
    wait_s=2 * _MINUTE_S,
    summary="{{ $labels.instance }} does not answer: the process has ended, or hangs",
)
RULES: Final = (
    _rule(
        "FleetcountNotReady",
        "page",
        ("fleetcount_ready", "==", "0"),
        "{{ $labels.instance }} is not ready: {{ $labels.check }}. GET /readyz says why",
        wait_s=5 * _MINUTE_S,
    ),
    _rule(
        "FleetcountCertificateEnds",
        "warning",
        ("fleetcount_certificate_days_left", "<", "14"),
        "The certificate {{ $labels.certificate }} of {{ $labels.instance }} ends in {{ $value | humanize }} days",
    ),
    _rule(
        "FleetcountCertificateEndsSoon",
        "page",
        ("fleetcount_certificate_days_left", "<", "3"),
        "The certificate {{ $labels.certificate }} of {{ $labels.instance }} ends in {{ $value | humanize }} days",
    ),
    _rule(
        "FleetcountPeerUnreachable",
        "page",
        ("fleetcount_peer_reachable", "==", "0"),
        "{{ $labels.instance }} does not reach {{ $labels.peer }};"
        " after [limits] give_up_s windows of both are aborted",
        wait_s=5 * _MINUTE_S,
    ),
    _rule(
        "FleetcountBrokerLost",
        "page",
        ("fleetcount_broker_connected", "==", "0"),
        "{{ $labels.instance }} has no connection to its MQTT broker",
        wait_s=2 * _MINUTE_S,
    ),
    _rule(
        "FleetcountWindowLate",
        "page",
        ("fleetcount_window_overdue_seconds", ">", "600"),
        "A window of {{ $labels.instance }} is still {{ $labels.state }}, {{ $value | humanizeDuration }}"
        " after its windows",
    ),
    _rule(
        "FleetcountWindowWaits",
        "warning",
        ("fleetcount_waiting_windows", ">", "0"),
        "{{ $value }} windows of {{ $labels.instance }} wait for: {{ $labels.for }}. `fleetcount aggregator status`"
        " says why",
        wait_s=3 * _MINUTE_S,
    ),
    _rule(
        "FleetcountWindowQuarantined",
        "page",
        ("fleetcount_quarantined_windows", ">", "0"),
        "{{ $value }} windows of {{ $labels.instance }} are set aside: their store is damaged. The log says where"
        " (damaged)",
    ),
    _rule(
        "FleetcountWindowAborted",
        "warning",
        ("fleetcount_window_moves_total", ">", "0"),
        "A window of {{ $labels.instance }} ended without a release",
        how="increase({}[1h])",
        over_s=3600.0,
        only=("state", "aborted"),
    ),
    _rule(
        "FleetcountEventLoopLags",
        "warning",
        ("fleetcount_event_loop_lag_seconds", ">", "0.5"),
        "{{ $labels.instance }} answers {{ $value | humanizeDuration }} late: it has too much to do",
        wait_s=5 * _MINUTE_S,
    ),
    _rule(
        "FleetcountDiskFills",
        "page",
        ("fleetcount_disk_free_bytes", "<", "2^30"),
        "{{ $value | humanize1024 }}B are left where {{ $labels.instance }} keeps its state; below 128 MiB it is not"
        " ready",
    ),
    _rule(
        "FleetcountClockSkew",
        "warning",
        ("fleetcount_clock_skew_seconds", ">", "5"),
        "The clocks of {{ $labels.instance }} and {{ $labels.peer }} are {{ $value }} s apart",
        how="abs({})",
        wait_s=_MINUTE_S,
    ),
    _rule(
        "FleetcountStoreFails",
        "page",
        ("fleetcount_store_errors_total", ">", "0"),
        "The store of {{ $labels.instance }} could not serve requests",
        **_FAILS,
    ),
    _rule(
        "FleetcountBackgroundFails",
        "warning",
        ("fleetcount_background_failures_total", ">", "0"),
        "{{ $labels.work }} of {{ $labels.instance }} fails; the log says why (background_failed)",
        **_FAILS,
    ),
    _rule(
        "FleetcountMqttFails",
        "warning",
        ("fleetcount_mqtt_failures_total", ">", "0"),
        "An MQTT message made {{ $labels.instance }} fail; it was put aside. Please report it",
        **_FAILS,
    ),
    _rule(
        "FleetcountSheds",
        "warning",
        ("fleetcount_shed_total", ">", "5"),
        "{{ $labels.instance }} refuses {{ $value | humanize }} a second: {{ $labels.reason }}",
        how="sum by (instance, reason) (rate({}[5m]))",
        over_s=5 * _MINUTE_S,
        wait_s=5 * _MINUTE_S,
    ),
)
"""In the order of deploy/monitoring/alerts.yml, after `DOWN`."""
NAMES: Final = frozenset(rule.metric for rule in RULES)


class Firing(NamedTuple):
    """A condition that holds: its sentence, and for how many seconds it has."""

    sentence: str
    for_s: float


class Standing(NamedTuple):
    """A rule and where its condition holds, nowhere if `firing` is empty."""

    rule: Rule
    firing: Sequence[Firing]

    @property
    def counts(self) -> bool:
        """Whether one of the conditions has held for as long as the rule waits."""
        return any(one.for_s >= self.rule.wait_s for one in self.firing)


class Watch:
    """Since when which condition has held, as far as this console has looked."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._since: dict[tuple[str, Labels], float] = {}

    def standings(self, history: History, moment: float, *, answers: bool) -> Sequence[Standing]:
        """Return every rule with the conditions that hold; where nothing answers, `DOWN` alone is known."""
        rows: dict[Rule, Sequence[Sample]] = {DOWN: [] if answers else [Sample((), 0.0)]}
        for rule in RULES:
            chosen = rule.values(history) if answers else ()
            rows[rule] = [one for one in chosen if _is_meant(rule, one.labels) and rule.holds(one.value)]
        held = {(rule.name, one.labels) for rule, found in rows.items() for one in found}
        self._since = {key: self._since.get(key, moment) for key in held}
        return [
            Standing(
                rule,
                [Firing(self._sentence(rule, one), moment - self._since[rule.name, one.labels]) for one in found],
            )
            for rule, found in rows.items()
        ]

    def _sentence(self, rule: Rule, sample: Sample) -> str:
        labels: Mapping[str, str] = {"instance": self._instance, **dict(sample.labels)}

        def filled(slot: re.Match[str]) -> str:
            if (label := slot["label"]) is not None:
                return labels.get(label, _HERE)
            return _written(sample.value, slot["as"] or "")

        return _SLOT.sub(filled, rule.summary)


def _is_meant(rule: Rule, labels: Labels) -> bool:
    return rule.only is None or rule.only in labels


def _written(value: float, how: str) -> str:
    if how == "humanizeDuration":
        return duration(value) if value >= 1 else f"{value:.2g} s"
    return f"{value / 2**20:.0f} Mi" if how == "humanize1024" else f"{value:.3g}"
