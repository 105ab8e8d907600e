"""An aggregator that does not keep to the protocol: refused by name, and never a second set, draw or record."""

import asyncio
import contextlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fleetcount_aggregator.agreement.helper_batches import _MOST_AT_ONCE
from fleetcount_aggregator.agreement.report_set import close_intake
from fleetcount_aggregator.agreement.verification import kept_seeds
from fleetcount_aggregator.memory.installed import InstalledWindow
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.release.noise import SystemNoise, set_sum
from fleetcount_aggregator.release.record import WindowTerms, record_bytes
from fleetcount_aggregator.storage import rows
from fleetcount_aggregator.storage.database import SealedDatabase
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.row_types import BatchRow, ReportVerdict
from fleetcount_aggregator.storage.rows import (
    raise_high_water,
    read_batches,
    read_high_water,
    read_included,
    read_ledger,
    read_step,
)
from fleetcount_aggregator.verification.share_arithmetic import sum_reports
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.errors import PeerProblem, RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, WindowId
from fleetcount_protocol.messages import (
    AbortWindow,
    BatchProposal,
    BatchReply,
    CommitQuery,
    FinishBatch,
    FinishedRecord,
    InstallQuestion,
    NoisedShare,
    OpenQuery,
    RecordProposal,
    SealSet,
    SetAgreed,
    SetDiffers,
    WindowState,
    WindowStatus,
)
from fleetcount_protocol.release.chain import ChainLink
from fleetcount_protocol.release.commitments import commit_to, leaf_digests, set_root
from fleetcount_protocol.release.record import decode_record
from fleetcount_protocol.vdaf.field import FIELD64
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import Network, SimulatedCrashError, answer_all
from tests.support.memory_peers import MemoryPeer
from tests.support.stores import StoreFolder, copied

ALPHA, BETA, GAMMA = AggregatorId("alpha"), AggregatorId("beta"), AggregatorId("gamma")
COINS = [(0, 1), (2, 2), (0, 3), (0, 4)]


async def stopped_at(failpoint: str, count: int = 2) -> tuple[Network, Window]:
    """Run a window until the leader reaches a point, and leave the helpers there, for the test to play the leader."""
    network = Network(count)
    await network.start_all()
    window = await network.ask(values=4)
    await answer_all(network, window, COINS)
    await network.stop(0)
    await network.start(0, failpoint)
    network.supervised = False
    await network.advance_to(window.round_two_closes)
    with pytest.raises(SimulatedCrashError):
        await network.core(0).scheduler.look_after(network.core(0).context.windows[window.window_id])
    return network, window


async def refusal(call: object) -> PeerProblem:
    with pytest.raises(PeerRefusalError) as caught:
        await call  # type: ignore[misc]  # every caller passes a coroutine.
    return caught.value.problem


async def accepted(network: Network, window: Window) -> list[tuple[bytes, Digest]]:
    """The reports accepted at the helper, ascending, with the digests of their public shares."""
    store = network.core(1).context.store
    ids = (await store.complete_reports(window.window_id)).ids
    rows = await store.read(read_batches, window.window_id)
    found = [
        (ids.at(row.positions[place : place + 1]), Digest(row.share_digests[32 * place : 32 * place + 32]))
        for row in rows
        for place in range(len(row.positions))
        if row.verdicts[place] in (ReportVerdict.VERIFIED, ReportVerdict.ACCEPTED)
    ]
    return sorted(found)


async def held(network: Network, window: Window) -> list[bytes]:
    """The ids of the complete reports of the helper, whose intake is closed now."""
    context = network.core(1).context
    await close_intake(context.windows, window.window_id)
    ids = (await context.store.complete_reports(window.window_id)).ids.joined
    return [ids[at : at + 16] for at in range(0, len(ids), 16)]


def seal_of(window: Window, items: Sequence[tuple[bytes, Digest]]) -> SealSet:
    """A set by its leaves alone: what a leader says first."""
    leaves = leaf_digests(window.window_id, ((ReportId(one), digest) for one, digest in items))
    return SealSet(window_id=window.window_id, leaf_digests=leaves)


def digest_of(window: Window, items: Sequence[tuple[bytes, Digest]]) -> Digest:
    return set_root(window.window_id, seal_of(window, items).leaf_digests)


def joined(items: Sequence[tuple[bytes, Digest]]) -> bytes:
    return b"".join(one for one, _ in items)


def proposed(window: Window, number: int, *items: tuple[bytes, Digest]) -> BatchProposal:
    digests = b"".join(digest for _, digest in items)
    return BatchProposal(
        window_id=window.window_id,
        batch=number,
        report_ids=joined(items),
        share_digests=digests,
        verifier_shares=b"x" * len(items),
    )


async def sealed(network: Network, window: Window) -> Digest:
    digest = (await network.core(1).helper.status(window.window_id)).set_digest
    assert digest is not None
    return digest


async def test_a_smaller_set_the_second_time_is_refused() -> None:
    network, window = await stopped_at("leader.after_helpers_sealed")
    items = await accepted(network, window)
    smaller = seal_of(window, items[1:])

    for one in (smaller, replace(smaller, accepted=joined(items[1:]))):
        assert await refusal(network.core(1).helper.seal_set(ALPHA, one)) is PeerProblem.CONFLICT


async def test_the_same_set_again_is_answered_again() -> None:
    network, window = await stopped_at("leader.after_helpers_sealed")
    items = await accepted(network, window)
    same, agreed = seal_of(window, items), SetAgreed(window_id=window.window_id, set_digest=digest_of(window, items))

    for again in (same, same, replace(same, accepted=joined(items))):
        assert await network.core(1).helper.seal_set(ALPHA, again) == agreed


async def test_a_set_below_the_minimum_is_aborted_by_the_helper_itself() -> None:
    network, window = await stopped_at("leader.after_seal")
    items = (await accepted(network, window))[:1]

    assert await refusal(named(network, window, items)) is PeerProblem.TOO_FEW
    status = await network.core(1).helper.status(window.window_id)
    assert (status.state, status.abort_reason) == (WindowState.ABORTED, "too_few_reports")


async def named(network: Network, window: Window, items: Sequence[tuple[bytes, Digest]]) -> SetAgreed | SetDiffers:
    """Seal a set at the helper as a leader does, naming what it asks for."""
    seal = seal_of(window, items)
    answer = await network.core(1).helper.seal_set(ALPHA, seal)
    if isinstance(answer, SetAgreed):
        return answer
    bits = int.from_bytes(answer.leaves)
    asked = [one for one in items if bits >> 255 - one[0][0] & 1]
    return await network.core(1).helper.seal_set(ALPHA, replace(seal, accepted=joined(asked)))


async def test_a_set_with_an_unknown_report_or_another_digest_is_refused() -> None:
    network, window = await stopped_at("leader.after_seal")
    items = await accepted(network, window)
    good = seal_of(window, items)
    other = seal_of(window, [(items[0][0], Digest(bytes(32))), *items[1:]])
    more = seal_of(window, [*items, (b"\xff" * 16, Digest(bytes(32)))])
    sets = [
        replace(good, accepted=joined(items)),  # Names for leaves that are the same here.
        replace(other, accepted=joined(items[:1])),
        replace(other, accepted=joined(items)),
        replace(more, accepted=b"\xff" * 16),
    ]

    problems = [await refusal(network.core(1).helper.seal_set(ALPHA, one)) for one in sets]

    assert problems == [PeerProblem.DISAGREES] * 4
    assert (await network.core(1).helper.status(window.window_id)).set_digest is None


async def test_what_is_added_is_the_sealed_set_whatever_arrives_while_it_is_sealed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leader finishes a batch while it seals a set without it: accepted behind the check, it would be in the sum."""
    monkeypatch.setattr("fleetcount_aggregator.agreement.leader_batches.batch_size", lambda _: 3)
    network, window = await stopped_at("leader.after_batch")
    leader, helper = network.core(0).context, network.core(1)
    installed = leader.windows[window.window_id]
    # The second batch may have been under way at the crash: then it is taken now, up to the same point.
    with contextlib.suppress(SimulatedCrashError):
        await network.core(0).leader._batches.run(installed)
    items = await accepted(network, window)
    [_, second] = await helper.context.store.read(read_batches, window.window_id)
    late = await reopened(network, window, second)
    items = [item for item in items if item[0] not in late]
    read, racing = helper.context.store.read, []

    async def read_and_race(work: Any, *args: Any) -> Any:
        found = await read(work, *args)
        if work is read_batches and not racing:
            racing.append(asyncio.create_task(helper.helper.finish_batch(ALPHA, late[next(iter(late))])))
            # It may wait for what seals the set: then it comes after, and is refused.
            await asyncio.wait(racing, timeout=1)
        return found

    monkeypatch.setattr(helper.context.store, "read", read_and_race)

    await named(network, window, items)

    [late_answer] = await asyncio.gather(*racing, return_exceptions=True)
    assert not isinstance(late_answer, BaseException) or "not_yet" in str(late_answer)
    in_sum = await helper.context.store.read(read_included, window.window_id)
    ids = (await helper.context.store.complete_reports(window.window_id)).ids
    assert in_sum is not None
    assert sorted(ids.joined[16 * at : 16 * at + 16] for at, one in enumerate(in_sum) if one) == [
        one for one, _ in items
    ]
    total = await set_sum(helper.context.store, helper.context.workers, helper.context.windows[window.window_id])
    positions = ids.find(joined(items))
    source = (await helper.context.store.complete_reports(window.window_id)).source(positions)
    expected = sum_reports(helper.context.windows[window.window_id].setting, source)
    assert FIELD64.encode_vector(total) == expected


async def reopened(network: Network, window: Window, row: BatchRow) -> dict[bytes, FinishBatch]:
    """Make a finished batch of the helper one that is only proposed; return the messages that finish it, by report."""
    helper = network.core(1).context
    seeds = kept_seeds(helper.store, helper.windows[window.window_id], row)

    def undo(db: SealedDatabase) -> None:
        values = window.window_id, f"finish/{row.number}"
        db.execute("DELETE FROM steps WHERE window_id = ? AND name = ?", values)
        rows._put_batch(db, window.window_id, replace(row, verdicts=bytes(len(row.verdicts))))

    await helper.store.write(undo)
    ids = (await helper.store.complete_reports(window.window_id)).ids.at(row.positions)
    finish = FinishBatch(window_id=window.window_id, batch=row.number, report_ids=ids, messages=seeds)
    return {ids[16 * at : 16 * at + 16]: finish for at in range(len(row.positions))}


async def test_only_the_aggregators_of_a_window_see_its_status() -> None:
    """Its set's digest, tried against the reports that passed a broker, would tell which and how many were accepted."""
    network, window = await stopped_at("leader.after_helpers_sealed")
    helper = network.core(1).helper

    assert (await helper.status(window.window_id, ALPHA)).set_digest == await sealed(network, window)
    assert await refusal(helper.status(window.window_id, GAMMA)) is PeerProblem.UNKNOWN_WINDOW


async def test_a_proposal_before_the_windows_close_is_refused_and_closes_nothing() -> None:
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4)
    await network.advance_to(window.round_two_closes - 1)
    proposal = proposed(window, 0)

    assert await refusal(network.core(1).helper.propose_batch(ALPHA, proposal)) is PeerProblem.NOT_YET
    assert (await network.core(1).helper.status(window.window_id)).state in (
        WindowState.ANNOUNCED,
        WindowState.COLLECTING,
    )


async def test_another_proposal_under_the_same_number_is_refused() -> None:
    network, window = await stopped_at("leader.after_proposals")
    other = proposed(window, 0)

    assert await refusal(network.core(1).helper.propose_batch(ALPHA, other)) is PeerProblem.CONFLICT


async def test_a_report_in_a_second_batch_is_refused() -> None:
    network, window = await stopped_at("leader.after_proposals")
    [first, *_] = await accepted(network, window)
    again = proposed(window, 7, first)

    assert await refusal(network.core(1).helper.propose_batch(ALPHA, again)) is PeerProblem.CONFLICT


async def test_batches_without_a_report_of_ours_are_answered_and_leave_no_row_and_no_step() -> None:
    network, window = await stopped_at("leader.after_close")
    helper, store = network.core(1).helper, network.core(1).context.store
    made_up = [(number.to_bytes(16), Digest(bytes(32))) for number in range(40)]

    for number, item in enumerate(made_up):
        reply = await helper.propose_batch(ALPHA, proposed(window, number, item))
        assert reply.reasons == bytes([RejectReason.MISSING_AT_PEER.value])
        assert not reply.verifier_shares
        decision = await helper.finish_batch(
            ALPHA, FinishBatch(window_id=window.window_id, batch=number, report_ids=b"", messages=b"")
        )
        assert decision.accepted == b""
    unheld = FinishBatch(window_id=window.window_id, batch=1, report_ids=made_up[1][0], messages=bytes(32))

    assert await refusal(helper.finish_batch(ALPHA, unheld)) is PeerProblem.NOT_YET
    assert list(await store.read(read_batches, window.window_id)) == []
    assert [await store.read(read_step, window.window_id, f"{step}/3") for step in ("propose", "finish")] == [
        None,
        None,
    ]


@pytest.mark.parametrize("broken", ["verification", "store"])
async def test_a_proposal_that_could_not_be_stored_leaves_its_reports_free(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    network, window = await stopped_at("leader.after_close")
    helper = network.core(1)

    async def fails(*_: Any) -> Any:
        raise StoreError("the disk is full")

    await close_intake(helper.context.windows, window.window_id)
    ids = (await helper.context.store.complete_reports(window.window_id)).ids.joined
    first = (ids[:16], Digest(bytes(32)))
    with monkeypatch.context() as broken_machine:
        place = (helper.context.workers, "run") if broken == "verification" else (helper.context.store, "apply")
        broken_machine.setattr(*place, fails)
        with pytest.raises(StoreError):
            await helper.helper.propose_batch(ALPHA, proposed(window, 0, first))

    assert isinstance(await helper.helper.propose_batch(ALPHA, proposed(window, 1, first)), BatchReply)
    assert await refusal(helper.helper.propose_batch(ALPHA, proposed(window, 0, first))) is PeerProblem.CONFLICT


async def test_a_leader_that_gives_up_and_asks_again_finds_the_work_going_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification may take longer than a call: were it begun anew each time, it would never end."""
    network, window = await stopped_at("leader.after_close")
    helper = network.core(1)
    begun, gate = [], asyncio.Event()
    run = helper.context.workers.run

    async def slow(*arguments: Any) -> Any:
        begun.append(arguments)
        await gate.wait()
        return await run(*arguments)

    monkeypatch.setattr(helper.context.workers, "run", slow)
    ids = (await helper.context.store.complete_reports(window.window_id)).ids.joined
    request = BatchProposal(
        window_id=window.window_id, batch=0, report_ids=ids, share_digests=bytes(2 * len(ids)), verifier_shares=ids
    )
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await helper.helper.propose_batch(ALPHA, request)
    other = replace(request, share_digests=b"x" * (2 * len(ids)))
    waiting = [asyncio.create_task(helper.helper.propose_batch(ALPHA, one)) for one in (request, other)]
    await asyncio.sleep(0)
    gate.set()

    reply, refused = await asyncio.gather(*waiting, return_exceptions=True)

    assert len(begun) == 1
    assert isinstance(reply, BatchReply)
    assert reply.report_ids == ids
    assert isinstance(refused, PeerRefusalError)
    assert refused.problem is PeerProblem.CONFLICT


async def test_too_many_batches_at_once_are_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetcount_aggregator.agreement.helper_batches._MOST_AT_ONCE", 1)
    network, window = await stopped_at("leader.after_close")
    ids = await held(network, window)
    requests = [proposed(window, number, (ids[number], Digest(bytes(32)))) for number in (1, 2)]

    answers = await asyncio.gather(
        *(network.core(1).helper.propose_batch(ALPHA, one) for one in requests), return_exceptions=True
    )

    assert isinstance(answers[0], BatchReply)
    assert isinstance(answers[1], PeerRefusalError)
    assert answers[1].problem is PeerProblem.BUSY
    assert isinstance(await network.core(1).helper.propose_batch(ALPHA, requests[1]), BatchReply)


async def test_the_batches_of_one_leader_leave_room_for_those_of_another() -> None:
    network, window = await stopped_at("leader.after_close")
    helper = network.core(1)
    other = SimpleNamespace(window_id=WindowId(b"o" * 32), leader_id=GAMMA)
    helper.context.windows._known[other.window_id] = cast("InstalledWindow", other)
    batches = helper.helper._batches
    with ExitStack() as many:
        for _ in range(_MOST_AT_ONCE):
            many.enter_context(batches._admission(helper.context.windows[other.window_id]))
        with pytest.raises(PeerRefusalError, match="busy"), batches._admission(helper.context.windows[other.window_id]):
            pass

        [own, *_] = await held(network, window)
        answer = await helper.helper.propose_batch(ALPHA, proposed(window, 1, (own, Digest(bytes(32)))))

    assert isinstance(answer, BatchReply)


async def test_a_commitment_asked_for_again_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begun anew at every call, a sum that takes longer than a call would never be there."""
    network, window = await stopped_at("leader.after_helpers_sealed")
    helper, query = (
        network.core(1).helper,
        CommitQuery(window_id=window.window_id, set_digest=await sealed(network, window)),
    )
    begun, gate = [], asyncio.Event()

    async def slow(*arguments: Any) -> Any:
        begun.append(arguments)
        await gate.wait()
        return await set_sum(*arguments)

    monkeypatch.setattr("fleetcount_aggregator.release.steps.set_sum", slow)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await helper.commit(ALPHA, query)
    gate.set()
    made = await asyncio.gather(helper.commit(ALPHA, query), helper.commit(ALPHA, query))

    assert made[0] == made[1]
    assert len(begun) == 1


async def test_messages_for_reports_outside_the_batch_are_refused() -> None:
    network, window = await stopped_at("leader.after_combine")
    request = FinishBatch(window_id=window.window_id, batch=0, report_ids=bytes(16), messages=bytes(32))

    assert await refusal(network.core(1).helper.finish_batch(ALPHA, request)) is PeerProblem.MALFORMED


@pytest.mark.parametrize("size", [0, 31, 64])
async def test_messages_of_another_size_are_refused(size: int) -> None:
    """Not compared by their first bytes with what they should be."""
    network, window = await stopped_at("leader.after_combine")
    ids = joined(await accepted(network, window))
    request = FinishBatch(window_id=window.window_id, batch=0, report_ids=ids, messages=bytes(size * len(ids) // 16))

    assert await refusal(network.core(1).helper.finish_batch(ALPHA, request)) is PeerProblem.MALFORMED


async def test_a_wrong_verifier_message_is_not_accepted() -> None:
    network, window = await stopped_at("leader.after_combine")
    ids = joined(await accepted(network, window))
    wrong = FinishBatch(window_id=window.window_id, batch=0, report_ids=ids, messages=bytes(2 * len(ids)))

    decision = await network.core(1).helper.finish_batch(ALPHA, wrong)

    assert decision.accepted == b""


@pytest.mark.parametrize("caller", [BETA, GAMMA])
async def test_only_the_leader_drives(caller: AggregatorId) -> None:
    network, window = await stopped_at("leader.after_helpers_sealed", count=3)
    helper, digest = network.core(1).helper, await sealed(network, window)
    calls = [
        helper.propose_batch(caller, proposed(window, 0)),
        helper.finish_batch(caller, FinishBatch(window_id=window.window_id, batch=0, report_ids=b"", messages=b"")),
        helper.seal_set(caller, seal_of(window, [])),
        helper.commit(caller, CommitQuery(window_id=window.window_id, set_digest=digest)),
        helper.abort(caller, AbortWindow(window_id=window.window_id, reason="because")),
        helper.install_question(
            caller, InstallQuestion(signed=network.question()[0], seed=network.question()[1], orders=())
        ),
    ]

    assert [await refusal(call) for call in calls] == [PeerProblem.NOT_LEADER] * len(calls)
    assert (await helper.status(window.window_id)).state is WindowState.RELEASING


async def test_no_commitment_for_another_set_and_no_opening_before_every_commitment() -> None:
    network, window = await stopped_at("leader.after_helpers_sealed")
    helper, digest = network.core(1).helper, await sealed(network, window)

    other = await refusal(helper.commit(ALPHA, CommitQuery(window_id=window.window_id, set_digest=Digest(bytes(32)))))
    early = await refusal(
        helper.open_share(ALPHA, OpenQuery(window_id=window.window_id, set_digest=digest, commitments=()))
    )
    own = await helper.commit(ALPHA, CommitQuery(window_id=window.window_id, set_digest=digest))
    alone = await refusal(
        helper.open_share(ALPHA, OpenQuery(window_id=window.window_id, set_digest=digest, commitments=(own,)))
    )

    assert (other, early, alone) == (PeerProblem.CONFLICT, PeerProblem.NOT_YET, PeerProblem.DISAGREES)


async def opened(network: Network, window: Window) -> tuple[OpenQuery, NoisedShare, NoisedShare]:
    """Let the helper open against a leader's share that the test makes up: all zeros."""
    helper, digest = network.core(1).helper, await sealed(network, window)
    made_up = NoisedShare(
        window_id=window.window_id, aggregator_id=ALPHA, set_digest=digest, vector=bytes(32), blind=bytes(32)
    )
    own = await helper.commit(ALPHA, CommitQuery(window_id=window.window_id, set_digest=digest))
    query = OpenQuery(window_id=window.window_id, set_digest=digest, commitments=(commit_to(made_up), own))
    return query, made_up, await helper.open_share(ALPHA, query)


async def test_a_second_list_of_commitments_is_refused() -> None:
    network, window = await stopped_at("leader.after_helpers_sealed")
    query, made_up, _ = await opened(network, window)
    adapted = replace(made_up, vector=b"\x01" + bytes(31))
    second = replace(query, commitments=(commit_to(adapted), query.commitments[1]))

    assert await refusal(network.core(1).helper.open_share(ALPHA, second)) is PeerProblem.CONFLICT


async def steered(network: Network, window: Window, target: list[int]) -> tuple[OpenQuery, NoisedShare, NoisedShare]:
    """Let the helper open against a leader's share that makes the public numbers exactly `target`."""
    helper, digest = network.core(1).helper, await sealed(network, window)
    installed = network.core(1).context.windows[window.window_id]
    own = await helper._steps._noised_share(installed, digest)
    vector = FIELD64.subtract_vectors([one % FIELD64.modulus for one in target], FIELD64.decode_vector(own.vector, 4))
    leader = NoisedShare(
        window_id=window.window_id,
        aggregator_id=ALPHA,
        set_digest=digest,
        vector=FIELD64.encode_vector(vector),
        blind=bytes(32),
    )
    query = OpenQuery(window_id=window.window_id, set_digest=digest, commitments=(commit_to(leader), commit_to(own)))
    return query, leader, await helper.open_share(ALPHA, query)


def proposal(network: Network, window: Window, shares: tuple[NoisedShare, ...], numbers: list[int]) -> RecordProposal:
    """Return a record that really follows from the numbers."""
    question = network.core(1).context.questions[window.question.question_id].asked
    first = ChainLink(previous=None, previous_index=None, missing=())
    terms = WindowTerms(chain=first, shape=question.shape, delta=question.delta)
    record = record_bytes(window.canonical, numbers, window.round_two_closes, terms)
    return RecordProposal(window_id=window.window_id, shares=shares, record=record)


async def test_a_share_that_was_not_committed_to_is_not_signed() -> None:
    network, window = await stopped_at("leader.after_helpers_sealed")
    _, leader, own = await steered(network, window, [1, 0, 1, 1])
    vector = FIELD64.decode_vector(leader.vector, 4)
    adapted = replace(leader, vector=FIELD64.encode_vector(FIELD64.add_vectors([vector, [1, 0, 0, 0]], 4)))
    helper = network.core(1).helper

    problem = await refusal(helper.sign_record(ALPHA, proposal(network, window, (adapted, own), [2, 0, 1, 1])))
    honest = await helper.sign_record(ALPHA, proposal(network, window, (leader, own), [1, 0, 1, 1]))

    assert problem is PeerProblem.DISAGREES
    assert honest.aggregator_id == BETA


@pytest.mark.parametrize(("number", "signed"), [(132, True), (133, False), (-128, True), (-129, False)])
async def test_numbers_beyond_reports_and_noise_are_not_signed(number: int, signed: bool) -> None:
    """Four reports; two noises of epsilon 1 stay within 64 each, all but surely."""
    network, window = await stopped_at("leader.after_helpers_sealed")
    _, leader, own = await steered(network, window, [number, 0, 0, 0])
    call = network.core(1).helper.sign_record(ALPHA, proposal(network, window, (leader, own), [number, 0, 0, 0]))

    if signed:
        assert (await call).aggregator_id == BETA
    else:
        assert await refusal(call) is PeerProblem.DISAGREES


async def test_requests_at_the_same_time_get_one_draw() -> None:
    network, window = await stopped_at("leader.after_helpers_sealed")
    network.core(1).context.host.noise = SystemNoise(SystemRandom())
    query = CommitQuery(window_id=window.window_id, set_digest=await sealed(network, window))

    commitments = await asyncio.gather(*(network.core(1).helper.commit(ALPHA, query) for _ in range(8)))

    assert len(set(commitments)) == 1


async def test_a_record_that_says_something_else_is_not_signed() -> None:
    network, window = await stopped_at("leader.after_open")
    leader, helper = network.core(0), network.core(1).helper
    digest = await sealed(network, window)
    shares = tuple(
        [await core._steps._noised_share(core._windows[window.window_id], digest) for core in (leader.helper, helper)]
    )
    record = decode_record(await leader.helper._steps.build(leader.context.windows[window.window_id], shares))
    lie = replace(record, cells=(replace(record.cells[0], raw=record.cells[0].raw + 1), *record.cells[1:]))
    late = replace(record, released_at=record.released_at + 10_000)

    for other in (lie, late):
        proposal = RecordProposal(window_id=window.window_id, shares=shares, record=other.canonical)
        assert await refusal(helper.sign_record(ALPHA, proposal)) is PeerProblem.DISAGREES
    honest = RecordProposal(window_id=window.window_id, shares=shares, record=record.canonical)
    assert (await helper.sign_record(ALPHA, honest)).aggregator_id == BETA


async def test_a_record_without_everybody_s_signature_is_not_taken() -> None:
    network, window = await stopped_at("leader.before_release")
    step = await network.core(1).context.store.read(read_step, window.window_id, "sign")
    assert step is not None
    forged = FinishedRecord(window_id=window.window_id, record=step.request, signatures=(bytes(64), step.answer))

    assert await refusal(network.core(1).helper.deliver_record(ALPHA, forged)) is PeerProblem.DISAGREES
    assert (await network.core(1).helper.status(window.window_id)).state is WindowState.RELEASING


async def test_a_released_window_cannot_be_aborted() -> None:
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4)
    await answer_all(network, window, COINS)
    await network.run_to_the_end(window)

    state = await network.core(1).helper.abort(ALPHA, AbortWindow(window_id=window.window_id, reason="regret"))

    assert state is WindowState.RELEASED


async def test_a_restored_leader_gets_no_help() -> None:
    """The helper remembers how long the leader's ledger was; a copy from before is behind it."""
    network = Network(2)
    await network.start_all()
    first = await network.ask(values=4)
    await answer_all(network, first, COINS)
    await network.run_to_the_end(first)
    assert (await network.core(1).context.store.read(read_high_water))[ALPHA] == 1

    await network.stop(0)
    network.seats[0].give_store()
    await network.start(0)
    second = await ask_later(network)
    await answer_all(network, second, COINS, offset=50)
    await network.core(1).context.store.write(raise_high_water, ALPHA, 5)
    await network.run_to_the_end(second)

    answer = await network.core(0).service.release(second.window_id)
    assert (answer.state, answer.abort_reason) == (WindowState.ABORTED, "restored_backup")
    assert len(await network.core(1).context.store.read(read_ledger)) == 1


@pytest.mark.parametrize("asking", [0, 1], ids=["the leader asks", "the helper asks"])
async def test_a_peer_whose_later_answer_comes_first_is_not_taken_for_a_restored_one(
    monkeypatch: pytest.MonkeyPatch, asking: int
) -> None:
    """Of two releases at once, one asks before the other's debit and hears the answer after the other has heard."""
    network, real, overtaken = Network(2), MemoryPeer.status, list[int]()
    await network.start_all()
    window = await network.ask(values=4)
    await answer_all(network, window, COINS)

    async def status(self: Any, window_id: WindowId) -> WindowStatus:
        answer, asked = await real(self, window_id), (BETA, ALPHA)[asking]
        if self._other.aggregator_id == asked and not overtaken:
            overtaken.append(answer.ledger_rows)
            await network.core(asking).context.store.write(raise_high_water, asked, answer.ledger_rows + 1)
        return answer

    monkeypatch.setattr(MemoryPeer, "status", status)
    await network.run_to_the_end(window)

    assert overtaken
    assert (await network.core(0).service.release(window.window_id)).state is WindowState.RELEASED


async def test_a_restored_helper_gets_no_help() -> None:
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4)
    await answer_all(network, window, COINS)
    await network.core(0).context.store.write(raise_high_water, BETA, 3)

    await network.run_to_the_end(window)

    answer = await network.core(0).service.release(window.window_id)
    assert (answer.state, answer.abort_reason) == (WindowState.ABORTED, "restored_backup")
    assert not await network.core(0).context.store.read(read_ledger)


async def test_a_helper_restored_in_the_middle_of_a_release_ends_it_in_public() -> None:
    """Its store is a copy from before its noise was drawn: a second draw is never opened, and nobody waits for ever."""
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4)
    await answer_all(network, window, COINS)
    copies: list[StoreFolder] = []

    def copy_then_die(caller: str, other: str, name: str) -> None:
        del caller, other
        if name == "commit":
            copies.append(copied(network.seats[1].store_path))
        if name == "sign_record" and network.crashed == [] and len(copies) == 1:
            network.core(0).context.host.failpoints.tripped = True
            raise SimulatedCrashError(name)

    network.before = copy_then_die
    await network.advance_to(window.round_two_closes)
    await network.look_after_all()
    assert (await network.core(1).context.store.read(read_step, window.window_id, "open")) is not None
    await network.stop(1)
    network.seats[1].give_store(copies[0])
    await network.start(1)
    await network.start_crashed()
    network.before = lambda *_: None

    await network.run_to_the_end(window)

    answers = [await network.core(p).service.release(window.window_id) for p in range(2)]
    assert [answer.state for answer in answers] == [WindowState.ABORTED] * 2
    assert answers[0].abort_reason == "restored_backup"


async def ask_later(network: Network) -> Window:
    now = int(network.clock.now()) // 10 * 10
    return await network.ask(
        values=4,
        name="later",
        round_one_opens=now + 10,
        round_one_closes=now + 20,
        round_two_closes=now + 30,
        expiry=now + 86_400,
    )
