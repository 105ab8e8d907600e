"""Readiness, its reasons and the gauges beside it, on real aggregators in this process with real faults."""

import asyncio
import json
import re
import shutil
import time
from collections import namedtuple
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.health_observations import Dependency
from fleetcount_aggregator.host.keys import KeyRing
from fleetcount_aggregator.process.serving import watching_work
from fleetcount_aggregator.roles.probing import PROBE_S, probe_peers, probe_store
from fleetcount_aggregator.roles.readiness import Readiness, Watched
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_protocol.window.window import Window
from fleetcount_transport.denials import Denials, DenySource
from fleetcount_transport.operator_pages import PageRequest

from tests.support.aggregators import START, Network, answer_all

DAY = 86_400
NOT_ASKED = {"store", "peers", "broker"}


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    """Three aggregators that run."""
    made = Network(3)
    await made.start_all()
    yield made
    await made.stop_all()


def readiness_of(context: Context, **watched: Any) -> Readiness:
    return Readiness(context, Watched(certificate_ends={"own": START + 20 * DAY}, **watched))


def wrong(readiness: Readiness) -> Mapping[str, str]:
    """Return the reasons of the checks that fail; how long they have, a busy machine decides."""
    return {check.name: re.sub(r" since \d+ s", "", check.reason) for check in readiness.checks() if not check.ok}


def gauge(context: Context, name: str, **labels: str) -> float | None:
    return context.host.metrics.registry.get_sample_value(f"fleetcount_{name}", labels)


async def probed(context: Context) -> None:
    await probe_store(context.store, context.host.health)
    await probe_peers(context.peers, context.host.health)


async def test_nothing_is_ready_before_it_was_asked_and_all_is_once_everybody_answers(network: Network) -> None:
    context = network.core(0).context
    readiness = readiness_of(context, mqtt_slots=1)

    assert set(wrong(readiness)) == NOT_ASKED
    await probed(context)
    assert wrong(readiness) == {"broker": "not known yet"}
    context.host.health.note(Dependency.BROKER)
    assert wrong(readiness) == {}
    assert [gauge(context, "peer_reachable", peer=name) for name in ("beta", "gamma")] == [1.0, 1.0]
    assert gauge(context, "ready", check="peers") == gauge(context, "broker_connected") == 1.0


async def test_a_peer_that_does_not_answer_is_named_and_the_others_are_not(network: Network) -> None:
    context = network.core(0).context
    readiness = readiness_of(context)
    await probed(context)
    await network.stop(2)
    context.host.health._monotonic = lambda: time.monotonic() + PROBE_S  # Ten seconds later they are asked again.

    await probe_peers(context.peers, context.host.health)

    assert wrong(readiness) == {"peers": "gamma: gamma is down"}
    assert [gauge(context, "peer_reachable", peer=name) for name in ("beta", "gamma")] == [1.0, 0.0]
    assert gauge(context, "ready", check="peers") == 0.0


async def test_who_has_answered_anything_of_late_is_not_asked_again(network: Network) -> None:
    context = network.core(0).context
    await probe_peers(context.peers, context.host.health)
    calls = gauge(context, "peer_calls_total", peer="beta", result="unknown_window")

    await probe_peers(context.peers, context.host.health)

    assert calls == 1.0
    assert gauge(context, "peer_calls_total", peer="beta", result="unknown_window") == calls


async def test_a_store_that_fails_is_named_until_it_serves_again(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = network.core(0).context
    readiness = readiness_of(context)
    await probed(context)

    async def fail() -> None:
        raise StoreError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(context.store, "probe", fail)
        await probe_store(context.store, context.host.health)
        assert wrong(readiness) == {"store": "disk I/O error"}
    await probe_store(context.store, context.host.health)
    assert wrong(readiness) == {}


async def test_a_disk_that_is_nearly_full_is_named_with_what_is_needed(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = network.core(0).context
    readiness = readiness_of(context, state_directory=tmp_path)
    await probed(context)
    assert wrong(readiness) == {}

    free = namedtuple("Usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free(0, 0, 2**27 - 1))

    assert wrong(readiness) == {"store": f"64 MiB free in {tmp_path}; needed: 128 MiB"}
    assert gauge(context, "disk_free_bytes") == 2**26


async def test_the_free_room_is_too_coarse_to_count_reports_by(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = network.core(0).context
    readiness_of(context, state_directory=tmp_path)
    free = namedtuple("Usage", "total used free")
    seen = set()
    for reports in range(0, 10_000, 1_000):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, taken=reports: free(0, 0, 2**33 - 1 - 2_000 * taken))
        seen.add(gauge(context, "disk_free_bytes"))

    assert seen == {2**33 - 2**26}


async def test_a_certificate_is_counted_in_the_days_of_now_and_its_end_is_named(network: Network) -> None:
    context = network.core(0).context
    readiness = readiness_of(context)
    await probed(context)

    assert gauge(context, "certificate_days_left", certificate="own") == 20
    network.clock.advance(19 * DAY)
    assert gauge(context, "certificate_days_left", certificate="own") == 1
    assert wrong(readiness) == {}
    network.clock.advance(DAY)
    assert wrong(readiness) == {"certificate": "ended: own"}


async def test_keys_deny_list_clock_background_and_an_end_are_reasons_too(network: Network, tmp_path: Path) -> None:
    context = network.core(0).context
    readiness = readiness_of(context)
    await probed(context)

    context.host.keys = KeyRing({})
    context.host.denials = Denials(DenySource(file=tmp_path / "absent"))
    context.host.health.skew_of("beta", -31.25)
    context.host.health.skew_of("gamma", 29)
    context.host.health.note(Dependency.BACKGROUND, "disk I/O error", name="windows")
    context.host.health.note(Dependency.BACKGROUND, name="keys")
    readiness.is_draining = True

    assert wrong(readiness) == {
        "serving": "the process ends: calls under way are finished, none is begun",
        "keys": "no sealing key is valid now",
        "deny_list": "there is none that has not ended: nobody is served until the next one",
        "clock": "beta is -31.2 s from ours; allowed: 30 s",
        "background": "windows: disk I/O error",
    }
    assert gauge(context, "clock_skew_seconds", peer="beta") == -31.25


def rows(readiness: Readiness) -> list[dict[str, Any]]:
    page = readiness.pages()["/windows"](PageRequest({}, ""))
    found: list[dict[str, Any]] = json.loads(page.body)["windows"]
    return found


async def test_a_window_says_what_it_waits_for_from_its_beginning_to_its_end(network: Network) -> None:
    leader, helper = (network.core(position).context for position in (0, 1))
    pages = readiness_of(leader), readiness_of(helper)
    window = await network.ask(aggregators=tuple(seat.aggregator for seat in network.seats))

    def told() -> list[str]:
        return [rows(page)[0]["wait"]["text"] for page in pages]

    assert told() == ["opens 08:00:10 UTC"] * 2
    await answer_all(network, window, [(0, 2), (3, 3), (0, 6)])
    for context in (leader, helper):
        assert gauge(context, "open_windows", state="announced") == 1.0
    await network.stop(2)
    seen = list[dict[str, Any]]()
    network.before = lambda *_: seen.extend(row["wait"] for row in rows(pages[0]))
    await network.advance_to(window.round_two_closes + 40)
    assert gauge(leader, "window_overdue_seconds", state="announced") == 40

    await network.look_after_all()

    waits = [wait["text"] for wait in seen if wait["for"] == "peer"]
    assert waits[-1].startswith("waits for gamma since ")
    assert " (unreachable); until 08:" in waits[-1]
    assert_ended(leader, window)
    assert rows(pages[0]) == []
    assert gauge(leader, "waiting_windows", **{"for": "peer"}) == 0.0


def assert_ended(context: Context, window: Window) -> None:
    assert context.windows.states[window.window_id].value == "aborted"
    assert context.windows.waits.of(window.window_id) is None


async def test_no_page_has_a_number_of_reports_or_a_device(network: Network) -> None:
    context = network.core(0).context
    readiness = readiness_of(context)
    window = await network.ask(aggregators=tuple(seat.aggregator for seat in network.seats))
    pages = readiness.pages()

    def shown() -> list[bytes]:
        return [pages[path](PageRequest({}, "")).body for path in ("/metrics", "/readyz", "/windows")]

    await network.advance_to(window.round_one_opens)
    before = shown()
    devices = await answer_all(network, window, [(0, 2)] * 5)
    network.clock._now = window.round_one_opens  # As before, but for what devices have sent.

    assert shown() == before
    text = b"".join(shown())
    for device in devices:
        for name in (device.report_id, *(request.session_id for request in device.requests)):
            assert bytes(name).hex().encode() not in text


class Place:
    """A place among several processes that a test sets."""

    is_coordinator = False


async def test_of_several_processes_the_coordinator_alone_answers_for_peers(
    network: Network,
) -> None:
    context, place = network.core(0).context, Place()
    readiness = Readiness(context, Watched(certificate_ends={}, mqtt_slots=1), place)
    await probe_store(context.store, context.host.health)

    assert wrong(readiness) == {}
    assert (gauge(context, "coordinator"), gauge(context, "peer_reachable", peer="beta")) == (0.0, None)
    place.is_coordinator = True
    assert wrong(readiness) == {"peers": "beta: not known yet; gamma: not known yet"}
    await probe_peers(context.peers, context.host.health)
    assert (gauge(context, "coordinator"), gauge(context, "peer_reachable", peer="beta")) == (1.0, 1.0)
    context.host.health.note(
        Dependency.BROKER, "no connection to broker:8883"
    )  # The slot of the connection is here now.
    assert wrong(readiness) == {"broker": "no connection to broker:8883"}
    context.host.health.forget(Dependency.BROKER)
    assert wrong(readiness) == {}


async def test_a_process_answers_for_the_slots_it_has_and_shows_which_they_are(network: Network) -> None:
    context = network.core(0).context
    readiness = Readiness(context, Watched(certificate_ends={}, mqtt_slots=3), Place())
    await probe_store(context.store, context.host.health)

    def connected() -> list[float | None]:
        return [gauge(context, "broker_slot_connected", slot=str(slot)) for slot in range(4)]

    assert wrong(readiness) == {}
    assert gauge(context, "broker_connected") is None, "others have the connections"
    assert connected() == [0.0, 0.0, 0.0, None]
    context.host.health.note(Dependency.BROKER, name="0")
    context.host.health.note(Dependency.BROKER, "no connection to broker:8883", name="2")
    assert wrong(readiness) == {"broker": "2: no connection to broker:8883"}
    assert (gauge(context, "broker_connected"), connected()) == (0.0, [1.0, 0.0, 0.0, None])
    context.host.health.forget(Dependency.BROKER, name="2")
    assert wrong(readiness) == {}
    assert gauge(context, "broker_connected") == 1.0


async def test_every_process_reads_the_deny_list_since_the_coordinator_leaves_out_who_is_on_it(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, polled = network.core(0).context, asyncio.Event()

    async def poll(_: Denials) -> None:
        polled.set()

    monkeypatch.setattr(Denials, "poll", poll)
    polling = asyncio.ensure_future(watching_work(context.host, context.store)["deny-list"]())
    try:
        async with asyncio.timeout(30):
            await polled.wait()
    finally:
        polling.cancel()
        await asyncio.wait([polling])
