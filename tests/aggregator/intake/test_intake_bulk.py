"""Intake in bulk: sessions opened together, quotas under parallel calls, batches opened in the workers or here."""

import asyncio
import base64
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.host.keys import KeyRing, load_hpke_key
from fleetcount_aggregator.host.token_keys import TokenWrappingKey
from fleetcount_aggregator.intake.intake import WORTH_A_PROCESS, unseal_somewhere
from fleetcount_aggregator.intake.sessions import Sessions
from fleetcount_aggregator.memory import sessions as sessions_module
from fleetcount_aggregator.storage.session_chains import PackedSession
from fleetcount_aggregator.transport.grpc_server import DeviceShell
from fleetcount_aggregator.verification.spare_workers import OUTSTANDING, SpareWorkers
from fleetcount_aggregator.verification.workers import ProcessWorkers, Workers
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.chain import KeyChain
from fleetcount_protocol.channel.hpke import HpkeKeyPair
from fleetcount_protocol.channel.session import SessionSecret, check_receipt, new_session, seal_instalment
from fleetcount_protocol.errors import MachineError, RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SessionId, WindowId
from fleetcount_protocol.messages import Receipt, Refusal, SessionAccepted, SessionRefused, SessionRequest
from fleetcount_protocol.wire.device_columns import InstalmentColumns, Upload
from fleetcount_protocol.wire.device_stream import AGGREGATOR_MESSAGE, DEVICE_MESSAGE, DeviceMessage
from fleetcount_protocol.wire.device_unsealing import SessionKeys, unseal_columns
from fleetcount_transport.admission.admission import Admission, AdmissionTable
from fleetcount_transport.admission.call import Call
from fleetcount_transport.admission.grpc_admission import GrpcAdmission
from fleetcount_transport.admission.identity import LOCAL

from tests.support.aggregators import START, Network, TestDevice, device_identity
from tests.support.inline_workers import InlineWorkers
from tests.support.told_time import told_time


class CountingWorkers(InlineWorkers):
    """Runs inline and counts what it was given."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def run(self, function: Callable[..., Any], /, *arguments: object) -> Any:
        self.calls.append(function.__name__)
        return await super().run(function, *arguments)


def request_of(network: Network, device: int, expiry: int = START + 3_600) -> SessionRequest:
    aggregator = network.seats[0].aggregator
    return new_session(aggregator, aggregator.hpke_keys[0], device_identity(device), expiry, SystemRandom())[0]


def sessions_of(context: Context, workers: Workers | None = None) -> Sessions:
    spare = SpareWorkers(context.workers if workers is None else workers)
    return Sessions(context.host, context.store, context.windows.sessions, spare)


async def started(**settings: Any) -> Network:
    network = Network(2, **settings)
    await network.start_all()
    return network


# Sessions.


async def test_parallel_calls_of_one_device_do_not_pass_its_quota() -> None:
    network = await started(limits=Limits(smallest_min_batch_size=2, sessions_per_device=3))
    service = network.core(0).service
    requests = [request_of(network, 0) for _ in range(12)]

    answers = await asyncio.gather(*(service.open_sessions([request]) for request in requests))

    accepted = [answer for [answer] in answers if isinstance(answer, SessionAccepted)]
    assert len(accepted) == 3
    assert {answer.reason for [answer] in answers if isinstance(answer, SessionRefused)} == {RejectReason.OVER_QUOTA}


async def test_many_sessions_are_judged_in_the_workers_and_a_bad_one_is_refused_alone() -> None:
    network = await started()
    workers = CountingWorkers()
    here = sessions_of(network.core(0).context, workers)
    requests = [request_of(network, number) for number in range(8)]
    requests[3] = replace(requests[3], signature=requests[4].signature)
    requests[5] = replace(requests[5], key_id=9)

    answers = await here.open(requests)

    reasons = [answer.reason if isinstance(answer, SessionRefused) else None for answer in answers]
    assert reasons == [None, None, None, RejectReason.BAD_SIGNATURE, None, RejectReason.UNKNOWN_KEY, None, None]
    assert [answer.session_id for answer in answers] == [request.session_id for request in requests]
    assert workers.calls == ["judge_requests"]


async def test_sessions_beyond_the_memory_are_found_in_the_store_without_a_second_signature_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions_module, "CACHED", 16)
    network = await started()
    context = network.core(0).context
    here = sessions_of(context)
    requests = [request_of(network, number) for number in range(40)]
    await here.open(requests)

    def refuse(*_: object) -> None:
        raise AssertionError("a known request's signature is checked again")

    monkeypatch.setattr("fleetcount_protocol.channel.session._check_signature", refuse)
    ids = [bytes(request.session_id) for request in requests]
    found = await here.find([*ids, bytes(16)])

    assert len(here._cache.live) <= 16
    assert found[-1] is None
    again = [(await here.find([one]))[0] for one in ids]
    assert all(session is not None for session in again)
    assert len({session.window_key(b"\0\1") for session in again if session is not None}) == 40


async def test_a_request_of_before_the_restart_gets_the_answer_of_before_and_its_keys_and_a_new_one_takes_no_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = await started()
    context = network.core(0).context
    request = request_of(network, 0)
    before = await sessions_of(context).open([request])
    [kept] = await sessions_of(context).find([bytes(request.session_id)])
    context.windows.sessions.live.clear()

    again = await sessions_of(context).open([request])
    [found] = await sessions_of(context).find([bytes(request.session_id)])
    monkeypatch.setattr(context.store, "read", None)
    [new] = await sessions_of(context).open([request_of(network, 1)])

    assert again == before
    assert kept is not None
    assert found == kept
    assert isinstance(new, SessionAccepted)


async def test_a_device_of_an_authority_that_is_trusted_no_more_keeps_no_session_after_a_restart() -> None:
    network = await started()
    context = network.core(0).context
    request = request_of(network, 0)
    await sessions_of(context).open([request])
    context.host.identity = replace(context.host.identity, device_ca=())
    context.windows.sessions.live.clear()

    assert await sessions_of(context).find([bytes(request.session_id)]) == [None]


def test_a_session_in_memory_shows_no_secret() -> None:
    chain = KeyChain(number=3, key=b"s" * 32, kept=((1, b"t" * 32),))

    packed = PackedSession.of(chain, b"r" * 32, Digest(b"d" * 32), 7)

    assert (packed.chain, packed.receipt_key, packed.certificate) == (chain, b"r" * 32, b"d" * 32)
    assert packed.expiry == 7
    assert packed.with_chain(chain) == packed
    for number in range(6):
        assert packed.window_key(number.to_bytes(2)) == chain.window_key(number)
    assert "s" * 8 not in repr(packed)


def test_made_up_key_ids_read_no_key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(name: str) -> None:
        path = tmp_path / name
        path.write_bytes(base64.b64encode(X25519PrivateKey.generate().private_bytes_raw()))
        path.chmod(0o600)

    write("1.key")
    ring = KeyRing.load(tmp_path)
    reads: list[Path] = []

    def noting(path: Path, wrapping: TokenWrappingKey | None) -> HpkeKeyPair:
        reads.append(path)
        return load_hpke_key(path, wrapping)

    monkeypatch.setattr("fleetcount_aggregator.host.keys.load_hpke_key", noting)

    for key_id in range(2, 100):
        assert key_id not in ring.pairs(key_id)
    assert len(reads) <= 1
    write("7.key")
    assert 7 in ring.pairs(7)


def test_a_key_file_that_was_open_to_others_is_taken_once_it_is_not(tmp_path: Path) -> None:
    def write(name: str, mode: int) -> Path:
        path = tmp_path / name
        path.write_bytes(base64.b64encode(X25519PrivateKey.generate().private_bytes_raw()))
        path.chmod(mode)
        return path

    write("1.key", 0o600)
    ring = KeyRing.load(tmp_path)
    path = write("7.key", 0o644)

    assert 7 not in ring.pairs(7)
    path.chmod(0o600)
    assert 7 in ring.pairs(7)


# Opening.


def sealed(count: int) -> tuple[SessionKeys, InstalmentColumns]:
    secrets = [
        SessionSecret(
            session_id=SessionId(number.to_bytes(16)),
            aggregator_id=AggregatorId("alpha"),
            secret=number.to_bytes(32),
            receipt_key=(~number & 0xFF).to_bytes(32),
            expiry=START,
        )
        for number in range(count)
    ]
    parts = [
        seal_instalment(
            secret.window_key, WindowId(bytes(32)), ReportId(number.to_bytes(16)), 1, 0, b"", number.to_bytes(8)
        )
        for number, secret in enumerate(secrets)
    ]
    window_keys = [one.window_key.key for one in secrets]
    keys = SessionKeys(window_keys=window_keys, receipt_keys=[one.receipt_key for one in secrets])
    return keys, InstalmentColumns.of(parts)[0]


async def test_few_are_opened_here_and_many_in_the_workers_with_the_same_result() -> None:
    workers = CountingWorkers()
    spare = SpareWorkers(workers)
    few, many = sealed(3), sealed(WORTH_A_PROCESS)

    assert (await unseal_somewhere(spare, few[0], 0, few[1])).parts == [number.to_bytes(8) for number in range(3)]
    assert workers.calls == []
    assert await unseal_somewhere(spare, many[0], 0, many[1]) == unseal_columns(many[0], 0, many[1])
    assert workers.calls == ["unseal_columns"]


@pytest.mark.processes
async def test_real_workers_open_what_is_opened_here() -> None:
    workers = ProcessWorkers(1, warm=False)
    keys, columns = sealed(WORTH_A_PROCESS)

    opened = await workers.run(unseal_columns, keys, 0, columns)
    await workers.close()

    assert opened == unseal_columns(keys, 0, columns)


class StuckWorkers(InlineWorkers):
    """Busy for ever."""

    async def run(self, function: Callable[..., Any], /, *arguments: object) -> Any:
        await asyncio.Event().wait()


class DeadWorkers(InlineWorkers):
    """Dies again and again."""

    async def run(self, function: Callable[..., Any], /, *arguments: object) -> Any:
        raise MachineError("the worker process died")


@pytest.mark.parametrize("workers", [StuckWorkers(), DeadWorkers()])
async def test_workers_that_are_busy_or_dead_are_not_waited_for(workers: InlineWorkers) -> None:
    spare = SpareWorkers(workers, patience_s=0.05)
    keys, columns = sealed(WORTH_A_PROCESS)

    results = await asyncio.gather(*(unseal_somewhere(spare, keys, 0, columns) for _ in range(OUTSTANDING + 2)))

    assert results == [unseal_columns(keys, 0, columns)] * len(results)


async def test_after_one_has_waited_in_vain_the_next_do_not_wait() -> None:
    spare = SpareWorkers(StuckWorkers(), patience_s=2)
    with told_time() as told:
        first = asyncio.create_task(spare.run(abs, -9))
        await asyncio.sleep(0)
        told.passes(2)
        assert await first == 9

        told.passes(9)
        assert [await spare.run(abs, -number) for number in range(8)] == list(range(8))

        told.passes(1)  # Five times as long as it waited: the next one tries a worker again.
        again = asyncio.create_task(spare.run(abs, -1))
        assert await asyncio.wait([again], timeout=0) == (set(), {again})
        told.passes(2)
        assert await again == 1


async def test_a_batch_of_several_windows_rounds_and_faults_is_answered_line_by_line() -> None:
    network = await started()
    windows = [await network.ask(name=f"question {number}") for number in range(2)]
    await network.advance_to(windows[0].round_one_opens)
    devices = [TestDevice(network, windows[number % 2], number) for number in range(8)]
    for device in devices:
        await device.open_sessions()
    batch = [device.first(1)[0] for device in devices]
    batch[2] = replace(batch[2], session_id=SessionId(bytes(16)))
    batch[5] = replace(batch[5], ciphertext=bytes(len(batch[5].ciphertext)))
    batch[6] = replace(batch[6], window_id=WindowId(bytes(32)))
    batch.append(devices[7].second(1, 1)[0])
    batch.append(batch[0])

    answers = await network.core(0).service.upload(batch)

    reasons = [answer.reason if isinstance(answer, Refusal) else None for answer in answers]
    assert reasons[2] is RejectReason.UNKNOWN_SESSION
    assert reasons[5] is RejectReason.BAD_SEAL
    assert reasons[6] is RejectReason.UNKNOWN_WINDOW
    assert reasons[8] is RejectReason.TOO_EARLY
    assert [reasons[place] for place in (0, 1, 3, 4, 7, 9)] == [None] * 6
    for place in (0, 1, 3, 4, 7):
        answer = answers[place]
        assert isinstance(answer, Receipt)
        check_receipt(devices[place].secrets[0], batch[place], answer)
    assert answers[9] == answers[0]


def answer_in(data: bytes) -> Receipt | Refusal:
    answered = AGGREGATOR_MESSAGE.decode(data).upload
    assert answered is not None
    return answered.only_one


async def test_uploads_beyond_the_bytes_in_flight_are_busy_and_stored_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    network = await started()
    window = await network.ask()
    await network.advance_to(window.round_one_opens)
    devices = [TestDevice(network, window, number) for number in range(2)]
    for device in devices:
        await device.open_sessions()
    core = network.core(0)
    shell = DeviceShell(core.service, core.context.host.metrics)
    call = Call(LOCAL, None, GrpcAdmission(Admission(AdmissionTable(bytes_in_memory=1))))
    store, release = core.context.store, asyncio.Event()
    honest = store.add_instalments

    async def slow(rows: Any) -> Any:
        await release.wait()
        return await honest(rows)

    monkeypatch.setattr(store, "add_instalments", slow)
    first, second = (
        DEVICE_MESSAGE.encode(DeviceMessage(upload=Upload.of(AggregatorId("alpha"), device.first(1)[:1])))
        for device in devices
    )
    waiting = asyncio.create_task(shell._take(first, call))
    await asyncio.sleep(0)

    refused = answer_in(await shell._take(second, call))
    release.set()
    accepted = answer_in(await waiting)
    later = answer_in(await shell._take(second, call))

    assert isinstance(refused, Refusal)
    assert refused.reason is RejectReason.BUSY
    assert isinstance(accepted, Receipt)
    assert isinstance(later, Receipt)
