"""Devices, and holders of certificates that are none, who open sessions and send parts that are not theirs to send."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import grpc
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from fleetcount_client.mqtt_transport import MqttTransport
from fleetcount_client.transport import Transport, Unreachable
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel import certificates
from fleetcount_protocol.channel.certificates import Purpose
from fleetcount_protocol.channel.session import DeviceIdentity, new_session, seal_instalment
from fleetcount_protocol.channel.user_names import key_name
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import ReportId, UserName
from fleetcount_protocol.messages import Refusal, SessionRefused, SessionReply, SessionRequest
from fleetcount_protocol.window.window import Window

from tests.attack.suite import FIGURE
from tests.support.cheats import Cheat, unit
from tests.support.deployment import Deployed
from tests.support.expiries import on_the_hour
from tests.support.fleet import answered, identity_of, transport_of
from tests.support.raw_calls import DEVICE, healthy, status_of
from tests.support.twins import twin_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

VALUES = 4
HONEST = (unit(VALUES + 1, 0), unit(VALUES + 1, 2))
SESSIONS = 16
"""Sessions a device may have at once at one aggregator."""
DAY_S = 86_400
KINDS = ("grpc", "mqtt")
Report = Callable[[str, str], None]


@pytest.fixture(scope="module")
def window(pair: Deployed) -> Window:
    """A window whose round one stays open for as long as these tests may take."""
    return pair.ask(VALUES, lead_s=1.0, windows_s=(60.0, 1.0))


def reasons(answers: Sequence[object]) -> list[RejectReason | None]:
    """Return why each was refused, None for what was taken."""
    return [answer.reason if isinstance(answer, Refusal | SessionRefused) else None for answer in answers]


def asking(
    pair: Deployed, device: DeviceIdentity, life_s: float = DAY_S, position: int = 0, expiry: int = 0
) -> SessionRequest:
    """Return a request for a session with one aggregator, as this device would make it."""
    aggregator = pair.written.aggregators[position]
    expiry = expiry or on_the_hour(time.time() + life_s)
    return new_session(aggregator, aggregator.hpke_keys[0], device, expiry, SystemRandom())[0]


async def ask(
    pair: Deployed, kind: str, caller: DeviceIdentity, requests: Sequence[SessionRequest]
) -> list[SessionReply]:
    """Send requests one by one to the first aggregator over the connection of `caller`; return the answers.

    The broker of these tests knows no users, so that by MQTT each comes under the name that its certificate has a right
    to: under another one it is refused for that alone.
    """
    names = [key_name(certificates.parse_certificate(one.certificate)) for one in requests]
    place = {"deployment": pair.written.name, "broker": pair.written.mqtt_broker}
    transports: list[Transport] = [transport_of(pair, caller, kind)] * len(requests)
    if kind == "mqtt":
        transports = [MqttTransport(**place, user=partial(UserName, name)) for name in names]
    aggregator, asked = pair.written.aggregators[0], list(zip(transports, requests, strict=True))
    try:
        if kind == "mqtt":
            return [await answered(transport, aggregator, one) for transport, one in asked]
        return [(await transport.open_sessions(aggregator, [one]))[0] for transport, one in asked]
    finally:
        for transport in transports:
            await transport.close()


async def test_a_request_under_another_user_s_name_is_refused(pair: Deployed) -> None:
    victim, thief = identity_of(pair), identity_of(pair)
    transport = transport_of(pair, thief, "mqtt")
    answer = await answered(transport, pair.written.aggregators[0], asking(pair, victim))
    await transport.close()

    assert reasons([answer]) == [RejectReason.BAD_CERTIFICATE]


async def opens(moment: int) -> None:
    """Wait until a window opens."""
    await asyncio.sleep(max(0.0, moment + 0.05 - time.time()))


async def test_round_two_of_another_device_for_a_victim_s_round_one_is_refused(pair: Deployed) -> None:
    own = pair.ask(VALUES, lead_s=1.0, windows_s=(1.5, 20.0))
    victim, thief = Cheat(pair, own, "grpc"), Cheat(pair, own, "grpc")
    await asyncio.gather(victim.open_sessions(), thief.open_sessions())
    await opens(own.round_one_opens)
    assert reasons(await victim.first(*HONEST)) == [None, None]
    await opens(own.round_one_closes)

    thief.nonce, thief.rand = victim.nonce, victim.rand
    stolen = await thief.second(*HONEST)
    # In flight, the public share is exchanged for another one.
    public_share, parts = victim.shares(*HONEST)
    exchanged = victim.changed(
        victim.seal(2, public_share, victim.split(parts)[1]), public_share=bytes(len(public_share))
    )
    in_flight = await victim.send(exchanged)
    honest = await victim.second(*HONEST)
    await asyncio.gather(victim.transport.close(), thief.transport.close())

    assert reasons(stolen) == [RejectReason.MALFORMED] * 2
    assert reasons(in_flight) == [RejectReason.BAD_SEAL] * 2
    assert reasons(honest) == [None, None]


async def test_a_part_sealed_for_another_position_is_refused(pair: Deployed, window: Window) -> None:
    cheat = Cheat(pair, window, "grpc")
    await cheat.open_sessions()
    first, _ = cheat.split(cheat.shares(*HONEST)[1])
    await opens(window.round_one_opens)
    turned = [
        seal_instalment(secret.window_key, window.window_id, ReportId(cheat.nonce), 1, 1 - position, b"", part)
        for position, (secret, part) in enumerate(zip(cheat.secrets, first, strict=True))
    ]
    answers = await cheat.send(turned)
    exchanged = await cheat.send(cheat.seal(1, b"", first)[::-1])
    await cheat.transport.close()

    assert reasons(answers) == [RejectReason.BAD_SEAL] * 2
    assert reasons(exchanged) == [RejectReason.MALFORMED] * 2


@pytest.mark.parametrize("kind", KINDS)
async def test_replayed_requests_take_no_sessions_from_anybody(pair: Deployed, kind: str) -> None:
    victim, thief = identity_of(pair), identity_of(pair)
    requests = [asking(pair, victim) for _ in range(SESSIONS)]
    seen = requests[:1]

    first = await ask(pair, kind, victim, seen)
    replayed = await ask(pair, kind, thief, seen * (2 * SESSIONS))
    others = await ask(pair, kind, victim, requests[1:])
    thief_s_own = await ask(pair, kind, thief, [asking(pair, thief) for _ in range(SESSIONS)])

    assert set(replayed) == set(first)
    assert reasons(first + others + thief_s_own) == [None] * 2 * SESSIONS


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_under_a_foreign_signature_is_refused(pair: Deployed, kind: str) -> None:
    victim, thief = identity_of(pair), identity_of(pair)
    request = asking(pair, victim)
    forged = replace(request, signature=thief.private_key.sign(request.signed_bytes, ec.ECDSA(hashes.SHA256())))
    renamed = replace(request, credential=b"\x01" + certificates.certificate_der(thief.certificate))

    answers = await ask(pair, kind, thief, [forged, renamed])

    assert reasons(answers) == [RejectReason.BAD_SIGNATURE] * 2


def other_certificates(pair: Deployed) -> dict[str, DeviceIdentity]:
    """Return identities under certificates of the deployment's own authorities that are no device's."""
    devices, aggregators = pair.written.authorities.devices, pair.written.authorities.aggregators
    issued = {f"a {one.label} of the devices' authority": devices.issue_new(one, "somebody") for one in Purpose}
    issued |= {
        f"a {one.label} of the aggregators' authority": aggregators.issue_new(one, "somebody") for one in Purpose
    }
    del issued["a device of the devices' authority"]
    found = {
        name: DeviceIdentity(certificate=one.certificate, private_key=one.private_key) for name, one in issued.items()
    }
    found["the authority"] = DeviceIdentity(certificate=devices.certificate, private_key=devices.private_key)
    return found


async def test_only_a_device_s_certificate_opens_a_session_whoever_brings_the_request(
    pair: Deployed, record_property: Report
) -> None:
    others = other_certificates(pair)
    requests = [asking(pair, one) for one in others.values()]

    # Each brought by somebody else: a few that do not hold shut their bringer out.
    carried = {kind: [(await ask(pair, kind, identity_of(pair), [one]))[0] for one in requests] for kind in KINDS}
    own: dict[str, object] = {}
    for name, identity in others.items():
        try:
            [own[name]] = reasons(await ask(pair, "grpc", identity, [asking(pair, identity)]))
        except Unreachable:
            own[name] = "no call"  # In which words depends on whether gRPC still hears why the other side hung up.

    assert {kind: set(reasons(answers)) for kind, answers in carried.items()} == {
        kind: {RejectReason.BAD_CERTIFICATE} for kind in KINDS
    }
    refusals = ("no call", RejectReason.BAD_CERTIFICATE)
    assert {name: said for name, said in own.items() if said not in refusals} == {}
    record_property(FIGURE, f"{len(others)} certificates refused, by 3 ways each")


@pytest.mark.parametrize("kind", KINDS)
async def test_the_seventeenth_session_is_refused_also_under_a_second_certificate_for_the_key(
    pair: Deployed, kind: str
) -> None:
    device, other = identity_of(pair), identity_of(pair)
    twin = DeviceIdentity(certificate=twin_of(device.certificate), private_key=device.private_key)
    half = SESSIONS // 2

    first = await ask(pair, kind, device, [asking(pair, device) for _ in range(half)])
    second = await ask(pair, kind, twin, [asking(pair, twin) for _ in range(half)])
    beyond = await ask(pair, kind, twin, [asking(pair, twin), asking(pair, device)])
    others = await ask(pair, kind, other, [asking(pair, other)])

    assert reasons(first + second + others) == [None] * (SESSIONS + 1)
    assert reasons(beyond) == [RejectReason.OVER_QUOTA] * 2


def short_lived(pair: Deployed, life_s: float) -> DeviceIdentity:
    """Return a device whose certificate ends `life_s` seconds from now."""
    authority, key = pair.written.authorities.devices, ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    begins = authority.issue_device(now=now).certificate.not_valid_before_utc
    lasts = now - begins + timedelta(seconds=life_s)
    certificate = authority.issue(Purpose.DEVICE, key.public_key(), "device-short", validity=lasts, now=now)
    return DeviceIdentity(certificate=certificate, private_key=key)


async def test_no_session_outlives_its_certificate_and_none_opens_after_its_end(
    pair: Deployed, record_property: Report
) -> None:
    device, carrier = short_lived(pair, 4.0), identity_of(pair)
    end = int(device.certificate.not_valid_after_utc.timestamp())
    hour = asking(pair, device, end - time.time() + 1)
    odd = asking(pair, device, expiry=end)

    long_lives = await ask(pair, "mqtt", carrier, [asking(pair, device, 99 * DAY_S), hour])
    off_the_hour = await ask(pair, "mqtt", carrier, [odd])
    await opens(end)
    after = [(await ask(pair, kind, carrier, [asking(pair, device)]))[0] for kind in KINDS]
    with pytest.raises(Unreachable, match=r"unavailable|permission_denied"):
        await ask(pair, "grpc", device, [asking(pair, device)])

    assert reasons(long_lives) == [RejectReason.BAD_CERTIFICATE] * 2
    assert reasons(off_the_hour) == [RejectReason.MALFORMED]
    assert reasons(after) == [RejectReason.BAD_CERTIFICATE] * 2
    record_property(FIGURE, "sessions that would outlive the certificate: 0 of 2")


async def test_bombs_of_zeros_are_refused_and_cost_little_memory(target: Deployed, record_property: Report) -> None:
    size = 64 << 20
    async with healthy(target) as growth, target.channel(0) as channel:
        found = [
            await status_of(channel, DEVICE + method, bytes(size), stream=stream, compression=grpc.Compression.Gzip)
            for method, stream in (("Answer", True), ("ListQuestions", False))
        ]
        grown = growth()

    # The client may be told that its call is over before it has written all of it.
    assert set(found) <= {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL}
    record_property(FIGURE, f"2 of 2 refused; memory {grown:+.0f} MiB for {size >> 20} MiB of zeros each")
