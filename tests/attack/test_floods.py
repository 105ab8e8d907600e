"""Strangers, devices, relays and peers who take connections, calls, memory and public-key work for themselves."""

import asyncio
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from fleetcount_protocol.channel.certificates import Credential, Purpose
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.messages import SealSet, SessionAccepted, WindowState
from fleetcount_protocol.wire.peer import split_seal_set
from fleetcount_transport.admission.admission import AdmissionTable

from tests.attack.suite import FIGURE
from tests.attack.test_devices import asking
from tests.support import floods
from tests.support.deployment import Deployed, LiveDeployment
from tests.support.fleet import identity_of, offer_of, transport_of
from tests.support.processes import pace
from tests.support.raw_calls import DEVICE, PEER, healthy

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

Report = Callable[[str, str], None]
STRANGERS = 1500


async def session_s(target: Deployed, timeout_s: float) -> float:
    """Return how long a new device takes to connect to the first aggregator and open a session."""
    device = identity_of(target)
    request = asking(target, device)
    transport = transport_of(target, device, "grpc", timeout_s=timeout_s)
    begun = time.monotonic()
    try:
        [answer] = await transport.open_sessions(target.written.aggregators[0], [request])
    finally:
        await transport.close()
    assert isinstance(answer, SessionAccepted), answer
    return time.monotonic() - begun


async def sessions_s(target: Deployed, count: int, timeout_s: float = 5.0) -> list[float]:
    return [await session_s(target, timeout_s * pace()) for _ in range(count)]


def certified(target: Deployed, purpose: Purpose, name: str) -> Credential:
    return target.written.authorities.aggregators.issue_new(purpose, name, ["127.0.0.1"])


@pytest.mark.parametrize("purpose", [Purpose.RELAY, Purpose.AGGREGATOR])
async def test_calls_without_a_message_at_the_peer_port_keep_no_peer_out(
    target: Deployed, purpose: Purpose, record_property: Report
) -> None:
    stranger = certified(target, purpose, "stranger")
    async with healthy(target):
        with floods.calls(target, 1, [stranger], PEER + "InstallQuestion", None, 70, peer=True):
            begun = time.monotonic()
            window = target.ask(4, lead_s=20.0)
            await offer_of(target, window)
            taken = time.monotonic() - begun
            target.wait_state(1, window, WindowState.ANNOUNCED)
    record_property(FIGURE, f"{purpose.label}: a question is installed in {taken:.1f} s under 70 held calls")


async def test_a_stranger_at_the_peer_port_is_told_before_it_has_sent_anything(target: Deployed) -> None:
    for purpose, name in ((Purpose.RELAY, "relay-9"), (Purpose.RELAY, "alpha"), (Purpose.AGGREGATOR, "stranger")):
        key, certificate = floods.pem_pair(certified(target, purpose, name))
        authorities = (target.written.root / "ca" / "aggregators.crt").read_bytes()
        credentials = grpc.ssl_channel_credentials(authorities, key, certificate)
        async with target.channel(1, credentials, peer=True) as channel, asyncio.timeout(30):
            call = channel.stream_stream(PEER + "InstallQuestion")()
            assert await call.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_bad_signatures_of_one_device_delay_no_session_of_another(
    target: Deployed, record_property: Report
) -> None:
    hostile = identity_of(target)
    message = floods.bad_requests(target, 0, hostile)
    async with healthy(target):
        await sessions_s(target, 1)
        idle = await sessions_s(target, 8)
        before = target.children[0].peak_mib
        with floods.calls(target, 0, [hostile], DEVICE + "Answer", message, 200):
            flooded = await sessions_s(target, 12)
        peak = target.children[0].peak_mib
    # Behind twelve thousand signatures it would wait for seconds, of a machine on which one alone takes milliseconds.
    assert statistics.median(flooded) < max(1.0 * pace(), 20 * statistics.median(idle))
    assert peak < max(512, before + 64)
    record_property(
        FIGURE,
        f"session {1000 * statistics.median(idle):.0f} ms alone, {1000 * statistics.median(flooded):.0f} ms (longest"
        f" {1000 * max(flooded):.0f} ms) under 200 calls of 64 bad signatures; peak {peak:.0f} MiB",
    )


async def test_who_fails_too_often_is_refused_unread_with_a_hint_and_served_again_later(target: Deployed) -> None:
    hostile = identity_of(target)
    message = floods.bad_requests(target, 0, hostile)
    key, certificate = floods.pem_pair(hostile)  # type: ignore[arg-type] # It has a key and a certificate.
    authorities = (target.written.root / "ca" / "aggregators.crt").read_bytes()
    credentials = grpc.ssl_channel_credentials(authorities, key, certificate)
    async with healthy(target), target.channel(0, credentials) as channel:
        for _ in range(AdmissionTable().faults_each):  # Nobody knows it, so one request of a call is judged.
            await channel.unary_unary(DEVICE + "Answer")(message, timeout=10 * pace())
        call = channel.stream_stream(DEVICE + "Answer")()
        async with asyncio.timeout(30):
            assert (await call.code(), await call.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
        hint = dict(await call.trailing_metadata())["fleetcount-retry-after-ms"]
    assert 0 < int(hint) <= 60_000


async def test_a_set_of_a_window_that_is_not_there_is_refused_at_its_first_chunk(
    target: Deployed, record_property: Report
) -> None:
    leader = certified(target, Purpose.AGGREGATOR, "alpha")
    key, certificate = floods.pem_pair(leader)
    authorities = (target.written.root / "ca" / "aggregators.crt").read_bytes()
    ids = b"".join(number.to_bytes(16) for number in range(3 * 16_384))
    named = SealSet(window_id=WindowId(bytes(32)), leaf_digests=bytes(256 * 32), accepted=ids)
    chunks = list(split_seal_set(named))
    async with (
        healthy(target) as grown,
        target.channel(1, grpc.ssl_channel_credentials(authorities, key, certificate), peer=True) as channel,
    ):
        streams = [channel.stream_unary(PEER + "SealSet")() for _ in range(4)]
        for call in streams:
            await call.write(chunks[0].SerializeToString())
        async with asyncio.timeout(10 * pace()):
            codes = [(await call.code(), await call.details()) for call in streams]
        memory = grown()
    assert codes == [(grpc.StatusCode.NOT_FOUND, "unknown_window")] * 4
    record_property(FIGURE, f"4 streams ended at their first chunk; memory +{memory:.0f} MiB")


@pytest.mark.nightly
async def test_idle_connections_of_strangers_use_up_no_descriptor_that_is_needed(
    tmp_path: Path, record_property: Report
) -> None:
    """At a hard limit of 1,024 open files, which is less than there are strangers."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < STRANGERS + 200:
        pytest.skip(f"needs a hard limit of {STRANGERS + 200} open files for the strangers themselves")
    deployment = LiveDeployment(tmp_path / "d", 2, name="few")
    try:
        for position in range(2):
            deployment.start(position)
            # Before its first import is over: it raises its own limit as far as this.
            resource.prlimit(deployment.children[position].pid, resource.RLIMIT_NOFILE, (1024, 1024))
        deployment.wait_ready()
        idle = await sessions_s(deployment, 4)
        port = deployment.written.plans[0].device_port
        with floods.sockets(tmp_path, port, STRANGERS):
            window = deployment.ask(4, lead_s=30.0)
            flooded = await sessions_s(deployment, 8)
            await offer_of(deployment, window)
            deployment.wait_state(1, window, WindowState.ANNOUNCED)
        assert deployment.troubles() == []
        assert not [one for one in deployment.log_records(0) if one.get("event") == "store_failed"]
    finally:
        for child in deployment.children:
            child.reap()
    record_property(
        FIGURE,
        f"{STRANGERS} idle connections at 1,024 descriptors: 8 of 8 sessions, a question installed;"
        f" {1000 * statistics.median(idle):.0f} ms a session alone, {1000 * statistics.median(flooded):.0f} ms then",
    )
