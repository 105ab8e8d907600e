"""A damaged window takes part in nothing and the others go on; it ends by the record that others have, or here."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.durable_steps import KEPT, Entry, Step, move, once
from fleetcount_aggregator.host.states import AbortReason
from fleetcount_aggregator.release.steps import ReleaseSteps
from fleetcount_aggregator.roles.outcomes import Repair, Settled
from fleetcount_aggregator.storage.ended import ArchivedWindow, archive_windows
from fleetcount_aggregator.storage.errors import Damage, DamagedError
from fleetcount_aggregator.storage.rows import read_ledger
from fleetcount_aggregator.windows.question_install import install_question
from fleetcount_protocol.errors import QuestionError, RejectReason
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_protocol.messages import Refusal, ReleaseAnswer, WindowState
from fleetcount_protocol.window.window import Window

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
    return Repair(context, ReleaseSteps(context.windows, context.questions, context.workers))


async def answered(directory: Path) -> tuple[Network, Window]:
    network = Network(2, directory=directory)
    network.supervised = False
    await network.start_all()
    window = await network.ask(values=2)
    await answer_all(network, window, COINS)
    return network, window


async def undelivered(directory: Path) -> tuple[Network, Window]:
    """Return a network in which the leader has released, and the helper has signed and not heard of it."""
    network, window = await answered(directory)
    await network.stop(1)
    await network.start(1, "helper.before_deliver_store")
    await network.advance_to(window.round_two_closes)
    await network.look_after_all()
    network.crashed.clear()
    assert network.seats[1].core is None, "it must really crash"
    assert network.core(0).context.windows.states[window.window_id] is WindowState.RELEASED
    return network, window


async def test_a_damaged_window_is_in_quarantine_and_the_others_go_on(tmp_path: Path) -> None:
    network, window = await answered(tmp_path)
    times = LATER | {"round_one_opens": START + 70}
    other = await network.ask(values=2, name="another", signal="Vehicle.Speed", **times)
    late = TestDevice(network, window, 9)
    await late.open_sessions()
    await network.stop(1)
    damage(tmp_path / "beta.db", "UPDATE windows SET state = 'released' WHERE window_id = ?", window.window_id)

    core = await network.start(1)

    assert set(core.context.windows.quarantined) == {window.window_id}
    assert set(core.context.windows.live) == {other.window_id}
    [refusal] = await late.send(late.first(0), to=[1])
    assert isinstance(refusal, Refusal)
    assert refusal.reason is RejectReason.BUSY, "its device keeps the report"
    with pytest.raises(DamagedError):
        await core.helper.outcome(AggregatorId("alpha"), window.window_id)
    with pytest.raises(DamagedError):
        await core.helper.status(window.window_id, AggregatorId("alpha"))
    with pytest.raises(DamagedError):
        await once(core.context.windows, window.window_id, Step.SIGN, b"", Entry())
    assert b'fleetcount_damaged_total{table="windows"} 1.0' in core.context.host.metrics.render()
    core.context.windows.quarantine(Damage(table="log", what="its rows are whole", window_id=other.window_id))
    with pytest.raises(DamagedError):
        await once(core.context.windows, other.window_id, Step.SIGN, b"", Entry())
    await network.stop_all()


async def test_what_a_damaged_window_was_charged_counts_on(tmp_path: Path) -> None:
    network = Network(2, directory=tmp_path)
    await network.start_all()
    window = await network.ask(values=2)
    await network.stop(0)
    damage(tmp_path / "alpha.db", "UPDATE windows SET abort_reason = 'x' WHERE window_id = ?", window.window_id)
    core = await network.start(0)
    host = core.context.host
    host.limits = replace(host.limits, largest_epsilon=host.limits.largest_epsilon / 4)

    signed, key = network.once(values=2, name="one more")
    with pytest.raises(QuestionError, match="questions that overlap"):
        await install_question(core.context, signed, key)
    windows = core.context.windows
    windows._quarantined = {one: held._replace(window=None) for one, held in windows.quarantined.items()}
    with pytest.raises(QuestionError, match="what was charged is not known"):
        await install_question(core.context, signed, key)
    await network.stop_all()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE windows SET state = 'agreeing' WHERE window_id = ?",
        "UPDATE steps SET answer = x'00' WHERE window_id = ? AND name = 'commit'",
        "UPDATE windows SET window_id = x'%s' WHERE window_id = ?" % ("07" * 32),
        "UPDATE windows SET canonical_seal = x'00', rest_seal = x'00' WHERE window_id = ?",
    ],
    ids=["state", "commit", "key", "tags"],
)
async def test_a_repair_adopts_the_record_of_the_others(tmp_path: Path, statement: str) -> None:
    network, window = await undelivered(tmp_path)
    damage(tmp_path / "beta.db", statement, window.window_id)
    core = await network.start(1)
    assert window.window_id in core.context.windows.quarantined

    tried = await repair_of(core.context).window(window.window_id, AbortReason.DAMAGED, dry_run=True)
    assert (tried.settled, window.window_id in core.context.windows.quarantined) == (Settled.ADOPTED, True)
    mended = await repair_of(core.context).window(window.window_id, AbortReason.DAMAGED)

    assert mended.settled is Settled.ADOPTED
    answers = [await network.core(seat).service.release(window.window_id) for seat in (0, 1)]
    assert answers[0] == answers[1]
    assert [row.window_id for row in await core.context.store.read(read_ledger)] == [window.window_id]
    assert not list(tmp_path.glob("beta.*.data-key"))
    await network.stop(1)
    assert not (await network.start(1)).context.windows.quarantined
    await network.stop_all()


class Lying:
    """A peer that shows a record to which something was done."""

    def __init__(self, answer: ReleaseAnswer) -> None:
        self.answer = answer

    async def outcome(self, window_id: WindowId) -> ReleaseAnswer:
        return self.answer


async def test_a_record_without_every_signature_is_not_adopted(tmp_path: Path) -> None:
    network, window = await undelivered(tmp_path)
    damage(tmp_path / "beta.db", "UPDATE windows SET state = 'agreeing' WHERE window_id = ?", window.window_id)
    core = await network.start(1)
    good = await network.core(0).service.release(window.window_id)
    alone = replace(good, signatures=(good.signatures[0], bytes(64)))
    core.context.peers._peers = {AggregatorId("alpha"): Lying(alone)}  # type: ignore[dict-item]  # Only its outcome is asked.

    mended = await repair_of(core.context).window(window.window_id, AbortReason.DAMAGED)

    assert mended.settled is Settled.ENDED
    answer = await core.service.release(window.window_id)
    assert (answer.state, answer.abort_reason, answer.record) == (WindowState.ABORTED, "damaged", b"")
    await network.stop_all()


async def test_a_window_waits_for_who_does_not_answer_until_it_expires(tmp_path: Path) -> None:
    network, window = await answered(tmp_path)
    await network.stop_all()
    damage(tmp_path / "beta.db", "UPDATE windows SET state = 'agreeing' WHERE window_id = ?", window.window_id)
    core = await network.start(1)

    waits = await repair_of(core.context).window(window.window_id, AbortReason.DAMAGED)
    assert (waits.settled, waits.silent) == (Settled.WAITS, ("alpha",))
    assert window.window_id in core.context.windows.quarantined
    await network.advance_to(window.expiry)
    ended = await repair_of(core.context).window(window.window_id, AbortReason.DAMAGED)

    assert ended.settled is Settled.ENDED
    assert core.context.windows.states[window.window_id] is WindowState.ABORTED
    assert len(await core.context.store.read(read_ledger)) == 1, "charged, for it may have drawn"
    await network.stop_all()


async def test_the_debit_of_an_aborted_window_is_mended_when_its_steps_are_gone(tmp_path: Path) -> None:
    """It had drawn and was aborted; a day after it expired nothing but its debit says so."""
    network, window = await answered(tmp_path)
    await network.stop(0)
    await network.start(0, "leader.after_commitments")
    await network.advance_to(window.round_two_closes)
    await network.look_after_all()
    core = await network.start(0)
    await move(core.context.windows, window.window_id, WindowState.ABORTED, reason=AbortReason.DAMAGED.value)
    await core.context.store.write(
        archive_windows, [ArchivedWindow(window_id=window.window_id, expiry=window.expiry, led=True)]
    )
    await core.context.store.retire([window.window_id], KEPT)
    [before] = await core.context.store.read(read_ledger)
    await network.stop(0)
    damage(tmp_path / "alpha.db", "UPDATE ledger SET epsilon = '0'")
    core = await network.start(0)

    done = await repair_of(core.context).others()

    assert done == [f"wrote the debit of window {window.window_id.hex()} again"]
    assert [(row.window_id, row.epsilon) for row in await core.context.store.read(read_ledger)] == [
        (window.window_id, before.epsilon)
    ]
    await network.stop_all()


async def test_a_debit_that_is_gone_is_written_again_or_said_to_be_gone(tmp_path: Path) -> None:
    network, window = await answered(tmp_path)
    await network.run_to_the_end(window)
    [before] = await network.core(0).context.store.read(read_ledger)
    said = []
    for tables in (["ledger"], ["ledger"], ["steps", "ledger"]):
        await network.stop(0)
        for table in tables:
            damage(tmp_path / "alpha.db", f"DELETE FROM {table}")
        core = await network.start(0)
        said.append(await repair_of(core.context).others())
        rows = await core.context.store.read(read_ledger)
        assert [(row.window_id, row.epsilon) for row in rows] == [(before.window_id, before.epsilon)] * (
            len(tables) == 1
        )

    again = [f"wrote the debit of window {window.window_id.hex()} again"]
    gone = ["found 0 debits, of 1 that were written; nothing says whose the others were"]
    assert said == [again, again, gone]
    await network.stop_all()


@pytest.mark.parametrize("changed", ["window_id = x'0000'", "normal_signal = 'other'"])
async def test_debits_and_marks_are_mended_without_their_windows(tmp_path: Path, changed: str) -> None:
    network, window = await answered(tmp_path)
    await network.run_to_the_end(window)
    [before] = await network.core(0).context.store.read(read_ledger)
    await network.stop(0)
    damage(tmp_path / "alpha.db", f"UPDATE ledger SET {changed}")
    damage(tmp_path / "alpha.db", "UPDATE marks SET ledger_rows = 0")
    core = await network.start(0)
    with pytest.raises(QuestionError, match="what was charged is not known"):
        await install_question(core.context, *network.once(values=2, name="new", **LATER))

    looked = await repair_of(core.context).others(dry_run=True)
    assert {one.table for one in await core.context.store.damaged()} == {"ledger", "marks"}, "as it was"
    done = await repair_of(core.context).others()

    assert done == ["forgot the mark of peer beta", f"wrote the debit of window {window.window_id.hex()} again"]
    assert looked == done
    assert [row.window_id for row in await core.context.store.read(read_ledger)] == [before.window_id]
    await network.stop(0)
    core = await network.start(0)
    assert not await core.context.store.damaged()
    await network.stop_all()
