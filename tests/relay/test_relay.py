"""A relay carries what it cannot read: many devices in large batches, their own receipts back, nothing kept."""

import asyncio
import contextlib
import json
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.transport.grpc_peers import GrpcPeer
from fleetcount_aggregator.transport.grpc_server import PeerShell, certified_peer, peer_server
from fleetcount_client.grpc_transport import GrpcTransport
from fleetcount_client.transport import Unreachable
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.certificates import Purpose, save_certificates, save_private_key
from fleetcount_protocol.channel.session import check_receipt, new_session
from fleetcount_protocol.errors import DecodeError, PeerError, PeerProblem, RejectReason, SignatureError
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_protocol.messages import Instalment, QuestionQuery, Receipt, Refusal
from fleetcount_protocol.window.window import Window
from fleetcount_protocol.wire.device_columns import (
    InstalmentColumns,
    InstalmentReplyColumns,
    Upload,
)
from fleetcount_protocol.wire.device_stream import AGGREGATOR_MESSAGE, DEVICE_MESSAGE, DeviceMessage
from fleetcount_protocol.wire.question import QUESTION_LIST_QUERY
from fleetcount_relay.app import _load_denials, _load_tls
from fleetcount_relay.config import load_relay_config
from fleetcount_relay.forwarding import Forwarder
from fleetcount_relay.metrics import RelayMetrics
from fleetcount_simulator.network.ports import free_ports
from fleetcount_transport.admission.admission import AdmissionTable
from fleetcount_transport.toml_table import ConfigError

from tests.support.aggregators import START, TestDevice, device_authority, device_identity
from tests.support.denials import write_list
from tests.support.expiries import on_the_hour
from tests.support.nightly import NIGHTLY
from tests.support.pem import pem_pair
from tests.support.processes import ChildProcess, wait_until
from tests.support.relays import (
    QUICK,
    RelayedNetwork,
    open_sessions,
    relay_files,
    relayed,
    running_relay,
)


def counted(metrics: RelayMetrics, name: str, aggregator: str = "", reason: str = "") -> float:
    labels = {"aggregator": aggregator} if aggregator else {"reason": reason} if reason else {}
    found = metrics.registry.get_sample_value(name, labels)
    return 0.0 if found is None else found


async def receipted(transport: GrpcTransport, window: Window, device: TestDevice, parts: Sequence[Instalment]) -> None:
    """Send a device's instalments to both aggregators and check the receipts as a courier does."""
    for position, part in enumerate(parts):
        [answer] = await transport.upload(window, position, [part])
        assert isinstance(answer, Receipt), answer
        check_receipt(device.secrets[position], part, answer)


async def stored(here: RelayedNetwork, window: Window, devices: Sequence[TestDevice], round_number: int) -> list[int]:
    """Return how many of the devices' instalments each aggregator holds."""
    asked = [device.report_id for device in devices]
    stores = [here.network.core(position).context.store for position in range(2)]
    found = [await store.instalment_digests(window.window_id, asked, round_number) for store in stores]
    return [len(asked) - digests.count(None) for digests in found]


MANY = 200 if NIGHTLY else 60


async def test_many_devices_get_their_own_receipts_through_few_batches() -> None:
    async with relayed() as here, running_relay(here) as (relay, metrics):
        standing = await here.network.stand()
        window = await here.network.ask(values=4)
        transports = [here.transport(number, relay, 60) for number in range(MANY)]
        devices = [await open_sessions(here, transport, window, n) for n, transport in enumerate(transports)]
        listed = await transports[0].list_questions()
        await here.network.advance_to(window.round_one_opens)

        await asyncio.gather(
            *(
                receipted(transport, window, device, device.first(device.number % 5))
                for transport, device in zip(transports, devices, strict=True)
            )
        )
        held = await stored(here, window, devices, 1)
        await asyncio.gather(*(transport.close() for transport in transports))

    assert standing.question_id in {one.signed.question.question_id for one in listed}
    assert held == [MANY, MANY]
    for name in ("alpha", "beta"):  # How many wait at a time is up to the machine; one by one it would be all of them.
        assert 0 < counted(metrics, "fleetcount_relay_batches_total", name) < MANY
    assert counted(metrics, "fleetcount_relay_bytes") == 0


async def test_a_stream_with_nothing_to_carry_is_ended_and_begun_again_without_a_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An aggregator ends a stream that is idle for longer, which would count as lost and make devices wait."""
    ended = asyncio.Event()
    honest = Forwarder._stream

    async def watched(self: Forwarder, *arguments: Any) -> None:
        await honest(self, *arguments)
        ended.set()

    monkeypatch.setattr(Forwarder, "_stream", watched)
    limits = replace(QUICK, idle_s=0.05)
    async with relayed() as here, running_relay(here, limits=limits) as (relay, metrics):
        window = await here.network.ask(values=4)
        transport = here.transport(0, relay)
        device = await open_sessions(here, transport, window, 0)
        await here.network.advance_to(window.round_one_opens)
        async with asyncio.timeout(60):
            for _ in range(2):
                await receipted(transport, window, device, device.first(1))
                await ended.wait()
                ended.clear()
        await transport.close()

    assert counted(metrics, "fleetcount_relay_stream_failures_total", "alpha") == 0


async def persist(transport: GrpcTransport, window: Window, device: TestDevice, parts: Sequence[Instalment]) -> int:
    """Deliver like a courier: the same bytes again until every receipt is there; return the attempts."""
    attempts = 0
    while True:
        attempts += 1
        try:
            await receipted(transport, window, device, parts)
        except (Unreachable, PeerError):
            await asyncio.sleep(0.05)
        else:
            return attempts


@pytest.mark.processes
@pytest.mark.nightly
async def test_a_relay_killed_and_started_again_under_load_loses_and_doubles_nothing(tmp_path: Path) -> None:
    async with relayed() as here, asyncio.timeout(90):
        window = await here.network.ask(values=4)
        [port] = free_ports("127.0.0.1", 1)
        relay = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "fleetcount", "relay", "--config", str(relay_files(here, tmp_path, relay))]
        child = ChildProcess.of("relay", command, tmp_path)
        child.start()
        await asyncio.to_thread(child.ready)
        transports = [here.transport(number, relay, 2) for number in range(40)]
        devices = [await open_sessions(here, transport, window, n) for n, transport in enumerate(transports)]
        await here.network.advance_to(window.round_one_opens)

        async def run_one(number: int) -> int:
            await asyncio.sleep(0.03 * number)
            return await persist(transports[number], window, devices[number], devices[number].first(1))

        load = [asyncio.create_task(run_one(number)) for number in range(40)]
        for _ in range(2):
            await asyncio.sleep(0.4)
            child.kill()
            await asyncio.to_thread(child.ended)
            child.start()
            await asyncio.to_thread(child.ready)
        attempts = await asyncio.gather(*load)
        held = await stored(here, window, devices, 1)
        await asyncio.gather(*(transport.close() for transport in transports))
        child.terminate()
        code = await asyncio.to_thread(child.ended)

    assert held == [40, 40]
    assert sum(attempts) > 40, "nobody noticed that the relay was killed"
    assert code == 0


# A relay that lies.


class Lying(Forwarder):
    """Keeps what passes and answers as `lie` says."""

    lie: Callable[["Lying", list[InstalmentReplyColumns]], list[InstalmentReplyColumns]]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen: list[InstalmentReplyColumns] = []

    async def send(self, runs: Sequence[InstalmentColumns]) -> list[InstalmentReplyColumns]:
        answers = await super().send(runs)
        told = type(self).lie(self, answers)
        self.seen += answers
        return told


def altered(_: Lying, answers: list[InstalmentReplyColumns]) -> list[InstalmentReplyColumns]:
    return [replace(answer, macs=answer.macs[:-1] + bytes([answer.macs[-1] ^ 1])) for answer in answers]


def dropped(_: Lying, answers: list[InstalmentReplyColumns]) -> list[InstalmentReplyColumns]:
    return answers[1:]


def replayed(relay: Lying, answers: list[InstalmentReplyColumns]) -> list[InstalmentReplyColumns]:
    return relay.seen[:1] * len(answers) if relay.seen else answers


def swapped(_: Lying, answers: list[InstalmentReplyColumns]) -> list[InstalmentReplyColumns]:
    return answers[::-1]


def another_s_mac(relay: Lying, answers: list[InstalmentReplyColumns]) -> list[InstalmentReplyColumns]:
    return [replace(answer, macs=relay.seen[0].macs) if relay.seen else answer for answer in answers]


@pytest.mark.parametrize("lie", [altered, dropped, replayed, swapped, another_s_mac])
async def test_a_relay_that_alters_drops_replays_or_swaps_receipts_is_noticed(
    lie: Callable[[Lying, list[InstalmentReplyColumns]], list[InstalmentReplyColumns]],
) -> None:
    liar = type("Liar", (Lying,), {"lie": lie})
    async with relayed() as here, running_relay(here, liar) as (relay, _):
        windows = [await here.network.ask(values=4, name=f"question {number}") for number in range(2)]
        transport = here.transport(0, relay)
        first = await open_sessions(here, transport, windows[0], 0)
        second = TestDevice(here.network, windows[1], 0, secrets=first.secrets)
        await here.network.advance_to(windows[0].round_one_opens)
        honest = [device.first(1)[0] for device in (first, second)]
        if lie in (replayed, another_s_mac):
            # What it repeats must have passed before.
            await leader_s_receipts(transport, windows[0], first, honest[:1])
            honest = honest[1:]

        with pytest.raises((DecodeError, SignatureError)):
            await leader_s_receipts(transport, windows[0], first, honest)
        await transport.close()


async def leader_s_receipts(
    transport: GrpcTransport, window: Window, device: TestDevice, parts: Sequence[Instalment]
) -> None:
    answers = await transport.upload(window, 0, parts)
    for part, answer in zip(parts, answers, strict=True):
        assert isinstance(answer, Receipt)
        check_receipt(device.secrets[0], part, answer)


# What a relay refuses, and what it does when an aggregator is away.


async def test_malformed_uploads_and_unknown_aggregators_are_refused_and_harm_nobody() -> None:
    async with relayed() as here, running_relay(here) as (relay, metrics):
        window = await here.network.ask(values=4)
        transport = here.transport(0, relay)
        device = await open_sessions(here, transport, window, 0)
        await here.network.advance_to(window.round_one_opens)
        good, foreign = (
            DEVICE_MESSAGE.encode(DeviceMessage(upload=Upload.of(AggregatorId(name), device.first(1)[:1])))
            for name in ("alpha", "gamma")
        )

        async def upload(data: bytes) -> bytes | grpc.StatusCode:
            channel = transport._way(here.names[0], "x").channel
            call: Any = channel.unary_stream("/fleetcount_protocol.v1.DeviceService/Answer")(data)
            try:
                answer = await call.read()
            except grpc.aio.AioRpcError as error:
                return error.code()
            return answer if isinstance(answer, bytes) else await call.code()

        codes = [await upload(junk) for junk in (good[:-1], good + b"\x0a\x00", b"\x08\x01", good[1:])]
        unknown = await upload(foreign)
        answer = await upload(good)
        await transport.close()

    assert codes == [grpc.StatusCode.INVALID_ARGUMENT] * 4
    assert unknown is grpc.StatusCode.NOT_FOUND
    assert isinstance(answer, bytes)
    answered = AGGREGATOR_MESSAGE.decode(answer).upload
    assert answered is not None
    assert isinstance(answered.only_one, Receipt)
    assert counted(metrics, "fleetcount_relay_malformed_total") == 4
    assert counted(metrics, "fleetcount_relay_stream_failures_total", "alpha") == 0


async def test_bad_signatures_of_one_device_are_not_held_against_the_others_behind_the_relay() -> None:
    async with relayed() as here, running_relay(here) as (relay, _):
        window = await here.network.ask(values=4)
        bad, good = here.transport(0, relay), here.transport(1, relay)
        aggregator = here.network.seats[0].aggregator
        made = [
            new_session(aggregator, aggregator.hpke_keys[0], device_identity(0), on_the_hour(START, 1), SystemRandom())[
                0
            ]
            for _ in range(AdmissionTable().faults_each + 1)
        ]
        wrong = [replace(one, signature=made[0].signature) for one in made[1:]]

        first = [answer for one in wrong for answer in await bad.open_sessions(aggregator, [one])]
        with pytest.raises(Unreachable) as busy:
            await bad.open_sessions(aggregator, made[:1])
        await open_sessions(here, good, window, 1)
        await asyncio.gather(bad.close(), good.close())

    assert {getattr(one, "reason", None) for one in first} == {RejectReason.BAD_SIGNATURE}
    assert busy.value.retry_after_s > 10


async def test_uploads_beyond_the_memory_are_busy() -> None:
    async with relayed() as here, running_relay(here, admission=AdmissionTable(bytes_in_memory=1)) as (relay, metrics):
        window = await here.network.ask(values=4)
        transports = [here.transport(number, relay) for number in range(8)]
        devices = [await open_sessions(here, transport, window, n) for n, transport in enumerate(transports)]
        await here.network.advance_to(window.round_one_opens)

        answers = await asyncio.gather(
            *(transport.upload(window, 0, [devices[n].first(1)[0]]) for n, transport in enumerate(transports))
        )
        await asyncio.gather(*(transport.close() for transport in transports))

    refused = [answer.reason for [answer] in answers if isinstance(answer, Refusal)]
    assert refused
    assert set(refused) == {RejectReason.BUSY}
    assert len(refused) < 8
    assert counted(metrics, "fleetcount_relay_shed_total", reason="bytes") == len(refused)


async def test_an_aggregator_that_is_away_is_unreachable_and_used_again_when_it_is_back() -> None:
    async with relayed() as here, running_relay(here) as (relay, metrics), asyncio.timeout(60):
        window = await here.network.ask(values=4)
        transport = here.transport(0, relay)
        device = await open_sessions(here, transport, window, 0)
        await here.network.advance_to(window.round_one_opens)
        parts = device.first(1)
        await here.servers[0].stop(0)

        with pytest.raises(Unreachable):
            await transport.upload(window, 0, parts[:1])
        [other] = await transport.upload(window, 1, parts[1:])
        await here.listen(0)
        attempts = await persist(transport, window, device, parts)
        await transport.close()

    assert isinstance(other, Receipt)
    assert attempts >= 1
    assert counted(metrics, "fleetcount_relay_stream_failures_total", "alpha") >= 1
    assert counted(metrics, "fleetcount_relay_stream_failures_total", "beta") == 0


class Stumbling(Forwarder):
    """Ends its first stream with an error that nobody foresaw."""

    stumbled = False

    async def _stream(self, unanswered: Any) -> None:
        if not self.stumbled:
            self.stumbled = True
            raise ValueError("unforeseen")
        await super()._stream(unanswered)


async def test_an_unforeseen_error_ends_one_stream_and_not_the_relay() -> None:
    async with relayed() as here, running_relay(here, Stumbling) as (relay, metrics), asyncio.timeout(60):
        window = await here.network.ask(values=4)
        transport = here.transport(0, relay)
        device = await open_sessions(here, transport, window, 0)
        await here.network.advance_to(window.round_one_opens)
        parts = device.first(1)

        with pytest.raises(Unreachable):
            await transport.upload(window, 0, parts[:1])
        await persist(transport, window, device, parts)
        await transport.close()

    assert counted(metrics, "fleetcount_relay_stream_failures_total", "alpha") == 1


async def test_an_upstream_that_answers_too_few_is_given_up_and_nobody_gets_another_s_answer() -> None:
    async with relayed() as here:
        core = here.network.core(0)
        honest = core.service.take

        async def lossy(batch: Any) -> Any:
            return (await honest(batch))[1:]

        core.service.take = lossy  # type: ignore[method-assign]  # this aggregator loses an answer
        async with running_relay(here) as (relay, metrics):
            window = await here.network.ask(values=4)
            transport = here.transport(0, relay)
            device = await open_sessions(here, transport, window, 0)
            await here.network.advance_to(window.round_one_opens)
            with pytest.raises(Unreachable):
                await transport.upload(window, 0, device.first(1)[:1])
            await transport.close()

    assert counted(metrics, "fleetcount_relay_stream_failures_total", "alpha") == 1


async def test_a_relay_is_nobody_to_the_aggregators_peer_port() -> None:
    async with relayed() as here:
        known = {name: [here.authority.certificate] for name in here.names}
        core = here.network.core(0)
        shell = PeerShell(core.helper, core.context.host.metrics, certified_peer(known))
        server = peer_server(shell)
        authority = here.authority.certificate.public_bytes(Encoding.PEM)
        own = pem_pair(here.authority.issue_aggregator("alpha", ["127.0.0.1"]))
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([own], authority, True))
        await server.start()
        peer = GrpcPeer(
            here.names[0],
            f"127.0.0.1:{port}",
            caller=here.names[1],
            timeout_s=60,
            credentials=grpc.ssl_channel_credentials(
                authority, *pem_pair(here.authority.issue_new(Purpose.RELAY, "relay-1", ["127.0.0.1"]))
            ),
        )

        with pytest.raises(PeerRefusalError) as refusal:
            await peer.status(WindowId(bytes(32)))
        await peer.close()
        await server.stop(0)

    assert refusal.value.problem is PeerProblem.NOT_LEADER


# The command.


@pytest.mark.processes
async def test_a_relay_that_is_told_to_end_first_gives_the_receipts_it_owes(tmp_path: Path) -> None:
    async with relayed() as here, asyncio.timeout(100):
        window = await here.network.ask(values=4)
        store, arrived, release = here.network.core(0).context.store, asyncio.Event(), asyncio.Event()
        honest = store.add_instalments

        async def slow(rows: Any) -> Any:
            arrived.set()
            await release.wait()
            return await honest(rows)

        store.add_instalments = slow  # type: ignore[method-assign]  # the disk takes its time
        [port] = free_ports("127.0.0.1", 1)
        relay = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "fleetcount", "relay", "--config", str(relay_files(here, tmp_path, relay))]
        child = ChildProcess.of("relay", command, tmp_path)
        child.start()
        await asyncio.to_thread(child.ready)
        transport = here.transport(0, relay, 30)
        device = await open_sessions(here, transport, window, 0)
        await here.network.advance_to(window.round_one_opens)
        upload = asyncio.create_task(leader_s_receipts(transport, window, device, device.first(1)[:1]))
        await arrived.wait()
        child.terminate()
        await asyncio.sleep(0.2)
        release.set()
        await upload
        code = await asyncio.to_thread(child.ended)
        await transport.close()

    assert code == 0


@pytest.mark.processes
async def test_the_command_says_when_it_is_ready_and_ends_with_zero(tmp_path: Path) -> None:
    async with relayed() as here:
        command = [sys.executable, "-m", "fleetcount", "relay"]
        config = relay_files(here, tmp_path, "127.0.0.1:0")
        process = await asyncio.create_subprocess_exec(
            *command, "--config", str(config), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        line = await process.stdout.readline()
        page = f"http://127.0.0.1:{json.loads(line)['metrics_port']}"
        ready = await asyncio.to_thread(wait_until, lambda: says_ready(page), "every aggregator answers")
        config.write_text(config.read_text() + '\n[log]\nlevel = "debug"\n')
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        told = json.loads(await process.stderr.readline())
        while told["event"] != "log_level_changed":  # What was said before it, at level info.
            told = json.loads(await process.stderr.readline())
        process.send_signal(signal.SIGTERM)
        _, errors = await process.communicate()

    assert b'"event": "ready"' in line
    assert b'"device_port"' in line
    assert ready["checks"][-1] == {"name": "aggregators", "ok": True, "reason": ""}
    assert (told["party"], told["to"]) == ("relay", "debug")
    assert process.returncode == 0, errors.decode()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["aggregators.crt", "devices.crt", "relay.crt", "relay.key", "relay.toml"], "a relay keeps nothing"


def says_ready(page: str) -> Any:
    """Return what /readyz says once both aggregators have answered."""
    try:
        with urllib.request.urlopen(f"{page}/readyz", timeout=60) as answer:
            said = json.load(answer)
    except urllib.error.HTTPError:
        return None
    return None if said["checks"][-1]["reason"] else said


async def answers(way: GrpcTransport) -> bool:
    """Return whether a device is answered."""
    try:
        await way.list_questions()
    except Unreachable:
        return False
    return True


@pytest.mark.processes
async def test_a_running_relay_takes_the_next_deny_list_and_lets_the_device_in_no_more(tmp_path: Path) -> None:
    async with relayed() as here:
        config = relay_files(here, tmp_path, "127.0.0.1:0")
        config.write_text(
            config.read_text()
            .replace("[[aggregators]]", 'deny_list_file = "deny-list"\n[[aggregators]]', 1)
            .replace("[relay]\n", '[relay]\nstate_directory = "kept"\n')
        )
        write_list(tmp_path / "deny-list", 7, number=1, issued_at=int(time.time()))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fleetcount", "relay", "--config", str(config), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        port = json.loads(await process.stdout.readline())["device_port"]
        one, other = (here.transport(number, f"127.0.0.1:{port}") for number in (0, 1))
        before = [await way.list_questions() for way in (one, other)]
        write_list(tmp_path / "deny-list", 0, 7, number=2, issued_at=int(time.time()))
        async with asyncio.timeout(60):
            while await answers(one):
                await asyncio.sleep(0.05)
        with pytest.raises(Unreachable, match="permission_denied"):
            await one.list_questions()
        after = await other.list_questions()
        for way in (one, other):
            await way.close()
        process.send_signal(signal.SIGTERM)
        code = await process.wait()
        write_list(tmp_path / "deny-list", 7, number=1, issued_at=int(time.time()))
        with pytest.raises(ConfigError, match="number 1, allowed: above 2"):
            _load_denials(load_relay_config(config))

    assert (before, after, code) == ([(), ()], (), 0)
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700


async def test_a_relay_takes_uploads_of_devices_alone() -> None:
    calls = {
        "ListQuestions": QUESTION_LIST_QUERY.encode(
            QuestionQuery(aggregator_id=AggregatorId("alpha"), deployment="test")
        ),
        "Answer": b"",
    }
    async with relayed() as here, running_relay(here) as (endpoint, _):
        reader = device_authority().issue_new(Purpose.READER, "ann")
        authority = here.authority.certificate.public_bytes(Encoding.PEM)
        credentials = grpc.ssl_channel_credentials(authority, *pem_pair(reader))
        found: dict[str, grpc.StatusCode] = {}
        async with grpc.aio.secure_channel(endpoint, credentials) as channel:
            for method, query in calls.items():
                call: Any = channel.unary_stream(f"/fleetcount_protocol.v1.DeviceService/{method}")(query)
                with contextlib.suppress(grpc.aio.AioRpcError):
                    while await call.read() is not grpc.aio.EOF:
                        pass
                found[method] = await call.code()

    assert found == {
        "ListQuestions": grpc.StatusCode.OK,
        "Answer": grpc.StatusCode.PERMISSION_DENIED,
    }


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("linger_s", "lingering_s", "did you mean 'linger_s'"),
        ('id = "beta"', 'id = "alpha"', "'alpha' occurs twice"),
        ("linger_s = 0.01", "linger_s = 2.0", "relay.linger_s is 2.0"),
        ('device_ca_file = "devices.crt"\n', "", "tls.device_ca_file is missing"),
        ('[metrics]\nlisten = "127.0.0.1:0"', '[metrics]\nlisten = "0.0.0.0:9"', "insecure"),
        ('"devices.crt"\n', '"devices.crt"\ndeny_list_url = "http://here"\n', "relay.state_directory is missing"),
    ],
)
async def test_a_wrong_configuration_is_refused_by_name(tmp_path: Path, before: str, after: str, said: str) -> None:
    async with relayed() as here:
        path = relay_files(here, tmp_path, "127.0.0.1:0")
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))

    with pytest.raises(ConfigError, match=said):
        load_relay_config(path)


def test_the_sample_configuration_is_one() -> None:
    shipped = load_relay_config(Path(__file__).parents[2] / "deploy" / "sample" / "relay.toml")

    assert [one.id for one in shipped.aggregators] == ["alpha", "beta"]
    assert shipped.admission == AdmissionTable()


async def test_a_certificate_that_could_speak_as_an_aggregator_is_refused(tmp_path: Path) -> None:
    async with relayed() as here:
        path = relay_files(here, tmp_path, "127.0.0.1:0")
        wrong = here.authority.issue_new(Purpose.RELAY, "relay-1", ["127.0.0.1", "beta"])
    for name in ("relay.key", "relay.crt"):
        (tmp_path / name).unlink()
    save_private_key(tmp_path / "relay.key", wrong.private_key)
    save_certificates(tmp_path / "relay.crt", [wrong.certificate])

    with pytest.raises(ConfigError, match="carries 'beta'"):
        _load_tls(load_relay_config(path))


async def test_a_certificate_for_another_purpose_starts_no_relay(tmp_path: Path) -> None:
    async with relayed() as here:
        path = relay_files(here, tmp_path, "127.0.0.1:0")
        wrong = here.authority.issue_aggregator("relay-1", ["127.0.0.1"])
    for name in ("relay.key", "relay.crt"):
        (tmp_path / name).unlink()
    save_private_key(tmp_path / "relay.key", wrong.private_key)
    save_certificates(tmp_path / "relay.crt", [wrong.certificate])

    with pytest.raises(ConfigError, match="for the purpose 'aggregator', allowed: 'relay'"):
        _load_tls(load_relay_config(path))


@pytest.mark.parametrize("name", ["devices.crt", "aggregators.crt"])
async def test_authorities_that_are_none_are_refused_before_it_listens(tmp_path: Path, name: str) -> None:
    async with relayed() as here:
        path = relay_files(here, tmp_path, "127.0.0.1:0")
    (tmp_path / name).write_text("pem")

    with pytest.raises(ConfigError, match=rf"{name} holds no readable certificate"):
        _load_tls(load_relay_config(path))


async def test_a_relay_that_would_forward_to_itself_is_refused(tmp_path: Path) -> None:
    async with relayed() as here:
        path = relay_files(here, tmp_path, "127.0.0.1:0")
    text = path.read_text()
    endpoint = text.split('endpoint = "')[1].split('"')[0]
    path.write_text(text.replace('listen = "127.0.0.1:0"', f'listen = "{endpoint}"', 1))

    with pytest.raises(ConfigError, match="is this relay's own"):
        load_relay_config(path)
