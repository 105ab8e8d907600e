"""An aggregator that does not keep to the protocol: refused by name, and never a second set, draw or record."""

import asyncio
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from fleetcount_aggregator.memory_store import MemoryStore
from fleetcount_aggregator.noise import SystemNoise
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError
from fleetcount_aggregator.publication import record_bytes
from fleetcount_aggregator.states import State
from fleetcount_aggregator.store import ReportStatus, TaskChange, Verdict
from fleetcount_aggregator.verification import open_verification
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.field import FIELD64
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId
from fleetcount_protocol.messages import (
    AbortTask,
    BatchProposal,
    CommitQuery,
    FinishBatch,
    FinishedRecord,
    InstallTask,
    NoisedShare,
    OpenQuery,
    ProposedReport,
    RecordProposal,
    SealSet,
    VerifierMessage,
)
from fleetcount_protocol.prio3 import VerifyState
from fleetcount_protocol.release import commit_to, decode_record
from fleetcount_protocol.set_digest import set_digest
from fleetcount_protocol.task import Task
from fleetcount_protocol.task_rules import prio3_for

from tests.support.aggregators import Network, SimulatedCrashError, answer_all

ALPHA, BETA, GAMMA = AggregatorId("alpha"), AggregatorId("beta"), AggregatorId("gamma")
COINS = [(0, 1), (2, 2), (0, 3), (0, 4)]


async def stopped_at(failpoint: str, count: int = 2) -> tuple[Network, Task]:
    """Run a task until the leader reaches a point, and leave the helpers there, for the test to play the leader."""
    network = Network(count)
    await network.start_all()
    task = await network.ask(values=4)
    await answer_all(network, task, COINS)
    await network.stop(0)
    await network.start(0, failpoint)
    network.supervised = False
    await network.advance_to(task.round_two_closes)
    with pytest.raises(SimulatedCrashError):
        await network.core(0).watch.look_after(network.core(0).party.tasks[task.task_id])
    return network, task


async def refusal(call: object) -> PeerProblem:
    with pytest.raises(PeerRefusalError) as caught:
        await call  # type: ignore[misc]  # every caller passes a coroutine.
    return caught.value.problem


async def accepted(network: Network, task: Task) -> list[tuple[ReportId, Digest]]:
    rows = await network.core(1).party.store.reports(task.task_id)
    return [(row.report_id, row.public_share_digest) for row in rows if row.public_share_digest is not None]


async def sealed(network: Network, task: Task) -> Digest:
    digest = (await network.core(1).helper.status(task.task_id)).set_digest
    assert digest is not None
    return digest


async def test_a_smaller_set_the_second_time_is_refused() -> None:
    network, task = await stopped_at("leader.after_helpers_sealed")
    items = await accepted(network, task)
    smaller = SealSet(
        task_id=task.task_id, accepted=tuple(one for one, _ in items[1:]), set_digest=set_digest(items[1:])
    )

    assert await refusal(network.core(1).helper.seal_set(ALPHA, smaller)) is PeerProblem.CONFLICT


async def test_the_same_set_again_is_answered_again() -> None:
    network, task = await stopped_at("leader.after_helpers_sealed")
    items = await accepted(network, task)
    same = SealSet(task_id=task.task_id, accepted=tuple(one for one, _ in items), set_digest=set_digest(items))

    assert (await network.core(1).helper.seal_set(ALPHA, same)).set_digest == set_digest(items)


async def test_a_set_below_the_minimum_is_aborted_by_the_helper_itself() -> None:
    network, task = await stopped_at("leader.after_seal")
    items = (await accepted(network, task))[:1]
    tiny = SealSet(task_id=task.task_id, accepted=tuple(one for one, _ in items), set_digest=set_digest(items))

    assert await refusal(network.core(1).helper.seal_set(ALPHA, tiny)) is PeerProblem.TOO_FEW
    status = await network.core(1).helper.status(task.task_id)
    assert (status.state, status.abort_reason) == (State.ABORTED, "too_few_reports")


async def test_a_set_with_an_unknown_report_or_another_digest_is_refused() -> None:
    network, task = await stopped_at("leader.after_seal")
    items = await accepted(network, task)
    ids = tuple(one for one, _ in items)
    stranger = ReportId(b"\xff" * 16)
    sets = [
        SealSet(task_id=task.task_id, accepted=(*ids, stranger), set_digest=set_digest(items)),
        SealSet(task_id=task.task_id, accepted=ids, set_digest=Digest(bytes(32))),
    ]

    problems = [await refusal(network.core(1).helper.seal_set(ALPHA, one)) for one in sets]

    assert problems == [PeerProblem.DISAGREES] * 2
    assert (await network.core(1).helper.status(task.task_id)).set_digest is None


async def test_what_is_added_is_the_sealed_set_whatever_arrives_while_it_is_sealed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leader finishes a batch while it seals a set without it: accepted behind the check, it would be in the sum."""
    network, task = await stopped_at("leader.after_combine")
    leader, helper = network.core(0).party, network.core(1)
    rows = await leader.store.reports(task.task_id, status=ReportStatus.VERIFIED)
    states = [open_verification(leader, task.task_id, row.report_id, row.verification).state for row in rows]
    seeds = [VerifyState.decode(prio3_for(task), state).joint_rand_seed for state in states]
    every = [VerifierMessage(report_id=row.report_id, message=seed) for row, seed in zip(rows, seeds, strict=True)]
    first = rows[:-1]
    await helper.party.store.apply(
        TaskChange(
            task_id=task.task_id,
            required=frozenset({State.AGREEING}),
            verdicts=tuple(Verdict(report_id=row.report_id, status=ReportStatus.ACCEPTED, batch=7) for row in first),
        )
    )
    items = [(row.report_id, row.public_share_digest) for row in first if row.public_share_digest is not None]
    finish = FinishBatch(task_id=task.task_id, batch=0, messages=(every[-1],))
    read, racing = helper.party.store.reports, []

    async def reports(*arguments: Any, **options: Any) -> Any:
        found = await read(*arguments, **options)
        if not racing:
            racing.append(asyncio.create_task(helper.helper.finish_batch(ALPHA, finish)))
            for _ in range(50):
                await asyncio.sleep(0)
        return found

    monkeypatch.setattr(helper.party.store, "reports", reports)
    seal = SealSet(task_id=task.task_id, accepted=tuple(one for one, _ in items), set_digest=set_digest(items))

    await helper.helper.seal_set(ALPHA, seal)

    await asyncio.gather(*racing)
    assert racing
    accepted_now = await read(task.task_id, status=ReportStatus.ACCEPTED)
    assert {row.report_id for row in accepted_now} == set(seal.accepted)


async def test_only_the_aggregators_of_a_task_see_its_status() -> None:
    """Its set's digest, tried against the reports that passed a broker, would tell which and how many were accepted."""
    network, task = await stopped_at("leader.after_helpers_sealed")
    helper = network.core(1).helper

    assert (await helper.status(task.task_id, ALPHA)).set_digest == await sealed(network, task)
    assert await refusal(helper.status(task.task_id, GAMMA)) is PeerProblem.UNKNOWN_TASK


async def test_a_proposal_before_the_windows_close_is_refused_and_closes_nothing() -> None:
    network = Network(2)
    await network.start_all()
    task = await network.ask(values=4)
    await network.advance_to(task.round_two_closes - 1)
    proposal = BatchProposal(task_id=task.task_id, batch=0, reports=())

    assert await refusal(network.core(1).helper.propose_batch(ALPHA, proposal)) is PeerProblem.NOT_YET
    assert (await network.core(1).helper.status(task.task_id)).state in (State.ANNOUNCED, State.COLLECTING)


async def test_another_proposal_under_the_same_number_is_refused() -> None:
    network, task = await stopped_at("leader.after_proposals")
    other = BatchProposal(task_id=task.task_id, batch=0, reports=())

    assert await refusal(network.core(1).helper.propose_batch(ALPHA, other)) is PeerProblem.CONFLICT


async def test_a_report_in_a_second_batch_is_refused() -> None:
    network, task = await stopped_at("leader.after_proposals")
    [row, *_] = await network.core(1).party.store.reports(task.task_id)
    assert row.public_share_digest is not None
    report = ProposedReport(report_id=row.report_id, public_share_digest=row.public_share_digest, verifier_share=b"x")
    again = BatchProposal(task_id=task.task_id, batch=7, reports=(report,))

    assert await refusal(network.core(1).helper.propose_batch(ALPHA, again)) is PeerProblem.CONFLICT


async def test_messages_for_reports_outside_the_batch_are_refused() -> None:
    network, task = await stopped_at("leader.after_combine")
    stranger = VerifierMessage(report_id=ReportId(bytes(16)), message=bytes(32))
    request = FinishBatch(task_id=task.task_id, batch=0, messages=(stranger,))

    assert await refusal(network.core(1).helper.finish_batch(ALPHA, request)) is PeerProblem.MALFORMED


async def test_a_wrong_verifier_message_is_not_accepted() -> None:
    network, task = await stopped_at("leader.after_combine")
    rows = await network.core(1).party.store.reports(task.task_id)
    wrong = tuple(VerifierMessage(report_id=row.report_id, message=bytes(32)) for row in rows)

    decision = await network.core(1).helper.finish_batch(
        ALPHA, FinishBatch(task_id=task.task_id, batch=0, messages=wrong)
    )

    assert decision.accepted == ()


@pytest.mark.parametrize("caller", [BETA, GAMMA])
async def test_only_the_leader_drives(caller: AggregatorId) -> None:
    network, task = await stopped_at("leader.after_helpers_sealed", count=3)
    helper, digest = network.core(1).helper, await sealed(network, task)
    calls = [
        helper.propose_batch(caller, BatchProposal(task_id=task.task_id, batch=0, reports=())),
        helper.finish_batch(caller, FinishBatch(task_id=task.task_id, batch=0, messages=())),
        helper.seal_set(caller, SealSet(task_id=task.task_id, accepted=(), set_digest=digest)),
        helper.commit(caller, CommitQuery(task_id=task.task_id, set_digest=digest)),
        helper.abort(caller, AbortTask(task_id=task.task_id, reason="because")),
        helper.install_task(caller, InstallTask(signed_task=network.task()[0], verify_key=bytes(range(32)))),
    ]

    assert [await refusal(call) for call in calls] == [PeerProblem.NOT_LEADER] * len(calls)
    assert (await helper.status(task.task_id)).state is State.VERIFYING


async def test_no_commitment_for_another_set_and_no_opening_before_every_commitment() -> None:
    network, task = await stopped_at("leader.after_helpers_sealed")
    helper, digest = network.core(1).helper, await sealed(network, task)

    other = await refusal(helper.commit(ALPHA, CommitQuery(task_id=task.task_id, set_digest=Digest(bytes(32)))))
    early = await refusal(helper.open_share(ALPHA, OpenQuery(task_id=task.task_id, set_digest=digest, commitments=())))
    own = await helper.commit(ALPHA, CommitQuery(task_id=task.task_id, set_digest=digest))
    alone = await refusal(
        helper.open_share(ALPHA, OpenQuery(task_id=task.task_id, set_digest=digest, commitments=(own,)))
    )

    assert (other, early, alone) == (PeerProblem.CONFLICT, PeerProblem.NOT_YET, PeerProblem.DISAGREES)


async def opened(network: Network, task: Task) -> tuple[OpenQuery, NoisedShare, NoisedShare]:
    """Let the helper open against a leader's share that the test makes up: all zeros."""
    helper, digest = network.core(1).helper, await sealed(network, task)
    made_up = NoisedShare(
        task_id=task.task_id, aggregator_id=ALPHA, set_digest=digest, vector=bytes(32), blind=bytes(32)
    )
    own = await helper.commit(ALPHA, CommitQuery(task_id=task.task_id, set_digest=digest))
    query = OpenQuery(task_id=task.task_id, set_digest=digest, commitments=(commit_to(made_up), own))
    return query, made_up, await helper.open_share(ALPHA, query)


async def test_a_second_list_of_commitments_is_refused() -> None:
    network, task = await stopped_at("leader.after_helpers_sealed")
    query, made_up, _ = await opened(network, task)
    adapted = replace(made_up, vector=b"\x01" + bytes(31))
    second = replace(query, commitments=(commit_to(adapted), query.commitments[1]))

    assert await refusal(network.core(1).helper.open_share(ALPHA, second)) is PeerProblem.CONFLICT


async def steered(network: Network, task: Task, target: list[int]) -> tuple[OpenQuery, NoisedShare, NoisedShare]:
    """Let the helper open against a leader's share that makes the public numbers exactly `target`."""
    helper, digest = network.core(1).helper, await sealed(network, task)
    installed = network.core(1).party.tasks[task.task_id]
    own = await helper._releasing._noised_share(installed, digest)
    vector = FIELD64.subtract_vectors([one % FIELD64.modulus for one in target], FIELD64.decode_vector(own.vector, 4))
    leader = NoisedShare(
        task_id=task.task_id,
        aggregator_id=ALPHA,
        set_digest=digest,
        vector=FIELD64.encode_vector(vector),
        blind=bytes(32),
    )
    query = OpenQuery(task_id=task.task_id, set_digest=digest, commitments=(commit_to(leader), commit_to(own)))
    return query, leader, await helper.open_share(ALPHA, query)


def proposal(task: Task, shares: tuple[NoisedShare, ...], numbers: list[int]) -> RecordProposal:
    """Return a record that really follows from the numbers."""
    record = record_bytes(task.canonical, numbers, task.round_two_closes)
    return RecordProposal(task_id=task.task_id, shares=shares, record=record)


async def test_a_share_that_was_not_committed_to_is_not_signed() -> None:
    network, task = await stopped_at("leader.after_helpers_sealed")
    _, leader, own = await steered(network, task, [1, 0, 1, 1])
    vector = FIELD64.decode_vector(leader.vector, 4)
    adapted = replace(leader, vector=FIELD64.encode_vector(FIELD64.add_vectors([vector, [1, 0, 0, 0]], 4)))
    helper = network.core(1).helper

    problem = await refusal(helper.sign_record(ALPHA, proposal(task, (adapted, own), [2, 0, 1, 1])))
    honest = await helper.sign_record(ALPHA, proposal(task, (leader, own), [1, 0, 1, 1]))

    assert problem is PeerProblem.DISAGREES
    assert honest.aggregator_id == BETA


@pytest.mark.parametrize(("number", "signed"), [(132, True), (133, False), (-128, True), (-129, False)])
async def test_numbers_beyond_reports_and_noise_are_not_signed(number: int, signed: bool) -> None:
    """Four reports; two noises of epsilon 1 stay within 64 each, all but surely."""
    network, task = await stopped_at("leader.after_helpers_sealed")
    _, leader, own = await steered(network, task, [number, 0, 0, 0])
    call = network.core(1).helper.sign_record(ALPHA, proposal(task, (leader, own), [number, 0, 0, 0]))

    if signed:
        assert (await call).aggregator_id == BETA
    else:
        assert await refusal(call) is PeerProblem.DISAGREES


async def test_requests_at_the_same_time_get_one_draw() -> None:
    network, task = await stopped_at("leader.after_helpers_sealed")
    network.core(1).party.noise = SystemNoise(SystemRandom())
    query = CommitQuery(task_id=task.task_id, set_digest=await sealed(network, task))

    commitments = await asyncio.gather(*(network.core(1).helper.commit(ALPHA, query) for _ in range(8)))

    assert len(set(commitments)) == 1


async def test_a_record_that_says_something_else_is_not_signed() -> None:
    network, task = await stopped_at("leader.after_open")
    leader, helper = network.core(0), network.core(1).helper
    digest = await sealed(network, task)
    shares = tuple(
        [
            await core._releasing._noised_share(core._party.tasks[task.task_id], digest)
            for core in (leader.helper, helper)
        ]
    )
    record = decode_record(await leader.helper._releasing.build(leader.party.tasks[task.task_id], shares))
    lie = replace(record, cells=(replace(record.cells[0], raw=record.cells[0].raw + 1), *record.cells[1:]))
    late = replace(record, released_at=record.released_at + 10_000)

    for other in (lie, late):
        proposal = RecordProposal(task_id=task.task_id, shares=shares, record=other.canonical)
        assert await refusal(helper.sign_record(ALPHA, proposal)) is PeerProblem.DISAGREES
    honest = RecordProposal(task_id=task.task_id, shares=shares, record=record.canonical)
    assert (await helper.sign_record(ALPHA, honest)).aggregator_id == BETA


async def test_a_record_without_everybody_s_signature_is_not_taken() -> None:
    network, task = await stopped_at("leader.before_release")
    step = await network.core(1).party.store.step(task.task_id, "sign")
    assert step is not None
    forged = FinishedRecord(task_id=task.task_id, record=step.request, signatures=(bytes(64), step.answer))

    assert await refusal(network.core(1).helper.deliver_record(ALPHA, forged)) is PeerProblem.DISAGREES
    assert (await network.core(1).helper.status(task.task_id)).state is State.VERIFYING


async def test_a_released_task_cannot_be_aborted() -> None:
    network = Network(2)
    await network.start_all()
    task = await network.ask(values=4)
    await answer_all(network, task, COINS)
    await network.run_to_the_end(task)

    state = await network.core(1).helper.abort(ALPHA, AbortTask(task_id=task.task_id, reason="regret"))

    assert state is State.RELEASED


async def test_a_restored_leader_gets_no_help() -> None:
    """The helper remembers how long the leader's ledger was; a copy from before is behind it."""
    network = Network(2)
    await network.start_all()
    first = await network.ask(values=4)
    await answer_all(network, first, COINS)
    await network.run_to_the_end(first)
    assert (await network.core(1).party.store.marks())[ALPHA] == 1

    await network.stop(0)
    network.seats[0].memory = type(network.seats[0].memory)()
    await network.start(0)
    second = await ask_later(network)
    await answer_all(network, second, COINS, offset=50)
    await network.core(1).party.store.remember_mark(ALPHA, 5)
    await network.run_to_the_end(second)

    answer = await network.core(0).service.release(second.task_id)
    assert (answer.state, answer.abort_reason) == (State.ABORTED, "restored_backup")
    assert len(await network.core(1).party.store.ledger()) == 1


async def test_a_restored_helper_gets_no_help() -> None:
    network = Network(2)
    await network.start_all()
    task = await network.ask(values=4)
    await answer_all(network, task, COINS)
    await network.core(0).party.store.remember_mark(BETA, 3)

    await network.run_to_the_end(task)

    answer = await network.core(0).service.release(task.task_id)
    assert (answer.state, answer.abort_reason) == (State.ABORTED, "restored_backup")
    assert not await network.core(0).party.store.ledger()


async def test_a_helper_restored_in_the_middle_of_a_release_ends_it_in_public() -> None:
    """Its store is a copy from before its noise was drawn: a second draw is never opened, and nobody waits for ever."""
    network = Network(2)
    await network.start_all()
    task = await network.ask(values=4)
    await answer_all(network, task, COINS)
    copies: list[MemoryStore] = []

    def copy_then_die(caller: str, other: str, name: str) -> None:
        del caller, other
        if name == "commit":
            copies.append(deepcopy(network.seats[1].memory))
        if name == "sign_record" and network.crashed == [] and len(copies) == 1:
            network.core(0).party.failpoints.tripped = True
            raise SimulatedCrashError(name)

    network.before = copy_then_die
    await network.advance_to(task.round_two_closes)
    await network.look_after_all()
    assert (await network.core(1).party.store.step(task.task_id, "open")) is not None
    await network.stop(1)
    network.seats[1].memory = copies[0]
    await network.start(1)
    await network.start_crashed()
    network.before = lambda *_: None

    await network.run_to_the_end(task)

    answers = [await network.core(p).service.release(task.task_id) for p in range(2)]
    assert [answer.state for answer in answers] == [State.ABORTED] * 2
    assert answers[0].abort_reason == "restored_backup"


async def ask_later(network: Network) -> Task:
    now = int(network.clock.now()) // 10 * 10
    return await network.ask(
        values=4,
        name="later",
        round_one_opens=now + 10,
        round_one_closes=now + 20,
        round_two_closes=now + 30,
        expiry=now + 86_400,
    )
