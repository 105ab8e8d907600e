"""What an aggregator takes, when, and what it answers."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.storage.errors import Damage, StoreBusyError, StoreError
from fleetcount_aggregator.storage.rows import read_rejections
from fleetcount_aggregator.storage.session_rows import put_chains, read_chains
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol import ids
from fleetcount_protocol.channel.certificates import Purpose, key_digest
from fleetcount_protocol.channel.session import DeviceIdentity, check_receipt, new_session
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import SessionId, WindowId, new_report_id
from fleetcount_protocol.messages import Receipt, Refusal, SessionAccepted, SessionRefused
from fleetcount_protocol.window.fields import UploadStyle
from fleetcount_protocol.window.window import Window
from fleetcount_transport.admission.admission import AdmissionTable
from fleetcount_transport.admission.identity import Identity
from fleetcount_transport.admission.turns import FairBatches

from tests.support.aggregators import (
    START,
    Network,
    SimulatedCrashError,
    TestDevice,
    device_authority,
    device_digest,
    device_identity,
)
from tests.support.denials import denials_of, write_list


async def ready(network: Network, window: Window, number: int = 0) -> TestDevice:
    device = TestDevice(network, window, number)
    await device.open_sessions()
    return device


AROUND_THE_HOUR = {
    "round_one_opens": START + 3_590,
    "round_one_closes": START + 3_610,
    "round_two_closes": START + 3_620,
}
"""A window in round one of which a session can end."""


async def start(**changes: object) -> tuple[Network, Window]:
    network = Network(2)
    await network.start_all()
    return network, await network.ask(**changes)


async def on_files(directory: Path) -> tuple[Network, Window, TestDevice]:
    """Return a network on files, and a window in its first window with a device whose sessions are open."""
    network = Network(2, directory=directory)
    await network.start_all()
    window = await network.ask()
    device = await ready(network, window)
    await network.advance_to(window.round_one_opens)
    return network, window, device


def reason(answer: Receipt | Refusal) -> RejectReason | None:
    return answer.reason if isinstance(answer, Refusal) else None


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (9, RejectReason.TOO_EARLY),
        (10, None),
        (19, None),
        (20, RejectReason.TOO_LATE),
        (86_000, RejectReason.TOO_LATE),
    ],
)
async def test_round_one_is_taken_from_its_opening_to_the_second_before_it_closes(
    moment: int, expected: RejectReason | None
) -> None:
    network, window = await start()
    device = await ready(network, window)
    await network.advance_to(START + moment)

    [answer, _] = await device.send(device.first(0))

    assert reason(answer) is expected


@pytest.mark.parametrize(
    ("moment", "expected"), [(19, RejectReason.TOO_EARLY), (20, None), (29, None), (30, RejectReason.TOO_LATE)]
)
async def test_round_two_opens_when_round_one_closes(moment: int, expected: RejectReason | None) -> None:
    network, window = await start()
    device = await ready(network, window)
    await network.advance_to(START + moment)

    [answer, _] = await device.send(device.second(0, 1))

    assert reason(answer) is expected


async def test_a_receipt_is_for_exactly_these_bytes_and_the_same_each_time() -> None:
    network, window = await start()
    device = await ready(network, window)
    await network.advance_to(window.round_one_opens)
    instalments = device.first(3)

    [first, _] = await device.send(instalments)
    [again, _] = await device.send(instalments)

    assert isinstance(first, Receipt)
    assert first == again
    check_receipt(device.secrets[0], instalments[0], first)


async def test_stored_bytes_get_their_receipt_after_the_window_and_other_bytes_do_not() -> None:
    network, window = await start()
    device, late = await ready(network, window), await ready(network, window, 1)
    await network.advance_to(window.round_one_opens)
    [first, _] = await device.send(device.first(3))
    await network.run_to_the_end(window)

    assert (await device.send(device.first(3)))[0] == first
    assert reason((await late.send(late.first(3)))[0]) is RejectReason.TOO_LATE


async def test_no_receipt_without_a_commit() -> None:
    network, window = await start()
    await network.stop(0)
    await network.start(0, "intake.before_commit")
    device = await ready(network, window)
    await network.advance_to(window.round_one_opens)
    instalment = device.first(0)[0]

    with pytest.raises(SimulatedCrashError):
        await network.core(0).service.upload([instalment])

    digests = await network.core(0).context.store.instalment_digests(window.window_id, [device.report_id], 1)
    assert digests == [None]


async def test_a_device_may_open_a_session_for_each_window() -> None:
    network = Network(2)
    await network.start_all()
    windows = [await network.ask(values=4, name=f"question {number}") for number in range(2)]
    devices = [TestDevice(network, window, 0) for window in windows]
    for device in devices:
        await device.open_sessions()
    await network.advance_to(windows[0].round_one_opens)

    answers = [answer for device in devices for answer in await device.send(device.first(0))]
    again = TestDevice(network, windows[0], 0, secrets=devices[1].secrets)

    assert len({answer.session_id for answer in answers}) == 4
    assert all(isinstance(answer, Receipt) for answer in answers)
    assert {reason(answer) for answer in await again.send(again.first(0))} == {RejectReason.OVER_QUOTA}


async def test_no_receipt_follows_the_end_of_a_certificate() -> None:
    network, window = await start(**AROUND_THE_HOUR)
    key = ec.generate_private_key(ec.SECP256R1())
    made = datetime.fromtimestamp(START, UTC)
    certificate = device_authority().issue(
        Purpose.DEVICE, key.public_key(), "d-1", validity=timedelta(hours=1, minutes=5), now=made
    )
    identity = DeviceIdentity(certificate=certificate, private_key=key)
    name = new_report_id(window.window_id, key_digest(certificate), SystemRandom())
    device, asked = TestDevice(network, window, 0, nonce=bytes(name)), []
    for expiry in (START + 3_600, START + 7_200, START + 99 * 86_400):
        for position, seat in enumerate(network.seats):
            request, opening = new_session(
                seat.aggregator, seat.aggregator.hpke_keys[0], identity, expiry, SystemRandom()
            )
            [answer] = await network.core(position).service.open_sessions([request])
            asked.append(getattr(answer, "reason", None))
            if expiry == START + 3_600:
                device.secrets.append(opening.finish(answer))
                device.requests.append(request)
    await network.advance_to(START + 3_599)
    await network.look_after_all()
    [before, _] = await device.send(device.first(0))
    await network.advance_to(START + 3_600)

    [after, _] = await device.send(device.first(0))
    [again] = await network.core(0).service.open_sessions([device.requests[0]])

    assert asked == [None] * 2 + [RejectReason.BAD_CERTIFICATE] * 4
    assert isinstance(before, Receipt)
    assert reason(after) is RejectReason.UNKNOWN_SESSION
    assert getattr(again, "reason", None) is RejectReason.EXPIRED


@pytest.mark.parametrize("live", [True, False], ids=["in memory", "from the store"])
async def test_a_revoked_device_gets_no_receipt_any_more_and_no_session(tmp_path: Path, live: bool) -> None:
    network, window = await start()
    device, other = await ready(network, window), await ready(network, window, 1)
    await network.advance_to(window.round_one_opens)
    [before, _] = await device.send(device.first(0))
    if not live:
        await network.stop(0)
        await network.start(0)
    network.core(0).context.host.denials = denials_of(tmp_path / "deny-list", 0)

    answers = [(await one.send(one.first(0)))[0] for one in (device, other)]
    again = await network.core(0).service.open_sessions([device.requests[0], other.requests[0]])

    assert isinstance(before, Receipt)
    assert [reason(answer) for answer in answers] == [RejectReason.UNKNOWN_SESSION, None]
    assert [getattr(one, "reason", None) for one in again] == [RejectReason.BAD_CERTIFICATE, None]


async def test_nobody_is_served_under_a_deny_list_that_has_ended_and_everybody_after_the_next(tmp_path: Path) -> None:
    network, window = await start()
    device = await ready(network, window)
    await network.advance_to(window.round_one_opens)
    network.core(0).context.host.denials = denials_of(tmp_path / "deny-list", expires=window.round_one_opens)

    [answer, _] = await device.send(device.first(0))
    [again] = await network.core(0).service.open_sessions([device.requests[0]])
    write_list(tmp_path / "deny-list", number=2)
    await network.core(0).context.host.denials.poll()
    [receipt, _] = await device.send(device.first(0))

    assert reason(answer) is RejectReason.BUSY
    assert again == SessionRefused(session_id=device.requests[0].session_id, reason=RejectReason.BUSY)
    assert not RejectReason.BUSY.final
    assert isinstance(receipt, Receipt)


async def test_the_same_request_gets_the_same_answer_after_a_restart() -> None:
    network, window = await start()
    device, service = await ready(network, window), network.core(0).service
    asked = device.requests[:1]
    first = await service.open_sessions(asked)
    both = await asyncio.gather(service.open_sessions(asked), service.open_sessions(asked))

    await network.stop(0)
    await network.start(0)
    again = await network.core(0).service.open_sessions(asked)

    assert [*both, again] == [first] * 3


async def test_a_session_survives_a_restart_and_its_secret_is_not_in_the_store(tmp_path: Path) -> None:
    network, _, device = await on_files(tmp_path)
    await device.send(device.first(0))

    await network.stop(0)
    await network.start(0)

    assert isinstance((await device.send(device.first(0)))[0], Receipt)
    await network.stop_all()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert all(secret.secret not in stored for secret in device.secrets)


async def test_a_session_whose_stored_keys_are_damaged_is_unknown_and_holds_up_no_other() -> None:
    network, window = await start()
    damaged, whole = await ready(network, window), await ready(network, window, 1)
    await network.advance_to(window.round_one_opens)
    core = network.core(0)
    [(session_id, sealed)] = await core.context.store.read(read_chains, [damaged.secrets[0].session_id])
    await core.context.store.write(put_chains, [(session_id, sealed[:-1] + bytes((sealed[-1] ^ 1,)))])
    core.context.windows.sessions.forget()

    answers = await core.service.upload([damaged.first(0)[0], whole.first(0)[0]])

    assert list(map(reason, answers)) == [RejectReason.UNKNOWN_SESSION, None]


async def test_a_repeat_of_what_cannot_be_looked_up_is_busy_and_holds_up_no_other(tmp_path: Path) -> None:
    network, window, device = await on_files(tmp_path)
    [repeated, _] = device.first(3)
    await device.send(device.first(3))
    await network.run_to_the_end(window)
    [digests] = tmp_path.rglob("alpha*.digests")
    digests.write_bytes(b"?" + digests.read_bytes()[1:])

    foreign = replace(repeated, window_id=WindowId(bytes(32)))
    answers = await network.core(0).service.upload([repeated, foreign])

    assert list(map(reason, answers)) == [RejectReason.BUSY, RejectReason.UNKNOWN_WINDOW]
    assert b"fleetcount_store_errors_total 1.0" in network.core(0).context.host.metrics.render()
    await network.stop_all()


async def test_a_repeat_whose_lane_cannot_be_read_at_present_is_busy_and_not_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, window = await start()
    device = await ready(network, window)
    await network.advance_to(window.round_one_opens)
    await device.send(device.first(3))
    await network.run_to_the_end(window)

    async def unreadable(*_: object) -> None:
        raise StoreBusyError("the lane of a report is read at present")

    monkeypatch.setattr(network.core(0).context.store, "instalment_digests", unreadable)

    [answer] = await network.core(0).service.upload(device.first(3)[:1])

    assert reason(answer) is RejectReason.BUSY


async def test_a_window_that_is_found_damaged_while_it_collects_is_busy_and_holds_up_no_other(
    tmp_path: Path,
) -> None:
    network = Network(2, directory=tmp_path)
    await network.start_all()
    damaged, whole = await network.ask(), await network.ask(name="another")
    devices = [await ready(network, window) for window in (damaged, whole)]
    await network.advance_to(damaged.round_one_opens)
    damage = Damage(table="log", what="not as it was written", window_id=damaged.window_id)
    # As when it is read back after an answer that was lost.
    network.core(0).context.store.logs._damaged[damaged.window_id] = damage  # type: ignore[attr-defined]

    answers = await network.core(0).service.upload([device.first(0)[0] for device in devices])

    assert list(map(reason, answers)) == [RejectReason.BUSY, None]
    await network.stop_all()


async def test_shares_lie_sealed_in_the_store(tmp_path: Path) -> None:
    network, _, device = await on_files(tmp_path)
    await device.send(device.first(0))
    await network.stop_all()

    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())

    helper_seed = device.rand[:32]
    assert helper_seed not in stored
    assert bytes(range(32)) not in stored, "the verify key"


async def test_unknown_windows_and_sessions_are_refused_by_name() -> None:
    network, window = await start()
    device = await ready(network, window)
    await network.advance_to(window.round_one_opens)
    instalment = device.first(0)[0]

    answers = await network.core(0).service.upload(
        [
            replace(instalment, window_id=WindowId(bytes(32))),
            replace(instalment, session_id=SessionId(bytes(16))),
        ]
    )

    assert [reason(answer) for answer in answers] == [RejectReason.UNKNOWN_WINDOW, RejectReason.UNKNOWN_SESSION]
    counts = await network.core(0).context.store.read(read_rejections, window.window_id)
    assert counts == {RejectReason.UNKNOWN_SESSION: 1}


async def test_an_instalment_of_a_round_the_window_does_not_have_is_refused() -> None:
    network, window = await start(upload_style=UploadStyle.ONE_ENVELOPE)
    device = await ready(network, window)
    await network.advance_to(window.round_one_opens)

    assert reason((await device.send(device.first(0)))[0]) is RejectReason.WRONG_ROUND


async def test_who_takes_a_victim_s_report_id_first_is_refused_and_the_victim_is_served() -> None:
    network, window = await start()
    victim, thief = await ready(network, window, 0), await ready(network, window, 1)
    thief.nonce = victim.nonce
    await network.advance_to(window.round_one_opens)

    stolen = await thief.send(thief.first(0))
    honest = await victim.send(victim.first(0))
    await network.advance_to(window.round_one_closes)
    second = await victim.send(victim.second(0, 1))

    assert [reason(answer) for answer in stolen] == [RejectReason.MALFORMED] * 2
    assert [reason(answer) for answer in (*honest, *second)] == [None] * 4


async def test_a_device_cannot_choose_the_prefix_of_its_report_id() -> None:
    """Its second report would meet another owner than the first one, which has never heard of it."""
    network, window = await start()
    device = await ready(network, window, 0)
    await network.advance_to(window.round_one_opens)
    honest = device.nonce
    elsewhere = bytes((honest[0] ^ 1,)) + honest[1:12]
    device.nonce = elsewhere + ids._bound(device_digest(0), elsewhere)

    chosen = await device.send(device.first(0))
    device.nonce = honest

    assert [reason(answer) for answer in chosen] == [RejectReason.MALFORMED] * 2
    assert [reason(answer) for answer in await device.send(device.first(0))] == [None] * 2


async def test_bad_signatures_shut_their_caller_out_and_nobody_else() -> None:
    network, _ = await start()
    service, aggregator = network.core(0).service, network.seats[0].aggregator
    bad, good = Identity(b"bad"), Identity(b"good")
    requests = [
        new_session(aggregator, aggregator.hpke_keys[0], device_identity(0), START + 3_600, SystemRandom())[0]
        for _ in range(100)
    ]
    wrong = [replace(one, signature=requests[0].signature) for one in requests[1:]]

    admission = network.core(0).context.host.admission
    admission.held(bad)  # Who was of use before is judged like anybody else, up to its limit.
    answers = await service.open_sessions(wrong, [bad] * len(wrong))
    [refused] = await service.open_sessions(requests[:1], [bad])
    [served] = await service.open_sessions(requests[:1], [good])

    reasons = [getattr(answer, "reason", None) for answer in answers]
    judged = reasons.count(RejectReason.BAD_SIGNATURE)
    limit = AdmissionTable().faults_each
    assert limit <= judged <= limit + 32  # Two groups of 16 may be under way before the first failure is noted.
    assert reasons.count(RejectReason.BUSY) == len(wrong) - judged
    assert getattr(refused, "reason", None) is RejectReason.BUSY
    assert isinstance(served, SessionAccepted)


async def test_a_request_for_another_aggregator_counts_against_its_caller() -> None:
    network, _ = await start()
    service, other = network.core(0).service, network.seats[1].aggregator
    request, _ = new_session(other, other.hpke_keys[0], device_identity(0), START + 3_600, SystemRandom())
    bad = Identity(b"bad")

    answers = [await service.open_sessions([request], [bad]) for _ in range(AdmissionTable().faults_each + 1)]

    reasons = [getattr(answer, "reason", None) for [answer] in answers]
    assert reasons[0] is RejectReason.MALFORMED
    assert reasons[-1] is RejectReason.BUSY


async def test_of_an_unknown_caller_one_request_is_judged_and_none_that_came_with_one_that_fails() -> None:
    network, _ = await start()
    service, aggregator = network.core(0).service, network.seats[0].aggregator
    honest, *others = (
        new_session(aggregator, aggregator.hpke_keys[0], device_identity(0), START + 3_600, SystemRandom())[0]
        for _ in range(8)
    )
    wrong = [replace(one, signature=honest.signature) for one in others]
    bad, good = Identity(b"bad"), Identity(b"good")

    answers = await service.open_sessions([*wrong, honest, *others], [bad] * 7 + [good] * 8)

    reasons = [getattr(answer, "reason", None) for answer in answers]
    assert reasons == [RejectReason.BAD_SIGNATURE, *[RejectReason.BUSY] * 6, *[None] * 8]
    assert not network.core(0).context.host.admission.knows(bad)
    assert network.core(0).context.host.admission.knows(good)


async def test_of_a_caller_that_is_shut_out_meanwhile_no_request_takes_a_place_in_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, _ = await start()
    service, aggregator = network.core(0).service, network.seats[0].aggregator
    requests = [
        new_session(aggregator, aggregator.hpke_keys[0], device_identity(0), START + 3_600, SystemRandom())[0]
        for _ in range(8)
    ]
    bad, waited = Identity(b"bad"), list[Identity]()
    ask = FairBatches.ask

    def asked(line: Any, one: Any, *path: Any, **standing: Any) -> Any:
        waited.append(one.who)
        return ask(line, one, *path, **standing)

    monkeypatch.setattr(FairBatches, "ask", asked)
    network.core(0).context.host.admission.failed(bad, AdmissionTable().faults_each)
    answers = await service.open_sessions(requests, [bad] * 8)

    assert [getattr(answer, "reason", None) for answer in answers] == [RejectReason.BUSY] * 8
    assert waited == [bad]


async def test_a_batch_is_answered_line_by_line() -> None:
    network, window = await start()
    devices = [await ready(network, window, number) for number in range(3)]
    await network.advance_to(window.round_one_opens)
    batch = [device.first(0)[0] for device in devices]
    own = new_report_id(window.window_id, device_digest(0), SystemRandom())
    batch.insert(1, replace(batch[0], report_id=own))

    answers = await network.core(0).service.upload([*batch, batch[0]])

    assert [reason(answer) for answer in answers] == [None, RejectReason.BAD_SEAL, None, None, None]
    assert [answer.report_id for answer in answers] == [one.report_id for one in [*batch, batch[0]]]


async def test_a_full_store_says_busy_and_a_broken_one_promises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    network, window = await start()
    device = await ready(network, window)
    await network.advance_to(window.round_one_opens)
    store = network.core(0).context.store

    async def busy(_: object) -> None:
        raise StoreBusyError("full")

    async def broken(_: object) -> None:
        raise StoreError("disk")

    monkeypatch.setattr(store, "add_instalments", busy)
    [answer, _] = await device.send(device.first(0))
    monkeypatch.setattr(store, "add_instalments", broken)

    assert reason(answer) is RejectReason.BUSY
    assert await store.read(read_rejections, window.window_id) == {}, "the same bytes come again"
    with pytest.raises(StoreError):
        await device.send(device.first(0))


async def test_a_report_more_than_a_window_can_have_is_refused_as_of_a_closed_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A set of more than 2^30 cannot be sealed: the receipt of one report too many would be worth nothing."""
    monkeypatch.setattr("fleetcount_aggregator.storage.report_index.MAX_REPORTS_PER_WINDOW", 2)
    network, window = await start()
    devices = [await ready(network, window, number) for number in range(3)]
    await network.advance_to(window.round_one_opens)

    answers = await network.core(0).service.upload([device.first(0)[0] for device in devices])

    assert [reason(answer) for answer in answers] == [None, None, RejectReason.WINDOW_CLOSED]
    assert await network.core(0).context.store.read(read_rejections, window.window_id) == {
        RejectReason.WINDOW_CLOSED: 1
    }


async def test_a_device_cannot_open_sessions_without_end() -> None:
    network = Network(2, limits=Limits(smallest_min_batch_size=2, sessions_per_device=3))
    await network.start_all()
    service, aggregator = network.core(0).service, network.seats[0].aggregator
    requests = [
        new_session(aggregator, aggregator.hpke_keys[0], device_identity(0), START + 3_600, SystemRandom())[0]
        for _ in range(5)
    ]

    answers = await service.open_sessions(requests)
    again = await service.open_sessions(requests[:1])

    assert [isinstance(answer, SessionAccepted) for answer in answers] == [True, True, True, False, False]
    assert {answer.reason for answer in answers if isinstance(answer, SessionRefused)} == {RejectReason.OVER_QUOTA}
    assert list(again) == list(answers[:1])


async def test_an_expired_session_is_unknown() -> None:
    network, window = await start(**AROUND_THE_HOUR)
    device = TestDevice(network, window, 0)
    aggregator = network.seats[0].aggregator
    request, opening = new_session(
        aggregator, aggregator.hpke_keys[0], device_identity(0), START + 3_600, SystemRandom()
    )
    [accepted] = await network.core(0).service.open_sessions([request])
    assert isinstance(accepted, SessionAccepted)
    device.secrets = [opening.finish(accepted)] * 2

    await network.advance_to(START + 3_599)
    await network.look_after_all()
    await network.advance_to(START + 3_600)

    [answer] = await network.core(0).service.upload([device.first(0)[0]])
    assert reason(answer) is RejectReason.UNKNOWN_SESSION


async def test_half_pairs_are_out_everywhere_and_counted() -> None:
    network, window = await start()
    devices = [await ready(network, window, number) for number in range(4)]
    await network.advance_to(window.round_one_opens)
    for device in devices:
        await device.send(device.first(0))
    await network.advance_to(window.round_one_closes)
    for device in devices[:2]:
        await device.send(device.second(0, 1))
    await devices[2].send(devices[2].second(0, 1), to=[0])

    await network.run_to_the_end(window)

    leader, helper = [
        await network.core(position).context.store.read(read_rejections, window.window_id) for position in range(2)
    ]
    assert leader == {RejectReason.HALF_PAIR: 1, RejectReason.MISSING_AT_PEER: 1}
    assert helper == {RejectReason.HALF_PAIR: 2}
