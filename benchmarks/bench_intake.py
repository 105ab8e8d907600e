"""Intake over loopback gRPC with mutual TLS: batches on long streams against one report a call of the same bytes.

The aggregator is the real program in a process of its own: strict decoding, sessions, opened seals, append and
fdatasync, and a receipt for every report, each of which is verified. The peer is a bare echo server, which does none of
that. Decides nothing.
"""

import asyncio
import contextlib
import json
import math
import multiprocessing
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.certificates import Credential, key_digest, key_pem, parse_certificate
from fleetcount_protocol.channel.session import (
    DeviceIdentity,
    OpeningSession,
    SessionSecret,
    check_receipt,
    new_session,
    seal_instalment,
)
from fleetcount_protocol.ids import AggregatorId, Digest, new_report_id
from fleetcount_protocol.limits import MAX_SESSIONS_PER_REQUEST, SESSION_EXPIRY_STEP_S
from fleetcount_protocol.messages import Instalment, Receipt, ReleaseQuery, SessionAccepted
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.window import Window
from fleetcount_protocol.wire.device import (
    RELEASE_QUERY,
)
from fleetcount_protocol.wire.device_columns import Upload, batches
from fleetcount_protocol.wire.device_stream import AGGREGATOR_MESSAGE, DEVICE_MESSAGE, DeviceMessage
from fleetcount_simulator.network.deployments import Deployment, local_plans, write_aggregators
from fleetcount_simulator.network.parties import submit_question
from one_window import SEED, draft, once
from rows import Row, quick, report, smoke

HELPER = 1
SEED_BYTES = 32
"""A helper's part of round one: small, as every part of a helper is."""
STREAMS = 4
UNANSWERED = 4
START_S = 60
COMPILING_BY_S = 7
COMPILED_BY_S = 240
_SERVICE = "/fleetcount_protocol.v1.DeviceService/"
Pair = tuple[bytes, bytes]


@dataclass(frozen=True)
class Sizes:
    """How much is measured: devices, questions that each of them answers, and calls of the peer."""

    devices: int
    questions: int
    calls: int


def sizes() -> Sizes:
    """Return what this kind of run measures."""
    if smoke():
        return Sizes(devices=64, questions=2, calls=200)
    return (
        Sizes(devices=1_000, questions=32, calls=1_000) if quick() else Sizes(devices=5_000, questions=32, calls=3_000)
    )


def pem_pair(credential: Credential) -> Pair:
    """Return (private key, certificate), PEM."""
    return key_pem(credential.private_key), credential.certificate.public_bytes(Encoding.PEM)


def family(process: int) -> Iterator[tuple[int, list[str]]]:
    """Yield a process and its living children: the number, and the fields of /proc's `stat` behind the name."""
    numbers = [process]
    for number in numbers:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for listed in Path(f"/proc/{number}/task").glob("*/children"):
                numbers += map(int, listed.read_text().split())
            yield number, Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()


def cpu_s(process: int) -> float:
    """Return the CPU seconds of a process, of its living children and of those that have ended, so far."""
    ticks = sum(sum(map(int, fields[11:15])) for _, fields in family(process))
    return ticks / os.sysconf("SC_CLK_TCK")


async def settled(processes: Sequence[int], started: float) -> None:
    """Wait until no aggregator compiles its verifier, which it does once, at low priority, soon after its start."""
    await asyncio.sleep(max(0.0, started + COMPILING_BY_S - time.monotonic()))
    async with asyncio.timeout(COMPILED_BY_S):
        # Nothing but its absence tells the end of a process that is another's child.
        while any(int(fields[16]) > os.nice(0) for one in processes for _, fields in family(one)):  # noqa: ASYNC110 - as above.
            await asyncio.sleep(0.1)


# The peer: one report a call, echoed.


def echo(pipe: Connection, pair: Pair, authority: bytes) -> None:
    """Run the echo server in its own process until that is killed; say its port."""

    async def answer(request: bytes, context: Any) -> bytes:
        return request

    async def run() -> None:
        server = grpc.aio.server()
        methods = {"Echo": grpc.unary_unary_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Peer", methods),))
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair], authority, True))
        await server.start()
        pipe.send(port)
        await server.wait_for_termination()

    asyncio.run(run())


@contextlib.contextmanager
def echo_server(deployment: Deployment) -> Iterator[tuple[int, int]]:
    """Start the echo server; give its port and process id."""
    authority = deployment.authorities.aggregators
    pair = pem_pair(authority.issue_aggregator("peer", ["127.0.0.1"]))
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=echo, args=(its, pair, device_authority(deployment)), daemon=True)
    process.start()
    its.close()  # So that its death is an end of file here.
    assert process.pid is not None
    try:
        if not ours.poll(START_S):
            raise SystemExit(f"the echo server did not listen within {START_S} s")
        yield ours.recv(), process.pid
    finally:
        process.kill()
        process.join()


@dataclass(frozen=True)
class Rate:
    """Reports a second by the clock, and CPU seconds a report of both sides, which other programs disturb less."""

    per_second: float
    cpu: float


class Stopwatch:
    """Takes the time and the CPU of this process and of a server's."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._cpu = time.process_time() + cpu_s(server)
        self._started = time.perf_counter()

    def stop(self, reports: int) -> Rate:
        """Return the rate since the start."""
        seconds = time.perf_counter() - self._started
        return Rate(reports / seconds, (time.process_time() + cpu_s(self._server) - self._cpu) / reports)


async def call_one_by_one(
    server: tuple[int, int], credentials: grpc.ChannelCredentials, data: bytes, calls: int, at_once: int
) -> Rate:
    """Return the rate of calls with one report each, `at_once` of them under way."""
    port, process = server
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        method: Any = channel.unary_unary("/bench.Peer/Echo")

        async def work(count: int) -> None:
            for _ in range(count):
                await method(data)

        await work(50)
        scheduler = Stopwatch(process)
        await asyncio.gather(*(work(calls // at_once) for _ in range(at_once)))
        return scheduler.stop(calls // at_once * at_once)


# Ours: the aggregators.


def deploy(directory: Path) -> Deployment:
    """Write a deployment of two aggregators."""
    (directory / "keys").mkdir()
    return write_aggregators(directory / "keys", "bench", local_plans(2))


def device_authority(deployment: Deployment) -> bytes:
    """Return the certificate of the devices' authority, PEM."""
    return deployment.authorities.devices.certificate.public_bytes(Encoding.PEM)


@contextlib.contextmanager
def aggregators(deployment: Deployment) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run both aggregators until the end."""
    with (deployment.root / "log").open("wb") as log:
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "fleetcount", "aggregator", "serve", "--config", deployment.config_of(position)],
                stdout=subprocess.PIPE,
                stderr=log,
            )
            for position in range(2)
        ]
    try:
        for one in running:
            assert one.stdout is not None
            json.loads(one.stdout.readline())
        yield running
    finally:
        for one in running:
            one.terminate()
        for one in running:
            one.communicate(timeout=30)


def ask(deployment: Deployment, number: int) -> Window:
    """Make, sign and submit one question over 100 values; return the only window."""
    places = Categories(names=tuple(f"place {one}" for one in range(100)))
    question = draft(
        deployment.aggregators,
        places,
        once(math.ceil(time.time()) + 3, 3_600, 3_600, expiry_s=2_800),
        name=f"question {number}",
        signal=f"Vehicle.Bench{number}",
    )
    return window_at(submit_question(deployment, question, SEED).question, 0)


async def served(channel: grpc.aio.Channel, aggregator: AggregatorId, windows: Sequence[Window]) -> None:
    """Wait until an aggregator knows every window and takes reports for it."""
    method: Any = channel.unary_unary(_SERVICE + "GetRelease")
    async with asyncio.timeout(START_S):
        for window in windows:
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await method(
                        RELEASE_QUERY.encode(ReleaseQuery(aggregator_id=aggregator, window_id=window.window_id))
                    )
                    break
                await asyncio.sleep(0.1)
    await asyncio.sleep(max(0.0, windows[-1].round_one_opens - time.time() + 0.1))


def channel_to_helper(deployment: Deployment, credentials: grpc.ChannelCredentials) -> grpc.aio.Channel:
    """Return a channel to the helper, as a device or a relay has one."""
    plan = deployment.plans[HELPER]
    options = [("grpc.ssl_target_name_override", plan.aggregator_id), ("grpc.max_receive_message_length", 4 << 20)]
    return grpc.aio.secure_channel(f"127.0.0.1:{plan.device_port}", credentials, options=options)


def make_sessions(deployment: Deployment, count: int) -> list[OpeningSession]:
    """Return a session to open with the helper for each of `count` new devices."""
    aggregator = deployment.aggregators[HELPER]
    expiry = int(time.time()) // SESSION_EXPIRY_STEP_S * SESSION_EXPIRY_STEP_S + 86_400
    return [
        new_session(
            aggregator,
            aggregator.hpke_keys[0],
            DeviceIdentity.generate(deployment.authorities.devices),
            expiry,
            SystemRandom(),
        )[1]
        for _ in range(count)
    ]


async def open_sessions(
    channel: grpc.aio.Channel, waiting: Sequence[OpeningSession]
) -> tuple[float, list[SessionSecret]]:
    """Open sessions, eight full calls at once; return how many a second, and what they are."""
    method: Any = channel.unary_unary(_SERVICE + "Answer")
    groups = [
        waiting[start : start + MAX_SESSIONS_PER_REQUEST] for start in range(0, len(waiting), MAX_SESSIONS_PER_REQUEST)
    ]
    free = asyncio.Semaphore(8)

    async def call(group: Sequence[OpeningSession]) -> bytes:
        async with free:
            answer: bytes = await method(
                DEVICE_MESSAGE.encode(DeviceMessage(requests=tuple(one.request for one in group)))
            )
            return answer

    started = time.perf_counter()
    answers = await asyncio.gather(*map(call, groups))
    rate = len(waiting) / (time.perf_counter() - started)
    found: list[SessionSecret] = []
    replies = [reply for answer in answers for reply in AGGREGATOR_MESSAGE.decode(answer).replies]
    for opening, reply in zip(waiting, replies, strict=True):
        assert isinstance(reply, SessionAccepted), reply
        found.append(opening.finish(reply))
    return rate, found


def sealed_reports(window: Window, sessions: Sequence[SessionSecret], devices: Sequence[Digest]) -> list[Instalment]:
    """Return one small part of each device for one window."""
    return [
        seal_instalment(
            secret.window_key,
            window.window_id,
            new_report_id(window.window_id, device, SystemRandom()),
            1,
            HELPER,
            b"",
            secrets.token_bytes(SEED_BYTES),
        )
        for secret, device in zip(sessions, devices, strict=True)
    ]


async def upload(channel: grpc.aio.Channel, messages: Sequence[bytes]) -> list[bytes]:
    """Send messages on one stream, a few of them unanswered at once; return the answers."""
    call: Any = channel.stream_stream(_SERVICE + "Answer")()
    free = asyncio.Semaphore(UNANSWERED)

    async def write() -> None:
        for message in messages:
            await free.acquire()
            await call.write(message)
        await call.done_writing()

    writer = asyncio.create_task(write())
    answers: list[bytes] = []
    while isinstance(answer := await call.read(), bytes):
        answers.append(answer)
        free.release()
    await writer
    return answers


async def upload_all(
    channel: grpc.aio.Channel,
    aggregator: AggregatorId,
    reports: Sequence[Instalment],
    owners: Sequence[SessionSecret],
    server: int,
) -> Rate:
    """Upload every report over several streams, verify every receipt afterwards, and return the rate."""
    streams = [reports[start::STREAMS] for start in range(STREAMS)]
    encoded = [
        [DEVICE_MESSAGE.encode(DeviceMessage(upload=one)) for one in batches(aggregator, stream)] for stream in streams
    ]
    scheduler = Stopwatch(server)
    answered = await asyncio.gather(*(upload(channel, messages) for messages in encoded))
    rate = scheduler.stop(len(reports))
    secret_of = {secret.session_id: secret for secret in owners}
    for stream, answers in zip(streams, answered, strict=True):
        uploads = [AGGREGATOR_MESSAGE.decode(answer).upload for answer in answers]
        replies = [reply for upload in uploads if upload is not None for reply in upload.replies()]
        for instalment, reply in zip(stream, replies, strict=True):
            assert isinstance(reply, Receipt), reply
            check_receipt(secret_of[instalment.session_id], instalment, reply)
    return rate


async def measure(deployment: Deployment, many: Sizes, running: Sequence[int], started: float) -> None:
    """Print the rows of one deployment that runs."""
    helper, aggregator = running[HELPER], AggregatorId(deployment.plans[HELPER].aggregator_id)
    device = pem_pair(deployment.authorities.devices.issue_device())
    authority = deployment.authorities.aggregators.certificate.public_bytes(Encoding.PEM)
    credentials = grpc.ssl_channel_credentials(authority, *device)
    windows = [ask(deployment, number) for number in range(many.questions)]
    waiting = make_sessions(deployment, many.devices)
    owners = [key_digest(parse_certificate(one.request.certificate)) for one in waiting]
    async with channel_to_helper(deployment, credentials) as channel:
        opened, sessions = await open_sessions(channel, waiting)
        reports = [one for window in windows for one in sealed_reports(window, sessions, owners)]
        single = DEVICE_MESSAGE.encode(DeviceMessage(upload=Upload.of(aggregator, reports[:1])))
        await settled(running, started)
        with echo_server(deployment) as server:
            alone = await call_one_by_one(server, credentials, single, many.calls, 1)
            crowd = await call_one_by_one(server, credentials, single, 4 * many.calls, 32)
        await served(channel, aggregator, windows)
        ours = await upload_all(channel, aggregator, reports, sessions, helper)
    note = f"{len(reports):,} reports of {len(single)} B on {STREAMS} streams, every receipt verified"
    print_rows(ours, alone, crowd, note)
    report(
        Row(path="intake: sessions opened, durable", ours=opened, unit="/s", note=f"{len(waiting):,} in calls of 64")
    )


def print_rows(ours: Rate, alone: Rate, crowd: Rate, note: str) -> None:
    """Print the rate beside both peers, and the CPU of both sides."""
    report(
        Row(
            path="intake over gRPC, mutual TLS, durable, receipts",
            ours=ours.per_second,
            unit="/s",
            peer="one report a call, one after the other",
            peer_value=alone.per_second,
            ratio=ours.per_second / alone.per_second,
            must=15,
            aim=40,
            note=note,
        )
    )
    report(
        Row(
            path="intake over gRPC, mutual TLS, durable, receipts",
            ours=ours.per_second,
            unit="/s",
            peer="one report a call, 32 under way",
            peer_value=crowd.per_second,
            ratio=ours.per_second / crowd.per_second,
            note=note,
        )
    )
    for name, peer in (("one after the other", alone), ("32 under way", crowd)):
        report(
            Row(
                path="intake: CPU of both sides a report",
                ours=1e6 * ours.cpu,
                unit="us",
                peer=f"one report a call, {name}",
                peer_value=1e6 * peer.cpu,
                ratio=peer.cpu / ours.cpu,
                note=note,
            )
        )


def main() -> None:
    """Run the aggregators and print the rows."""
    with tempfile.TemporaryDirectory() as directory:
        deployment = deploy(Path(directory))
        with aggregators(deployment) as running:
            asyncio.run(measure(deployment, sizes(), [one.pid for one in running], time.monotonic()))


if __name__ == "__main__":
    main()
