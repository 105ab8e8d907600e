"""Whether a relay can carry anything, and why not: the checks of `/readyz` and the gauges beside them."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from fleetcount_transport.denials import Denials
from fleetcount_transport.operator_pages import Check
from fleetcount_transport.watching import Conditions, certificate_ends, days_left, ended, gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from fleetcount_relay.config import RelayConfig
from fleetcount_relay.forwarding import Forwarder

_PROBE_S: Final = 10.0
_AGGREGATOR: Final = "aggregator"


class RelayReadiness(Collector):
    """The state of one relay and of the aggregators behind it; `watch` must be running.

    It is ready while any aggregator answers: calls for the others fail, and their devices send again.
    """

    def __init__(self, config: RelayConfig, forwarders: Mapping[str, Forwarder], denials: Denials) -> None:
        tls = config.tls
        self._ends = certificate_ends(
            {"own": tls.certificate_file, "aggregator_ca": tls.aggregator_ca_file, "device_ca": tls.device_ca_file}
        )
        self._forwarders = forwarders
        self._denials = denials
        self._conditions = Conditions()
        self.is_draining = False

    async def watch(self) -> None:
        """Probe again and again, until cancelled."""
        while True:
            await self.probe()
            await asyncio.sleep(_PROBE_S)

    async def probe(self) -> None:
        """Probe every aggregator, all at once."""
        await asyncio.gather(*(self._probe(name, one) for name, one in self._forwarders.items()))

    async def _probe(self, name: str, forwarder: Forwarder) -> None:
        self._conditions.note(_AGGREGATOR, await forwarder.probe(), name=name)

    def checks(self) -> Sequence[Check]:
        """Return every check, always all of them and in this order."""
        now = time.time()
        complaints = [self._conditions.complaint(_AGGREGATOR, name) for name in self._forwarders]
        reasons = "; ".join(f"{name}: {one}" for name, one in zip(self._forwarders, complaints, strict=True) if one)
        problems = {
            "serving": "the process ends: calls under way are finished, none is begun" if self.is_draining else "",
            "certificate": ended(self._ends, now),
            "deny_list": "there is none that has not ended" if self._denials.is_stale(now) else "",
        }
        found = [Check(name=name, ok=not problem, reason=problem) for name, problem in problems.items()]
        return [*found, Check(name="aggregators", ok="" in complaints, reason=reasons)]

    def is_ready(self) -> bool:
        """Return whether every check holds."""
        return all(check.ok for check in self.checks())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges, computed at this moment."""
        days = days_left(self._ends, time.time())
        ready = {check.name: check.ok for check in self.checks()}
        reachable = {name: self._conditions.is_well(_AGGREGATOR, name) for name in self._forwarders}
        yield gauge("fleetcount_relay_ready", "Whether a check of /readyz holds.", "check", ready)
        yield gauge("fleetcount_relay_certificate_days_left", "Until a certificate ends.", "certificate", days)
        yield gauge("fleetcount_relay_aggregator_reachable", "Whether it answers.", "aggregator", reachable)
