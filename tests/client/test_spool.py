"""The spool keeps everything or nothing, for its owner alone."""

import sqlite3
import stat
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_client.charges import Charge, LedgerAge
from fleetcount_client.ledger import Ledger
from fleetcount_client.policy import PolicyRefusal
from fleetcount_client.spool import MAX_NOTED_REFUSALS, OutboxEntry, Phase, Report, SessionRow, Spool, SpoolFile
from fleetcount_mechanisms.accounting.vectors import LossVector
from fleetcount_mechanisms.answers import Relation
from fleetcount_protocol.errors import MachineError, UsageError
from fleetcount_protocol.ids import SessionId, TaskId

TASK = TaskId(bytes(range(32)))
SECRET = b"coins and seed of one report"


def charge(task_id: TaskId = TASK) -> Charge:
    return Charge(
        charge_id=task_id,
        name="q",
        signal="S",
        asked_at=5,
        asked_until=9,
        epsilon=Decimal("0.99974"),
        exposure=Fraction(1, 4),
        answers=Fraction(1, 4),
        promise="10 1/1000000000 2592000",
        loss=LossVector(orders=(5, 9), at=(7, 1 << 70), pure=9),
    )


def begin(spool: Spool, refusal: PolicyRefusal | None = None, task_id: TaskId = TASK) -> PolicyRefusal | None:
    report = Report(task_id=task_id, phase=Phase.ROUND_ONE, reason="", secret=SECRET)
    entries = [OutboxEntry(round=1, position=p, instalment=bytes([p]) * 100) for p in range(2)]
    session = SessionRow(
        session_id=SessionId(bytes(16)), aggregator_id="alpha", hpke_key=b"k", request=b"r", secret=b"s", expiry=50
    )
    return spool.begin(charge(task_id), b"signed task", report, entries, [session], lambda ledger: refusal)


@pytest.fixture
def file(tmp_path: Path) -> SpoolFile:
    return SpoolFile(tmp_path / "device.db", durable=False)


def test_what_was_begun_is_there_after_the_file_was_closed(file: SpoolFile) -> None:
    assert begin(file.device()) is None
    file.close()

    spool = file.device()

    assert spool.charges() == (charge(),)
    assert spool.report(TASK) == Report(task_id=TASK, phase=Phase.ROUND_ONE, reason="", secret=SECRET)
    assert [entry.instalment for entry in spool.outbox(TASK, 1)] == [b"\0" * 100, b"\1" * 100]
    assert spool.sessions()[0].secret == b"s"
    assert spool.unfinished_tasks() == (b"signed task",)


def test_a_durable_file_syncs_at_every_commit(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path / "device.db")

    begin(file.device())

    assert file.rows("PRAGMA synchronous", ()) == [(2,)]
    assert file.rows("PRAGMA journal_mode", ()) == [("wal",)]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o610])
def test_the_file_is_the_owners_alone_and_another_mode_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "device.db"
    begin(SpoolFile(path).device())
    modes = {stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()}

    path.chmod(mode)

    assert modes == {0o600}
    with pytest.raises(UsageError, match=f"0{mode:o}"):
        SpoolFile(path).device().charges()


def test_another_programs_database_and_another_schema_are_refused(tmp_path: Path) -> None:
    other, newer = tmp_path / "other.db", tmp_path / "newer.db"
    begin(SpoolFile(newer).device())
    for path, statement in ((other, "CREATE TABLE t(a)"), (newer, "PRAGMA user_version=99")):
        connection = sqlite3.connect(path)
        connection.execute(statement)
        connection.close()
        path.chmod(0o600)

        with pytest.raises(UsageError, match="schema"):
            SpoolFile(path).device().charges()


@pytest.mark.parametrize("schema", [2, 3])
def test_an_older_ledger_opens_and_its_charges_stand_as_pure_losses_for_any_value(tmp_path: Path, schema: int) -> None:
    path = tmp_path / "device.db"
    connection = sqlite3.connect(path)
    connection.executescript((Path(__file__).parent / "ledger_schema_2.sql").read_text())
    if schema == 3:
        connection.execute("ALTER TABLE ledger ADD COLUMN relation TEXT NOT NULL DEFAULT 'any-value'")
        connection.execute("PRAGMA user_version=3")
    connection.close()
    path.chmod(0o600)
    spool = SpoolFile(path).device()

    old = [(one.name, one.epsilon, one.exposure, one.relation) for one in spool.charges()]
    new = replace(charge(TaskId(bytes([9]) * 32)), asked_at=1_900_000_000, asked_until=1_900_000_100)
    new = replace(new, relation=Relation.ONE_SIDED)
    report = Report(task_id=TaskId(new.charge_id), phase=Phase.ROUND_ONE, reason="", secret=SECRET)

    assert old == [
        ("question 1", Decimal("0.93471"), Fraction(9, 10), Relation.ANY_VALUE),
        ("question 2", None, Fraction(9, 10), Relation.ANY_VALUE),
    ]
    added = [(one.answers, one.promise, one.loss, one.sent) for one in spool.charges()]
    assert added == [(Fraction(9, 10), "", None, True)] * 2
    assert spool.age(5.0, 9) == LedgerAge(created_at=1700000000.0, first_valid=None)
    assert len(spool.reports()) == len(spool.unfinished_tasks()) == 2
    assert spool.begin(new, b"signed task", report, [], [], lambda ledger: None) is None
    spool.rest()
    assert new in SpoolFile(path).device().charges()


def test_a_file_that_is_no_database_is_the_machines_fault(tmp_path: Path) -> None:
    path = tmp_path / "device.db"
    path.write_bytes(b"not a database" * 100)
    path.chmod(0o600)

    with pytest.raises(MachineError, match=r"device\.db"):
        SpoolFile(path).device().charges()


def test_a_refusal_inside_the_transaction_leaves_nothing(file: SpoolFile) -> None:
    spool = file.device()
    refusal = PolicyRefusal(rule="total_epsilon", message="too much")

    assert begin(spool, refusal) == refusal
    assert (spool.charges(), spool.report(TASK), spool.sessions()) == ((), None, ())


def test_two_processes_charge_a_task_once(tmp_path: Path) -> None:
    first, second = SpoolFile(tmp_path / "device.db"), SpoolFile(tmp_path / "device.db")

    assert begin(first.device()) is None
    refusal = begin(second.device())

    assert refusal is not None
    assert refusal.rule == "answered"
    assert len(second.device().charges()) == 1


def test_a_full_disk_leaves_neither_charge_nor_coins(file: SpoolFile) -> None:
    spool = file.device()
    spool.charges()
    pages = file.rows("PRAGMA page_count", ())[0][0]
    file.rows(f"PRAGMA max_page_count={pages}", ())
    report = Report(task_id=TASK, phase=Phase.ROUND_ONE, reason="", secret=SECRET)
    big = [OutboxEntry(round=1, position=0, instalment=bytes(100_000))]

    with pytest.raises(MachineError, match="full"):
        spool.begin(charge(), b"signed", report, big, [], lambda ledger: None)

    assert (spool.charges(), spool.report(TASK)) == ((), None)


def test_a_final_phase_erases_bytes_and_secret_from_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "device.db"
    file = SpoolFile(path)
    begin(file.device())
    report = file.device().report(TASK)
    assert report is not None

    between = file.device().advance(report, Phase.BETWEEN)
    second = file.device().advance(
        between, Phase.ROUND_TWO, entries=[OutboxEntry(round=2, position=0, instalment=b"second bytes")]
    )
    done = file.device().advance(second, Phase.DELIVERED)
    file.close()

    assert done.secret == b""
    on_disk = b"".join(one.read_bytes() for one in tmp_path.iterdir())
    assert SECRET not in on_disk
    assert b"second bytes" not in on_disk


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (a, b)
        for a in Phase
        for b in Phase
        if a.final or b.value <= a.value or (a, b) == (Phase.ROUND_ONE, Phase.ROUND_TWO)
    ],
)
def test_nothing_moves_backwards_or_on_from_its_end(file: SpoolFile, start: Phase, end: Phase) -> None:
    report = Report(task_id=TASK, phase=start, reason="", secret=SECRET)

    with pytest.raises(UsageError):
        file.device().advance(report, end)


def test_a_report_that_another_process_moved_is_not_moved_again(file: SpoolFile) -> None:
    spool = file.device()
    begin(spool)
    report = spool.report(TASK)
    assert report is not None
    spool.advance(report, Phase.BETWEEN)

    with pytest.raises(MachineError, match="another process"):
        spool.advance(report, Phase.GIVEN_UP)


def test_receipted_bytes_are_forgotten_one_by_one(file: SpoolFile) -> None:
    spool = file.device()
    begin(spool)

    spool.receipted(TASK, 1, [0])

    assert [entry.position for entry in spool.outbox(TASK, 1)] == [1]


def test_devices_that_share_a_file_see_only_their_own(file: SpoolFile) -> None:
    one, two = file.device("one"), file.device("two")

    begin(one)

    assert (two.charges(), two.report(TASK), two.outbox(TASK, 1), two.sessions()) == ((), None, (), ())
    assert begin(two) is None


def test_a_ledger_keeps_the_time_it_began(file: SpoolFile) -> None:
    began = LedgerAge(created_at=100.0, first_valid=7)

    assert file.device().age(100.0, 7) == began
    file.close()
    assert file.device().age(900.0, 800) == began


def test_tidying_forgets_expired_sessions_and_finished_tasks_but_no_charge(file: SpoolFile) -> None:
    spool = file.device()
    begin(spool)
    report = spool.report(TASK)
    assert report is not None

    spool.tidy(50)
    kept = (len(spool.sessions()), spool.unfinished_tasks())
    spool.advance(report, Phase.GIVEN_UP)
    spool.tidy(51)

    assert kept == (1, (b"signed task",))
    assert (spool.sessions(), file.rows("SELECT * FROM task", ()), len(spool.charges())) == ((), [], 1)


def test_refusals_are_kept_once_a_task_and_never_without_end(file: SpoolFile) -> None:
    spool = file.device()
    refusal = PolicyRefusal(rule="signals", message="not allowed")

    for number in range(MAX_NOTED_REFUSALS + 20):
        spool.note_refusal(TaskId(number.to_bytes(32)), "q", refusal, float(number))
    spool.note_refusal(TaskId((500).to_bytes(32)), "q", refusal, 9999.0)

    noted = spool.refusals()
    assert len(noted) == MAX_NOTED_REFUSALS
    assert noted[-1].refused_at == 9999.0


def test_neither_repr_shows_what_is_secret(file: SpoolFile) -> None:
    spool = file.device()
    begin(spool)

    shown = repr((spool.report(TASK), spool.outbox(TASK, 1), spool.sessions(), spool, file))

    assert "coins" not in shown
    assert "\\x01" not in shown
    assert "b's'" not in shown


def test_the_judgement_sees_what_was_charged_before(file: SpoolFile) -> None:
    spool, other, seen = file.device(), TaskId(bytes(32)), list[tuple[Charge, ...]]()
    assert begin(spool) is None

    def judge(ledger: Ledger) -> PolicyRefusal:
        seen.append(ledger.charges)
        return PolicyRefusal(rule="total_epsilon", message="too much")

    report = Report(task_id=other, phase=Phase.ROUND_ONE, reason="", secret=SECRET)
    refusal = spool.begin(charge(other), b"signed task", report, [], [], judge)

    assert (refusal and refusal.rule, seen) == ("total_epsilon", [(charge(),)])


def test_an_answer_dated_before_one_that_was_sent_counts_until_then(file: SpoolFile) -> None:
    spool = file.device()
    begin(spool)

    earlier = replace(charge(TaskId(bytes([9]) * 32)), asked_at=-50, asked_until=-40)
    report = Report(task_id=TaskId(bytes([9]) * 32), phase=Phase.ROUND_ONE, reason="", secret=SECRET)
    assert spool.begin(earlier, b"signed task", report, [], [], lambda ledger: None) is None

    assert spool.charges()[0] == replace(earlier, asked_until=charge().asked_at + 1)


def test_sums_in_memory_are_those_of_the_file_after_a_failure_and_after_another_process_wrote(tmp_path: Path) -> None:
    one, other = SpoolFile(tmp_path / "device.db").device(), SpoolFile(tmp_path / "device.db").device()
    assert (one.charges(), other.charges()) == ((), ())

    def fail(ledger: Ledger) -> None:
        ledger.put(charge())
        raise MachineError("in the middle of it")

    report = Report(task_id=TASK, phase=Phase.ROUND_ONE, reason="", secret=SECRET)
    with pytest.raises(MachineError, match="in the middle"):
        one.begin(charge(), b"signed task", report, [], [], fail)

    assert one.charges() == ()
    begin(other)
    assert one.charges() == (charge(),)


def test_a_window_whose_unit_was_freed_meanwhile_is_not_answered(file: SpoolFile) -> None:
    spool = file.device()
    unit = replace(charge(TaskId(bytes([7]) * 32)), series_id=bytes(32), sent=False)
    report = Report(task_id=TASK, phase=Phase.ROUND_ONE, reason="", secret=SECRET)

    refusal = spool.begin(unit, b"signed task", report, [], [], lambda ledger: None)

    assert refusal is not None
    assert refusal.rule == "reserved"
    assert (spool.report(TASK), spool.charges()) == (None, ())
