"""Every alert of deploy/monitoring is raised by a real fault, as Prometheus' own rule tester sees it, and by no other.

Aggregators and relays of this process show what they show Prometheus, well and then with a fault; promtool plays it to
the shipped rules. Alerts that no page of ours decides (`up`) and bounds are in deploy/monitoring/alerts_test.yml.
"""

import asyncio
import json
import shutil
import subprocess
import time
from collections import namedtuple
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from fleetcount_aggregator.config import MqttTable
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.health_observations import Dependency
from fleetcount_aggregator.process.serving import Core, every
from fleetcount_aggregator.roles.probing import PROBE_S, probe_peers, probe_store, watch_loop
from fleetcount_aggregator.roles.readiness import Readiness, Watched
from fleetcount_aggregator.storage.errors import Damage, StoreError
from fleetcount_aggregator.transport.mqtt_intake import MqttIntake
from fleetcount_protocol.channel.certificates import CertificateAuthority
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.messages import WindowState
from fleetcount_relay.config import load_relay_config
from fleetcount_relay.forwarding import Forwarder, ForwardingLimits, Upstream
from fleetcount_relay.metrics import RelayMetrics
from fleetcount_relay.readiness import RelayReadiness
from fleetcount_transport.admission.admission import AdmissionTable, BusyError, Shed
from fleetcount_transport.admission.identity import Identity
from fleetcount_transport.denials import Denials
from prometheus_client.parser import text_string_to_metric_families

from tests.support.aggregators import START, Network, answer_all
from tests.support.relays import relay_files

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
PROMTOOL = shutil.which("promtool")
WELL_MIN, ILL_MIN = 20, 20
PLAYED_ELSEWHERE = {"FleetcountDown"}
Shown = Mapping[str, float]
"""What a page shows: values by series, as Prometheus writes them."""


def shown(text: bytes, job: str) -> Shown:
    """Return a page as Prometheus stores it."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = {**sample.labels, "instance": "here", "job": job}
            found[f"{sample.name}{{{', '.join(f'{key}={json.dumps(value)}' for key, value in labels.items())}}}"] = (
                sample.value
            )
    return found


class Scene:
    """Two aggregators; the first is watched. Pages are taken with `look`."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.network = Network(2)
        self.network.limits = replace(self.network.limits, give_up_s=900)

    @property
    def core(self) -> Core:
        return self.network.core(0)

    @property
    def context(self) -> Context:
        return self.core.context

    async def begin(self) -> None:
        await self.network.start_all()
        watched = Watched(certificate_ends={"own": START + 60 * 86_400}, state_directory=self.tmp_path, mqtt_slots=1)
        Readiness(self.context, watched)
        self.context.host.health.note(Dependency.BROKER)
        await probe_store(self.context.store, self.context.host.health)
        await probe_peers(self.context.peers, self.context.host.health)
        for reason in Shed:  # Prometheus sees an increase only of what it has seen before.
            self.context.host.metrics.shed(reason)
        self.context.host.metrics.background_failed("windows")
        self.context.host.metrics.window_moved(self.context_state("aborted"))

    @staticmethod
    def context_state(name: str) -> Any:
        return WindowState(name)

    def look(self) -> Shown:
        return shown(self.context.host.metrics.render(), "fleetcount-aggregator")


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    await made.begin()
    yield made
    await made.network.stop_all()


Fault = Callable[[Scene], Awaitable[Shown]]


async def peer_away(scene: Scene) -> Shown:
    await scene.network.stop(1)
    scene.context.host.health._monotonic = lambda: time.monotonic() + PROBE_S
    await probe_peers(scene.context.peers, scene.context.host.health)
    return scene.look()


async def certificate_soon(scene: Scene) -> Shown:
    scene.network.clock.advance(47 * 86_400)
    return scene.look()


async def certificate_now(scene: Scene) -> Shown:
    scene.network.clock.advance(58 * 86_400)
    return scene.look()


async def broker_away(scene: Scene) -> Shown:
    intake = MqttIntake(scene.context, scene.core.service, MqttTable(broker="127.0.0.1:1"))
    running = asyncio.create_task(intake.run())
    while scene.context.host.health.is_well(Dependency.BROKER):
        await asyncio.sleep(0.01)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    return scene.look()


async def window_stuck(scene: Scene) -> Shown:
    """The window has closed long ago, and its leader waits for a helper that is away."""
    network, seen = scene.network, list[Shown]()
    window = await network.ask(aggregators=tuple(seat.aggregator for seat in network.seats))
    await answer_all(network, window, [(0, 1), (0, 2)])
    await network.stop(1)
    await network.advance_to(window.round_two_closes + 601)
    network.before = lambda *_: seen.append(scene.look())
    await network.look_after_all()
    return max(seen, key=lambda one: sum(value for name, value in one.items() if "waiting_windows" in name))


async def window_lost(scene: Scene) -> Shown:
    await window_stuck(scene)
    return scene.look()


async def loop_held(scene: Scene) -> Shown:
    watching = asyncio.create_task(watch_loop(scene.context.host.metrics))
    await asyncio.sleep(0)
    time.sleep(0.9)  # Nothing else runs meanwhile: that is the fault.
    while not any(value > 0.5 for name, value in scene.look().items() if "event_loop_lag" in name):
        await asyncio.sleep(0.01)
    found = scene.look()
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    return found


async def disk_full(scene: Scene) -> Shown:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: namedtuple("Usage", "total used free")(0, 0, 2**29))
        return scene.look()


async def clock_off(scene: Scene) -> Shown:
    scene.context.host.health.skew_of("beta", -6.0)
    return scene.look()


async def store_fails(scene: Scene) -> Shown:
    async def work() -> None:
        raise StoreError("disk I/O error")

    running = asyncio.create_task(every(0.001, work, scene.context.host), name="windows")
    while scene.context.host.health.of(Dependency.BACKGROUND, "windows") is None:
        await asyncio.sleep(0.001)
    running.cancel()
    return scene.look()


async def store_damaged(scene: Scene) -> Shown:
    window = await scene.network.ask(aggregators=tuple(seat.aggregator for seat in scene.network.seats))
    scene.context.windows.quarantine(
        Damage(table="windows", what="the state is not as it was written", window_id=window.window_id)
    )
    return scene.look()


class Standby:
    """The place of a process that is not elected."""

    is_coordinator = False


async def nobody_leads(scene: Scene) -> Shown:
    context = scene.network.core(1).context
    Readiness(context, Watched(certificate_ends={}), Standby())
    page = shown(context.host.metrics.render(), "fleetcount-aggregator")
    return {**scene.look(), **{name: value for name, value in page.items() if "coordinator" in name}}


async def slot_free(scene: Scene) -> Shown:
    context = scene.network.core(1).context
    Readiness(context, Watched(certificate_ends={}, mqtt_slots=2), Standby())
    context.host.health.note(Dependency.BROKER, name="0")
    page = shown(context.host.metrics.render(), "fleetcount-aggregator")
    return {**scene.look(), **{name: value for name, value in page.items() if "broker_slot" in name}}


async def message_fails(scene: Scene) -> Shown:
    scene.context.host.metrics.mqtt_failed()
    return scene.look()


async def flood(scene: Scene) -> Shown:
    from fleetcount_transport.admission.admission import Admission

    admission = Admission(AdmissionTable(calls_each=1), scene.context.host.metrics.shed)
    with admission.call(Identity(b"one")):
        for _ in range(600):
            with suppress(BusyError), admission.call(Identity(b"one")):
                pass
    return scene.look()


FAULTS: Mapping[str, tuple[Fault, set[str]]] = {
    "a peer is away": (peer_away, {"FleetcountPeerUnreachable", "FleetcountNotReady"}),
    "a certificate ends in 13 days": (certificate_soon, {"FleetcountCertificateEnds"}),
    "and in 2": (certificate_now, {"FleetcountCertificateEnds", "FleetcountCertificateEndsSoon"}),
    "the broker is away": (broker_away, {"FleetcountBrokerLost", "FleetcountNotReady"}),
    "a window is stuck": (
        window_stuck,
        {"FleetcountWindowLate", "FleetcountWindowWaits", "FleetcountPeerUnreachable", "FleetcountNotReady"},
    ),
    "and lost": (window_lost, {"FleetcountWindowAborted", "FleetcountPeerUnreachable", "FleetcountNotReady"}),
    "the event loop is held": (loop_held, {"FleetcountEventLoopLags"}),
    "the disk fills": (disk_full, {"FleetcountDiskFills"}),
    "a clock is off": (clock_off, {"FleetcountClockSkew"}),
    "the store fails": (store_fails, {"FleetcountStoreFails", "FleetcountBackgroundFails", "FleetcountNotReady"}),
    "a row is damaged": (store_damaged, {"FleetcountWindowQuarantined"}),
    "no process is elected": (nobody_leads, {"FleetcountNoCoordinator"}),
    "nobody has a slot": (slot_free, {"FleetcountSlotNotConnected"}),
    "a message makes us fail": (message_fails, {"FleetcountMqttFails"}),
    "a flood": (flood, {"FleetcountSheds"}),
}


class Place:
    """Where a relay's aggregators would be, if they were there."""

    names = (AggregatorId("alpha"),)

    def __init__(self) -> None:
        self.authority = CertificateAuthority.create("aggregators")

    def endpoint(self, _: int) -> str:
        return "127.0.0.1:1"


async def relay_cut_off(directory: Path) -> tuple[Shown, Shown]:
    """Return what a relay shows while its aggregator answers, and once it does not."""
    place: Any = Place()
    config = load_relay_config(relay_files(place, directory, "127.0.0.1:0"))
    metrics = RelayMetrics()
    async with grpc.aio.insecure_channel(place.endpoint(0)) as channel:
        forwarder = Forwarder(Upstream(aggregator_id=place.names[0], channel=channel), metrics, ForwardingLimits())
        readiness = RelayReadiness(config, {"alpha": forwarder}, Denials())
        metrics.registry.register(readiness)
        readiness._conditions.note("aggregator", name="alpha")
        well = shown(metrics.render(), "fleetcount-relay")
        await readiness.probe()
    return well, shown(metrics.render(), "fleetcount-relay")


def played(well: Shown, ill: Shown, raised: set[str]) -> dict[str, Any]:
    """Return a test of promtool: some minutes of the one, then of the other; a counter that grew grows on."""
    series = []
    for name in sorted(well.keys() | ill.keys()):
        before, after = well.get(name), ill.get(name)
        first = "_" if before is None else str(before)
        step = max(0.0, (after or 0) - (before or 0)) if "_total{" in name else 0.0
        second = "_" if after is None else str(after)
        series.append({"series": name, "values": f"{first}{'' if first == '_' else '+0'}x{WELL_MIN} {second}"})
        if after is not None:
            series[-1]["values"] += f"+{step}x{ILL_MIN}"
    firing = 'group by (alertname) (ALERTS{alertstate="firing"})'
    at_end = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(raised)]
    return {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {"expr": firing, "eval_time": f"{WELL_MIN}m", "exp_samples": []},
            {"expr": firing, "eval_time": f"{WELL_MIN + ILL_MIN}m", "exp_samples": at_end},
        ],
    }


@pytest.mark.processes
async def test_every_alert_is_raised_by_a_fault_and_by_no_other(tmp_path: Path) -> None:
    if PROMTOOL is None:
        pytest.skip("promtool is not on this machine (Debian: apt install prometheus): no alert was raised")
    tests = []
    for number, (fault, raised) in enumerate(FAULTS.values()):
        scene = Scene(tmp_path)
        await scene.begin()
        well = scene.look()
        tests.append({"name": f"fault {number}", **played(well, await fault(scene), raised)})
        await scene.network.stop_all()
    (tmp_path / "relay").mkdir()
    cut_off = await relay_cut_off(tmp_path / "relay")
    tests.append({"name": "relay", **played(*cut_off, {"FleetcountRelayCutOff", "FleetcountNotReady"})})
    shutil.copy(MONITORING / "alerts.yml", tmp_path)
    file = tmp_path / "faults.yml"
    file.write_text(yaml.safe_dump({"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": tests}))

    ran = subprocess.run([PROMTOOL, "test", "rules", file], capture_output=True, text=True, timeout=60, check=False)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
    proved = set().union(*(raised for _, raised in FAULTS.values()), {"FleetcountRelayCutOff"}) | PLAYED_ELSEWHERE
    assert {rule["alert"] for rule in rules} == proved


def metrics_of(expression: str) -> set[str]:
    """Return the names of our metrics in an expression."""
    import re

    return set(re.findall(r"\bfleetcount_[a-z_]+", expression))


async def test_every_metric_of_the_rules_and_the_board_is_one_that_we_show(scene: Scene, tmp_path: Path) -> None:
    scene.context.host.health.skew_of("beta", 0.0)
    (tmp_path / "relay").mkdir()
    several = {**await nobody_leads(scene), **await slot_free(scene)}
    well, _ = await relay_cut_off(tmp_path / "relay")
    families = {
        one.name: one.type
        for text in (scene.context.host.metrics.render(),)
        for one in text_string_to_metric_families(text.decode())
    }
    known = {name.partition("{")[0] for name in (*several, *well)}
    known |= {f"{name}_total" for name, kind in families.items() if kind == "counter"}
    known |= {f"fleetcount_relay_{name}_total" for name in ("batches", "stream_failures", "malformed", "shed")}
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
    board = json.loads((MONITORING / "grafana.json").read_text())
    targets = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]

    asked = set().union(*map(metrics_of, [*(rule["expr"] for rule in rules), *targets]))

    assert len(asked) > 20
    assert asked - known == set()
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    places = [(cell["gridPos"]["x"], cell["gridPos"]["y"]) for cell in board["panels"]]
    assert len(set(places)) == len(places)
