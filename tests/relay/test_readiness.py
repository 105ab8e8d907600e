"""A relay says whether it can carry anything, and why not."""

import asyncio
import re
from pathlib import Path

from fleetcount_protocol.ids import AggregatorId
from fleetcount_relay.config import load_relay_config
from fleetcount_relay.forwarding import Forwarder, ForwardingLimits, Upstream, open_upstream
from fleetcount_relay.metrics import RelayMetrics
from fleetcount_relay.readiness import RelayReadiness
from fleetcount_transport.denials import Denials, DenySource
from fleetcount_transport.key_files import TlsFiles
from prometheus_client import CollectorRegistry

from tests.support.relays import relay_files, relayed


async def test_it_is_ready_while_any_aggregator_answers_and_names_those_that_do_not(tmp_path: Path) -> None:
    async with relayed() as here:
        config = load_relay_config(relay_files(here, tmp_path, "127.0.0.1:0"))
        tls = TlsFiles.read(config.tls.aggregator_ca_file, config.tls.certificate_file, config.tls.key_file)
        channels = {one.id: open_upstream(one.id, one.endpoint, tls.to_servers()) for one in config.aggregators}
        forwarders = {
            str(name): Forwarder(
                Upstream(aggregator_id=AggregatorId(name), channel=channel), RelayMetrics(), ForwardingLimits()
            )
            for name, channel in channels.items()
        }
        readiness = RelayReadiness(config, forwarders, Denials())
        registry = CollectorRegistry()
        registry.register(readiness)

        def verdict() -> tuple[bool, str]:
            [found] = [check for check in readiness.checks() if check.name == "aggregators"]
            return found.ok, re.sub(r" since \d+ s", "", found.reason)

        async def refused(*names: str) -> None:
            """Probe until nothing listens there: a call that a server's end meets has no reason."""
            reason = "; ".join(f"{name}: unavailable (refused: nothing listens there)" for name in names)
            async with asyncio.timeout(60):
                while verdict()[1] != reason:
                    await readiness.probe()

        assert verdict() == (False, "alpha: not known yet; beta: not known yet")
        await readiness.probe()
        assert verdict() == (True, "")
        await here.servers[0].stop(0)
        await refused("alpha")
        assert verdict()[0], "beta answers"
        gauges = {
            name: registry.get_sample_value("fleetcount_relay_aggregator_reachable", {"aggregator": name})
            for name in forwarders
        }
        assert gauges == {"alpha": 0.0, "beta": 1.0}
        await here.servers[1].stop(0)
        await refused("alpha", "beta")
        assert not verdict()[0]
        assert registry.get_sample_value("fleetcount_relay_certificate_days_left", {"certificate": "own"}) > 1
        for channel in channels.values():
            await channel.close()


async def test_a_relay_without_a_deny_list_that_holds_or_that_ends_is_not_ready(tmp_path: Path) -> None:
    async with relayed() as here:
        config = load_relay_config(relay_files(here, tmp_path, "127.0.0.1:0"))
    readiness = RelayReadiness(config, {}, Denials(DenySource(file=tmp_path / "absent")))
    readiness.is_draining = True

    wrong = [check.name for check in readiness.checks() if not check.ok]

    assert wrong == ["serving", "deny_list", "aggregators"]
