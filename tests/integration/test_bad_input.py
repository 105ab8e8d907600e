"""Strangers and broken bytes at both ports of a live aggregator: refused by a status, and the server stays healthy."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount_protocol.channel.certificates import CertificateAuthority, Credential
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_protocol.limits import MAX_BATCH_BYTES
from fleetcount_protocol.messages import QuestionQuery, ReleaseQuery, WindowState
from fleetcount_protocol.wire.device import RELEASE_QUERY
from fleetcount_protocol.wire.device_columns import Upload
from fleetcount_protocol.wire.device_stream import DEVICE_MESSAGE, DeviceMessage
from fleetcount_protocol.wire.question import QUESTION_LIST_QUERY

from tests.support.deployment import Deployed
from tests.support.pem import pem_pair
from tests.support.protocol_samples import instalment
from tests.support.raw_calls import DEVICE, PEER, healthy, status_of
from tests.support.wire_messages import session_request

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

NO_ENTRY = {grpc.StatusCode.UNAVAILABLE}
"""What a client sees when the handshake fails."""


def credentials(authority: bytes, leaf: Credential | None) -> grpc.ChannelCredentials:
    if leaf is None:
        return grpc.ssl_channel_credentials(authority)
    return grpc.ssl_channel_credentials(authority, *pem_pair(leaf))


def aggregator_ca(target: Deployed) -> bytes:
    return (target.written.root / "ca" / "aggregators.crt").read_bytes()


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def repeated(golden: bytes) -> bytes:
    """Return the one part of a list with its first field once more behind it."""
    part = golden[3:]
    length = part[1]
    return part + part[: 2 + length]


def nested(depth: int) -> bytes:
    data = b""
    for _ in range(depth):
        data = field(1, data)
    return data


GOLDEN_UPLOAD = DEVICE_MESSAGE.encode(DeviceMessage(upload=Upload.of(AggregatorId("alpha"), [instalment()])))
GOLDEN_SESSIONS = DEVICE_MESSAGE.encode(DeviceMessage(requests=(session_request(),)))

BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "field number 0": lambda golden: golden + b"\x02\x00",
    "wrong wire type": lambda _: b"\x08\x01",
    "a varint of 11 bytes": lambda _: b"\x0a" + b"\x80" * 10 + b"\x01",
    "a length beyond the end": lambda golden: b"\x0a\xff\xff\x03" + golden,
    "an unknown field": lambda golden: golden + field(15, b"more"),
    "an unknown field inside": lambda golden: field(1, golden[3:] + field(15, b"more")),
    "a scalar twice": lambda golden: field(1, repeated(golden)),
    "a padded length": lambda golden: golden[:1] + bytes([golden[1], golden[2] | 0x80, 0]) + golden[3:],
    "a group": lambda golden: golden + b"\x0b\x0c",
    "nesting of 101": lambda _: nested(101),
    "a hundred thousand empty parts": lambda _: field(1, b"") * 100_000,
    "zeros": lambda _: bytes(4096),
    "ones": lambda _: b"\xff" * 4096,
    "text": lambda _: b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("data", [GOLDEN_UPLOAD, GOLDEN_SESSIONS], ids=["upload", "sessions"])
async def test_bytes_that_are_no_message_are_refused_at_the_device_port(target: Deployed, data: bytes) -> None:
    async with healthy(target), target.channel(0) as channel:
        accepted = await status_of(channel, DEVICE + "Answer", data, stream=True)
        broken = {name: spoil(data) for name, spoil in BROKEN.items()}
        broken |= {f"cut at {size}": data[:size] for size in range(1, len(data))}
        found = [await status_of(channel, DEVICE + "Answer", bad, stream=True) for bad in broken.values()]

    assert accepted is grpc.StatusCode.OK
    malformed = grpc.StatusCode.INVALID_ARGUMENT
    assert {name: code for name, code in zip(broken, found, strict=True) if code is not malformed} == {}


async def test_a_message_too_large_is_refused_before_it_is_read(target: Deployed) -> None:
    big = field(1, bytes(MAX_BATCH_BYTES + 8192))
    async with healthy(target), target.channel(0) as channel:
        found = [await status_of(channel, DEVICE + "Answer", big, stream=True) for _ in range(3)]
        compressed = await status_of(channel, DEVICE + "Answer", big, stream=True, compression=grpc.Compression.Gzip)
        metadata = await status_of(
            channel,
            DEVICE + "ListQuestions",
            QUESTION_LIST_QUERY.encode(
                QuestionQuery(aggregator_id=AggregatorId("alpha"), deployment=target.written.name)
            ),
            metadata=[("x-filler", "x" * 200_000)],
        )

    assert found == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 3
    # A bomb is measured after it is inflated.
    assert compressed is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert metadata is not grpc.StatusCode.OK


async def test_methods_that_do_not_exist_and_those_of_the_other_port_are_unimplemented(target: Deployed) -> None:
    own = target.config(1).parent / "keys"
    beta = grpc.ssl_channel_credentials(
        aggregator_ca(target), (own / "aggregator.key").read_bytes(), (own / "aggregator.crt").read_bytes()
    )
    async with healthy(target), target.channel(0) as devices, target.channel(0, beta, peer=True) as peers:
        found = [
            await status_of(devices, DEVICE + "DropTables", b""),
            await status_of(devices, PEER + "Commit", b""),
            await status_of(devices, PEER + "GetStatus", b""),
            # Not as a stream: grpc.aio says INTERNAL when the call ends before it has written its message.
            await status_of(devices, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", b""),
            await status_of(devices, "/grpc.health.v1.Health/Watch", b""),
            await status_of(peers, DEVICE + "ListQuestions", b""),
        ]

    assert found == [grpc.StatusCode.UNIMPLEMENTED] * len(found)


async def test_only_certificates_of_the_right_authority_get_in(target: Deployed) -> None:
    stranger = CertificateAuthority.create("strangers")
    device = target.written.authorities.devices.issue_device()
    ca = aggregator_ca(target)
    strangers = {
        "no certificate": credentials(ca, None),
        "a stranger's device": credentials(ca, stranger.issue_device()),
        "a stranger's aggregator": credentials(ca, stranger.issue_aggregator("beta", ["127.0.0.1"])),
    }
    query = QUESTION_LIST_QUERY.encode(
        QuestionQuery(aggregator_id=AggregatorId("alpha"), deployment=target.written.name)
    )
    found: dict[str, grpc.StatusCode] = {}
    async with healthy(target):
        for name, one in strangers.items():
            async with target.channel(0, one) as channel:
                found[name] = await status_of(channel, DEVICE + "ListQuestions", query)
            async with target.channel(0, one, peer=True) as channel:
                found[f"{name}, peer port"] = await status_of(channel, PEER + "GetStatus", b"")
        async with target.channel(0, credentials(ca, device), peer=True) as channel:
            found["a device at the peer port"] = await status_of(channel, PEER + "GetStatus", b"")
        fooled = credentials(stranger.certificate.public_bytes(Encoding.PEM), device)
        async with target.channel(0, fooled) as channel:
            found["a client that trusts others"] = await status_of(channel, DEVICE + "ListQuestions", query)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{target.written.plans[0].device_port}") as channel:
            found["plaintext"] = await status_of(channel, DEVICE + "ListQuestions", query)

    assert {name: code for name, code in found.items() if code not in NO_ENTRY} == {}


async def test_an_aggregator_may_not_lead_what_another_one_leads(target: Deployed) -> None:
    from fleetcount_aggregator.peers import PeerRefusalError
    from fleetcount_aggregator.transport.grpc_peers import GrpcPeer
    from fleetcount_protocol.ids import Digest
    from fleetcount_protocol.messages import AbortWindow, CommitQuery

    window = target.ask(4)
    keys = target.config(1).parent / "keys"
    beta = grpc.ssl_channel_credentials(
        aggregator_ca(target), (keys / "aggregator.key").read_bytes(), (keys / "aggregator.crt").read_bytes()
    )
    forged = credentials(
        aggregator_ca(target), target.written.authorities.aggregators.issue_aggregator("zeta", ["127.0.0.1"])
    )
    endpoint = f"127.0.0.1:{target.written.plans[0].peer_port}"
    refusals: list[str] = []
    async with healthy(target):
        for position in (0, 1):
            await asyncio.to_thread(target.wait_state, position, window, WindowState.ANNOUNCED)
        for own in (beta, forged):
            peer = GrpcPeer(AggregatorId("alpha"), endpoint, caller=AggregatorId("beta"), timeout_s=5, credentials=own)
            for ask in (
                lambda peer=peer: peer.abort(AbortWindow(window_id=window.window_id, reason="peer_aborted")),
                lambda peer=peer: peer.commit(CommitQuery(window_id=window.window_id, set_digest=Digest(bytes(32)))),
            ):
                with pytest.raises(PeerRefusalError) as refusal:
                    await ask()
                refusals.append(refusal.value.problem.value)
            await peer.close()
        states = [status.state for status in await target.statuses(window)]  # type: ignore[union-attr]

    assert refusals == ["not_leader"] * 4
    assert WindowState.ABORTED not in states


async def test_connections_that_say_nothing_or_nonsense_do_not_keep_others_out(target: Deployed) -> None:
    port = target.written.plans[0].device_port
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    try:
        async with healthy(target):
            for number, one in enumerate(idle):
                with contextlib.suppress(OSError):
                    one.sendall(
                        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x40\x00", os.urandom(64))[number % 3]
                    )
            await asyncio.gather(*(abandoned(target) for _ in range(20)))
    finally:
        for one in idle:
            one.close()


async def abandoned(target: Deployed) -> None:
    """Begin an upload, then leave: by cancelling, and by a deadline nobody can keep."""
    async with target.channel(0) as channel:
        call = channel.stream_stream(DEVICE + "Answer")(timeout=60)
        await call.write(GOLDEN_UPLOAD)
        call.cancel()
        code = await status_of(channel, DEVICE + "Answer", GOLDEN_SESSIONS, timeout_s=0.000001)
        # A client that is not scheduled for a while finds the answer before it looks at the clock.
        assert code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.OK)


async def test_a_question_about_a_window_that_is_not_there_is_not_found(target: Deployed) -> None:
    async with healthy(target), target.channel(0) as channel:
        unknown = await status_of(
            channel,
            DEVICE + "GetRelease",
            RELEASE_QUERY.encode(ReleaseQuery(aggregator_id=AggregatorId("alpha"), window_id=WindowId(bytes(32)))),
        )
        short = await status_of(channel, DEVICE + "GetRelease", field(1, bytes(31)))

    assert unknown is grpc.StatusCode.NOT_FOUND
    assert short is grpc.StatusCode.INVALID_ARGUMENT
