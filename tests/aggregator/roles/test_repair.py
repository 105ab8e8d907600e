"""A damaged task takes part in nothing and the others go on; it ends by the record that others have, or here."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.states import AbortReason, State
from fleetcount_aggregator.journal import KEPT, Entry, Step, move, once
from fleetcount_aggregator.release.steps import ReleaseSteps
from fleetcount_aggregator.roles.repair import Repair, Settled
from fleetcount_aggregator.storage.archive import RestRow
from fleetcount_aggregator.storage.row_seal import Damage, DamagedError
from fleetcount_aggregator.storage.sql_store import SqlStore
from fleetcount_aggregator.tasks.series_install import install_series
from fleetcount_protocol.errors import RejectReason, TaskError
from fleetcount_protocol.ids import AggregatorId, TaskId
from fleetcount_protocol.messages import Refusal, ReleaseAnswer
from fleetcount_protocol.task.task import Task

from tests.support.aggregators import START, Network, TestDevice, answer_all

COINS = [(0, 1), (2, 2)]
LATER = {
    "round_one_opens": START + 1000,
    "round_one_closes": START + 2000,
    "round_two_closes": START + 3000,
    "expiry": START + 90_000,
}


def damage(database: Path, statement: str, *values: object) -> None:
    """Change rows behind the store's back."""
    with closing(sqlite3.connect(database)) as connection, connection:
        assert connection.execute(statement, values).rowcount > 0, "nothing was damaged"


def repair_of(context: Context) -> Repair:
    assert isinstance(context.store, SqlStore)
    return Repair(context, ReleaseSteps(context), context.store)


async def answered(directory: Path) -> tuple[Network, Task]:
    network = Network(2, directory=directory)
    network.supervised = False
    await network.start_all()
    task = await network.ask(values=2)
    await answer_all(network, task, COINS)
    return network, task


async def undelivered(directory: Path) -> tuple[Network, Task]:
    """Return a network in which the leader has released, and the helper has signed and not heard of it."""
    network, task = await answered(directory)
    await network.stop(1)
    await network.start(1, "helper.before_deliver_store")
    await network.advance_to(task.round_two_closes)
    await network.look_after_all()
    network.crashed.clear()
    assert network.seats[1].core is None, "it must really crash"
    assert network.core(0).context.states[task.task_id] is State.RELEASED
    return network, task


async def test_a_damaged_task_is_in_quarantine_and_the_others_go_on(tmp_path: Path) -> None:
    network, task = await answered(tmp_path)
    times = LATER | {"round_one_opens": START + 70}
    other = await network.ask(values=2, name="another", signal="Vehicle.Speed", **times)
    late = TestDevice(network, task, 9)
    await late.open_sessions()
    await network.stop(1)
    damage(tmp_path / "beta.db", "UPDATE tasks SET state = 'released' WHERE task_id = ?", task.task_id)

    core = await network.start(1)

    assert set(core.context.quarantined) == {task.task_id}
    assert set(core.context.live) == {other.task_id}
    [refusal] = await late.send(late.first(0), to=[1])
    assert isinstance(refusal, Refusal)
    assert refusal.reason is RejectReason.BUSY, "its device keeps the report"
    with pytest.raises(DamagedError):
        await core.helper.outcome(AggregatorId("alpha"), task.task_id)
    with pytest.raises(DamagedError):
        await core.helper.status(task.task_id, AggregatorId("alpha"))
    with pytest.raises(DamagedError):
        await once(core.context, task.task_id, Step.SIGN, b"", Entry())
    assert b'fleetcount_damaged_total{table="tasks"} 1.0' in core.context.metrics.render()
    core.context.quarantine(Damage(table="log", what="its rows are whole", task_id=other.task_id))
    with pytest.raises(DamagedError):
        await once(core.context, other.task_id, Step.SIGN, b"", Entry())
    await network.stop_all()


async def test_what_a_damaged_task_was_charged_counts_on(tmp_path: Path) -> None:
    network = Network(2, directory=tmp_path)
    await network.start_all()
    task = await network.ask(values=2)
    await network.stop(0)
    damage(tmp_path / "alpha.db", "UPDATE tasks SET abort_reason = 'x' WHERE task_id = ?", task.task_id)
    core = await network.start(0)
    core.context.limits = replace(core.context.limits, largest_epsilon=core.context.limits.largest_epsilon / 4)

    signed, key = network.once(values=2, name="one more")
    with pytest.raises(TaskError, match="tasks that overlap"):
        await install_series(core.context, signed, key)
    core.context.quarantined = {one: held._replace(task=None) for one, held in core.context.quarantined.items()}
    with pytest.raises(TaskError, match="what was charged is not known"):
        await install_series(core.context, signed, key)
    await network.stop_all()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tasks SET state = 'agreeing' WHERE task_id = ?",
        "UPDATE steps SET answer = x'00' WHERE task_id = ? AND name = 'commit'",
        "UPDATE tasks SET task_id = x'%s' WHERE task_id = ?" % ("07" * 32),
        "UPDATE tasks SET canonical_seal = x'00', rest_seal = x'00' WHERE task_id = ?",
    ],
    ids=["state", "commit", "key", "tags"],
)
async def test_a_repair_adopts_the_record_of_the_others(tmp_path: Path, statement: str) -> None:
    network, task = await undelivered(tmp_path)
    damage(tmp_path / "beta.db", statement, task.task_id)
    core = await network.start(1)
    assert task.task_id in core.context.quarantined

    tried = await repair_of(core.context).task(task.task_id, AbortReason.DAMAGED, dry_run=True)
    assert (tried.settled, task.task_id in core.context.quarantined) == (Settled.ADOPTED, True)
    mended = await repair_of(core.context).task(task.task_id, AbortReason.DAMAGED)

    assert mended.settled is Settled.ADOPTED
    answers = [await network.core(seat).service.release(task.task_id) for seat in (0, 1)]
    assert answers[0] == answers[1]
    assert [row.task_id for row in await core.context.store.ledger()] == [task.task_id]
    assert not list(tmp_path.glob("beta.*.data-key"))
    await network.stop(1)
    assert not (await network.start(1)).context.quarantined
    await network.stop_all()


class Lying:
    """A peer that shows a record to which something was done."""

    def __init__(self, answer: ReleaseAnswer) -> None:
        self.answer = answer

    async def outcome(self, task_id: TaskId) -> ReleaseAnswer:
        return self.answer


async def test_a_record_without_every_signature_is_not_adopted(tmp_path: Path) -> None:
    network, task = await undelivered(tmp_path)
    damage(tmp_path / "beta.db", "UPDATE tasks SET state = 'agreeing' WHERE task_id = ?", task.task_id)
    core = await network.start(1)
    good = await network.core(0).service.release(task.task_id)
    alone = replace(good, signatures=(good.signatures[0], bytes(64)))
    core.context.peers = {AggregatorId("alpha"): Lying(alone)}  # type: ignore[dict-item]  # Only its outcome is asked.

    mended = await repair_of(core.context).task(task.task_id, AbortReason.DAMAGED)

    assert mended.settled is Settled.ENDED
    answer = await core.service.release(task.task_id)
    assert (answer.state, answer.abort_reason, answer.record) == (State.ABORTED, "damaged", b"")
    await network.stop_all()


async def test_a_task_waits_for_who_does_not_answer_until_it_expires(tmp_path: Path) -> None:
    network, task = await answered(tmp_path)
    await network.stop_all()
    damage(tmp_path / "beta.db", "UPDATE tasks SET state = 'agreeing' WHERE task_id = ?", task.task_id)
    core = await network.start(1)

    waits = await repair_of(core.context).task(task.task_id, AbortReason.DAMAGED)
    assert (waits.settled, waits.silent) == (Settled.WAITS, ("alpha",))
    assert task.task_id in core.context.quarantined
    await network.advance_to(task.expiry)
    ended = await repair_of(core.context).task(task.task_id, AbortReason.DAMAGED)

    assert ended.settled is Settled.ENDED
    assert core.context.states[task.task_id] is State.ABORTED
    assert len(await core.context.store.ledger()) == 1, "charged, for it may have drawn"
    await network.stop_all()


async def test_the_debit_of_an_aborted_task_is_mended_when_its_steps_are_gone(tmp_path: Path) -> None:
    """It had drawn and was aborted; a day after it expired nothing but its debit says so."""
    network, task = await answered(tmp_path)
    await network.stop(0)
    await network.start(0, "leader.after_commitments")
    await network.advance_to(task.round_two_closes)
    await network.look_after_all()
    core = await network.start(0)
    await move(core.context, task.task_id, State.ABORTED, reason=AbortReason.DAMAGED.value)
    await core.context.store.put_to_rest([RestRow(task_id=task.task_id, expiry=task.expiry, led=True)])
    await core.context.store.retire([task.task_id], KEPT)
    [before] = await core.context.store.ledger()
    await network.stop(0)
    damage(tmp_path / "alpha.db", "UPDATE ledger SET epsilon = '0'")
    core = await network.start(0)

    done = await repair_of(core.context).others()

    assert done == [f"wrote the debit of task {task.task_id.hex()} again"]
    assert [(row.task_id, row.epsilon) for row in await core.context.store.ledger()] == [(task.task_id, before.epsilon)]
    await network.stop_all()


@pytest.mark.parametrize("changed", ["task_id = x'0000'", "normal_signal = 'other'"])
async def test_debits_and_marks_are_mended_without_their_tasks(tmp_path: Path, changed: str) -> None:
    network, task = await answered(tmp_path)
    await network.run_to_the_end(task)
    [before] = await network.core(0).context.store.ledger()
    await network.stop(0)
    damage(tmp_path / "alpha.db", f"UPDATE ledger SET {changed}")
    damage(tmp_path / "alpha.db", "UPDATE marks SET ledger_rows = 0")
    core = await network.start(0)
    with pytest.raises(TaskError, match="what was charged is not known"):
        await install_series(core.context, *network.once(values=2, name="new", **LATER))

    looked = await repair_of(core.context).others(dry_run=True)
    assert {one.table for one in await core.context.store.damaged()} == {"ledger", "marks"}, "as it was"
    done = await repair_of(core.context).others()

    assert done == ["forgot the mark of peer beta", f"wrote the debit of task {task.task_id.hex()} again"]
    assert looked == done
    assert [row.task_id for row in await core.context.store.ledger()] == [before.task_id]
    await network.stop(0)
    core = await network.start(0)
    assert not await core.context.store.damaged()
    await network.stop_all()
