"""The spool keeps everything or nothing, for its owner alone."""

import sqlite3
import stat
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_client.charges import Charge, LedgerAge
from fleetcount_client.ledger import Ledger
from fleetcount_client.policy import PolicyRefusal
from fleetcount_client.question_rows import QuestionRow, QuestionRows, QuestionState
from fleetcount_client.spool import Spool, SpoolFile
from fleetcount_client.spool_rows import Beginning, OutboxEntry, Phase, Report, SessionRow, outbox_of
from fleetcount_mechanisms.accounting.vectors import LossVector
from fleetcount_protocol.errors import DecodeError, MachineError, UsageError
from fleetcount_protocol.ids import QuestionId, SessionId, WindowId
from fleetcount_protocol.limits import MAX_KEY_NUMBER

WINDOW = WindowId(bytes(range(32)))
SECRET = b"coins and seed of one report"
SESSION = SessionRow(
    session_id=SessionId(bytes(16)),
    aggregator_id="alpha",
    hpke_key=b"k",
    secret=b"s",
    receipt_key=b"r",
    number=1,
    expiry=50,
)


def alone(
    spool: Spool, charged: Charge, report: Report, entries: Sequence[OutboxEntry] = ()
) -> Beginning | PolicyRefusal | None:
    """Begin an answer that needs no session."""
    begun = Beginning(report=report, entries=entries, sessions=())
    return spool.begin(charged, report.window_id, b"window", (), lambda _: begun, lambda ledger: None)


def reserve(spool: Spool, unit: Charge) -> None:
    assert unit.question_id is not None
    row = QuestionRow(
        question_id=QuestionId(unit.question_id),
        name="q",
        offer=b"",
        state=QuestionState.JOINED,
        changed_at=0.0,
        reason="",
    )
    assert QuestionRows(spool).join(row, lambda ledger: ledger.new([unit]), 0.0) is None


def charge(window_id: WindowId = WINDOW) -> Charge:
    """Return what is reserved for the one window of a question."""
    return Charge(
        charge_id=window_id,
        name="q",
        signal="S",
        asked_at=5,
        asked_until=9,
        epsilon=Decimal("0.99974"),
        exposure=Fraction(1, 4),
        answers=Fraction(1, 4),
        promise="10 1/1000000000 2592000",
        loss=LossVector(orders=(5, 9), at=(7, 1 << 70), pure=9),
        question_id=bytes(window_id),
        sent=False,
    )


def sent(window_id: WindowId = WINDOW) -> Charge:
    return replace(charge(window_id), sent=True)


def begin(
    spool: Spool, refusal: PolicyRefusal | None = None, window_id: WindowId = WINDOW
) -> Beginning | PolicyRefusal | None:
    report = Report(window_id=window_id, phase=Phase.ROUND_ONE, reason="", secret=SECRET)
    entries = [OutboxEntry(round=1, position=p, instalment=bytes([p]) * 100) for p in range(2)]
    begun = Beginning(report=report, entries=entries, sessions=[SESSION])
    reserve(spool, charge(window_id))
    return spool.begin(charge(window_id), window_id, b"window", [SESSION], lambda _: begun, lambda ledger: refusal)


@pytest.fixture
def file(tmp_path: Path) -> SpoolFile:
    return SpoolFile(tmp_path / "device.db", durable=False)


def test_what_was_begun_is_there_after_the_file_was_closed(file: SpoolFile) -> None:
    assert isinstance(begin(file.device()), Beginning)
    file.close()

    spool = file.device()

    assert spool.charges() == (sent(),)
    assert spool.report(WINDOW) == Report(window_id=WINDOW, phase=Phase.ROUND_ONE, reason="", secret=SECRET)
    assert [entry.instalment for entry in spool.outbox(WINDOW, 1)] == [b"\0" * 100, b"\1" * 100]
    assert spool.sessions()[0].secret == b"s"
    assert spool.unfinished_windows() == (b"window",)


def test_a_durable_file_syncs_at_every_commit(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path / "device.db")

    begin(file.device())

    assert file.rows("PRAGMA synchronous", ()) == [(2,)]
    assert file.rows("PRAGMA journal_mode", ()) == [("wal",)]


def test_a_file_is_open_to_other_processes_of_its_device_unless_it_is_had_alone(tmp_path: Path) -> None:
    alone, shared = (SpoolFile(tmp_path / name, alone=name == "alone.db") for name in ("alone.db", "shared.db"))
    begin(alone.device("1"))
    begin(alone.device("2"))
    begin(shared.device("1"))

    assert len(SpoolFile(tmp_path / "shared.db").device("1").charges()) == 1
    with closing(sqlite3.connect(tmp_path / "alone.db", timeout=0)) as other, pytest.raises(sqlite3.OperationalError):
        other.execute("SELECT count(*) FROM ledger")
    alone.close()
    assert len(SpoolFile(tmp_path / "alone.db").device("2").charges()) == 1


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


def test_a_charge_that_counts_before_it_is_asked_to_the_end_is_read_back_so(tmp_path: Path) -> None:
    path, dated = tmp_path / "device.db", replace(charge(), counts_until=5)
    reserve(SpoolFile(path).device(), dated)

    assert SpoolFile(path).device().charges() == (dated,)
    assert (dated.last, charge().last) == (5, charge().asked_until)


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
    assert (spool.charges(), spool.report(WINDOW), spool.sessions()) == ((charge(),), None, ())


def test_coins_and_keys_go_with_the_bytes_of_the_last_round(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path / "device.db")
    begin(file.device())
    report = file.device().report(WINDOW)
    assert report is not None
    between = file.device().advance(report, Phase.BETWEEN)
    assert between.secret == SECRET

    second = file.device().advance(
        between, Phase.ROUND_TWO, entries=[OutboxEntry(round=2, position=0, instalment=b"second bytes")]
    )

    assert second == file.device().report(WINDOW)
    assert second.secret == b""
    assert [entry.instalment for entry in file.device().outbox(WINDOW, 2)] == [b"second bytes"]


def test_two_processes_take_different_keys_of_one_session(tmp_path: Path) -> None:
    """Both have read the session before; the second takes what the first has left."""
    first, second = (SpoolFile(tmp_path / "device.db").device() for _ in range(2))
    taken: list[tuple[int, bytes]] = []

    def answer(spool: Spool, window_id: WindowId) -> None:
        def form(rows: Sequence[SessionRow]) -> Beginning:
            taken.extend((row.number, row.secret) for row in rows)
            moved = [replace(row, number=row.number + 1, secret=row.secret + b"!") for row in rows]
            report = Report(window_id=window_id, phase=Phase.ROUND_ONE, reason="", secret=SECRET)
            return Beginning(report=report, entries=(), sessions=moved)

        reserve(spool, charge(window_id))
        spool.begin(charge(window_id), window_id, b"window", [SESSION], form, lambda ledger: None)

    answer(first, WINDOW)
    answer(second, WindowId(bytes(32)))

    assert taken == [(1, b"s"), (2, b"s!")]
    assert [(row.number, row.secret) for row in first.sessions()] == [(3, b"s!!")]


@pytest.mark.parametrize(("remembered", "stored"), [(2, None), (1, MAX_KEY_NUMBER + 1), (2, MAX_KEY_NUMBER + 1)])
def test_an_answer_does_not_begin_with_a_session_that_is_gone_or_used_up(
    file: SpoolFile, remembered: int, stored: int | None
) -> None:
    spool = file.device()
    begin(spool)
    with file.transaction() as connection:
        if stored is None:
            connection.execute("DELETE FROM session")
        else:
            connection.execute("UPDATE session SET number=?", (stored,))
    unit = charge(WindowId(bytes(32)))
    reserve(spool, unit)

    def form(rows: Sequence[SessionRow]) -> Beginning:
        raise AssertionError("an answer is formed with keys of before")

    rows = [replace(SESSION, number=remembered)]
    assert spool.begin(unit, WindowId(bytes(32)), b"window", rows, form, lambda ledger: None) is None
    assert (spool.report(WindowId(bytes(32))), unit in spool.charges()) == (None, True)


def test_two_processes_answer_a_window_once(tmp_path: Path) -> None:
    first, second = SpoolFile(tmp_path / "device.db"), SpoolFile(tmp_path / "device.db")

    assert isinstance(begin(first.device()), Beginning)
    refusal = begin(second.device())

    assert isinstance(refusal, PolicyRefusal)
    assert refusal.rule == "answered"
    assert len(second.device().charges()) == 1


def test_a_full_disk_leaves_neither_charge_nor_coins(file: SpoolFile) -> None:
    spool = file.device()
    reserve(spool, charge())
    pages = file.rows("PRAGMA page_count", ())[0][0]
    file.rows(f"PRAGMA max_page_count={pages}", ())
    report = Report(window_id=WINDOW, phase=Phase.ROUND_ONE, reason="", secret=SECRET)
    big = [OutboxEntry(round=1, position=0, instalment=bytes(100_000))]

    with pytest.raises(MachineError, match="full"):
        alone(spool, charge(), report, big)

    assert (spool.charges(), spool.report(WINDOW)) == ((charge(),), None)


def test_a_final_phase_erases_bytes_and_secret_from_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "device.db"
    file = SpoolFile(path)
    begin(file.device())
    report = file.device().report(WINDOW)
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
    report = Report(window_id=WINDOW, phase=start, reason="", secret=SECRET)

    with pytest.raises(UsageError):
        file.device().advance(report, end)


def test_a_report_that_another_process_moved_is_not_moved_again(file: SpoolFile) -> None:
    spool = file.device()
    begin(spool)
    report = spool.report(WINDOW)
    assert report is not None
    spool.advance(report, Phase.BETWEEN)

    with pytest.raises(MachineError, match="another process"):
        spool.advance(report, Phase.GIVEN_UP)


def test_receipted_bytes_are_forgotten_one_by_one(file: SpoolFile) -> None:
    spool = file.device()
    begin(spool)

    spool.receipted(WINDOW, spool.outbox(WINDOW, 1)[1:])

    assert [(entry.position, entry.instalment) for entry in spool.outbox(WINDOW, 1)] == [(1, b"\1" * 100)]


def test_what_is_left_of_a_round_is_written_once(file: SpoolFile, tmp_path: Path) -> None:
    spool, written = file.device(), tmp_path / "device.db-wal"
    begin(spool)
    left = spool.outbox(WINDOW, 1)[1:]
    spool.receipted(WINDOW, left)
    before = written.stat().st_size

    spool.receipted(WINDOW, left)

    assert written.stat().st_size == before


def test_a_receipt_that_comes_when_another_process_has_moved_the_report_on_changes_nothing(tmp_path: Path) -> None:
    one, other = (SpoolFile(tmp_path / "device.db").device() for _ in range(2))
    begin(one)
    report = other.report(WINDOW)
    assert report is not None
    left, second = (
        one.outbox(WINDOW, 1)[1:],
        [OutboxEntry(round=2, position=position, instalment=b"second bytes") for position in range(2)],
    )
    other.advance(other.advance(report, Phase.BETWEEN), Phase.ROUND_TWO, entries=second)

    one.receipted(WINDOW, left)

    assert list(one.outbox(WINDOW, 2)) == second


@pytest.mark.parametrize("stored", [b"\0", b"\1\0\0\0\0\5four"])
def test_a_damaged_outbox_is_not_read(stored: bytes) -> None:
    with pytest.raises(DecodeError, match="outbox"):
        outbox_of(stored)


def test_another_program_s_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE rows(value)")
    path.chmod(0o600)
    before = path.read_bytes()

    with pytest.raises(UsageError, match="has schema 0; allowed is 1, of this program"):
        SpoolFile(path).device().charges()

    assert [one.read_bytes() for one in tmp_path.iterdir()] == [before]


@pytest.mark.parametrize(
    "damage",
    [
        "ledger SET epsilon='x'",
        "ledger SET exposure='1/0'",
        "ledger SET loss='x'",
        "ledger SET relation='x'",
        "report SET phase=77",
        "report SET outbox=x'00'",
        "session SET session_id=x'00'",
    ],
)
def test_a_damaged_row_is_this_machine_s_fault_and_named_by_its_file(file: SpoolFile, damage: str) -> None:
    begin(file.device())
    with file.transaction() as connection:
        connection.execute(f"UPDATE {damage}")
    spool = file.device()

    with pytest.raises(MachineError, match=r"state file .*device\.db: "):
        (spool.charges(), spool.reports(), spool.answers(), spool.outbox(WINDOW, 1), spool.sessions())


def test_devices_that_share_a_file_see_only_their_own(file: SpoolFile) -> None:
    one, two = file.device("one"), file.device("two")

    begin(one)

    assert (two.charges(), two.report(WINDOW), two.outbox(WINDOW, 1), two.sessions()) == ((), None, (), ())
    assert isinstance(begin(two), Beginning)


def test_a_ledger_keeps_the_time_it_began(file: SpoolFile) -> None:
    began = LedgerAge(created_at=100.0, first_valid=7)

    assert file.device().age(100.0, 7) == began
    file.close()
    assert file.device().age(900.0, 800) == began


def test_tidying_forgets_expired_sessions_and_finished_windows_but_no_charge(file: SpoolFile) -> None:
    spool = file.device()
    begin(spool)
    report = spool.report(WINDOW)
    assert report is not None

    spool.tidy(50)
    kept = (len(spool.sessions()), spool.unfinished_windows())
    spool.advance(report, Phase.GIVEN_UP)
    spool.tidy(51)

    assert kept == (1, (b"window",))
    assert (spool.sessions(), file.rows("SELECT * FROM windows", ()), len(spool.charges())) == ((), [], 1)


def test_refusals_are_the_question_with_a_rule_the_latest_last(file: SpoolFile) -> None:
    spool, rows = file.device(), QuestionRows(file.device())
    for number, rule in enumerate(["total_epsilon", "", "signals", "total_epsilon"]):
        question_id = QuestionId(bytes([number % 3]) * 32)
        state = QuestionState.REFUSED if rule else QuestionState.JOINED
        rows.put(
            QuestionRow(
                question_id=question_id,
                name="q",
                offer=b"",
                state=state,
                changed_at=float(number),
                reason=f"reason {number}",
                rule=rule,
            )
        )

    noted = [(one.question_id[0], one.rule, one.message, one.refused_at) for one in spool.refusals()]

    assert noted == [(2, "signals", "reason 2", 2.0), (0, "total_epsilon", "reason 3", 3.0)]


def test_neither_repr_shows_what_is_secret(file: SpoolFile) -> None:
    spool = file.device()
    begin(spool)

    shown = repr((spool.report(WINDOW), spool.outbox(WINDOW, 1), spool.sessions(), spool, file))

    assert "coins" not in shown
    assert "\\x01" not in shown
    assert "b's'" not in shown


def test_the_judgement_sees_what_was_charged_before(file: SpoolFile) -> None:
    spool, other, seen = file.device(), WindowId(bytes(32)), list[tuple[Charge, ...]]()
    assert isinstance(begin(spool), Beginning)

    def judge(ledger: Ledger) -> PolicyRefusal:
        seen.append(ledger.charges)
        return PolicyRefusal(rule="total_epsilon", message="too much")

    def form(rows: Sequence[SessionRow]) -> Beginning:
        raise AssertionError("an answer is formed that was refused")

    reserve(spool, charge(other))
    refusal = spool.begin(charge(other), other, b"window", [], form, judge)

    assert isinstance(refusal, PolicyRefusal)
    assert (refusal.rule, seen) == ("total_epsilon", [(charge(other), sent())])


@pytest.mark.parametrize("reserved_first", [True, False])
def test_a_window_of_a_unit_dated_before_one_that_was_sent_counts_until_then(
    file: SpoolFile, reserved_first: bool
) -> None:
    spool = file.device()
    unit = replace(charge(WindowId(bytes([9]) * 32)), asked_at=-50, asked_until=-40)

    if reserved_first:
        reserve(spool, unit)
    begin(spool)
    if not reserved_first:
        reserve(spool, unit)
    report = Report(window_id=WindowId(bytes([9]) * 32), phase=Phase.ROUND_ONE, reason="", secret=SECRET)
    assert isinstance(alone(spool, unit, report), Beginning)

    late = replace(unit, asked_until=charge().asked_at + 1, sent=True)
    assert spool.charges()[0] == late
    assert file.device().ledger().get(unit.charge_id) == late


def test_sums_in_memory_are_those_of_the_file_after_a_failure_and_after_another_process_wrote(tmp_path: Path) -> None:
    one, other = SpoolFile(tmp_path / "device.db").device(), SpoolFile(tmp_path / "device.db").device()
    reserve(one, charge())
    assert (one.charges(), other.charges()) == ((charge(),), (charge(),))

    def fail(ledger: Ledger) -> None:
        ledger.put(sent())
        raise MachineError("in the middle of it")

    report = Report(window_id=WINDOW, phase=Phase.ROUND_ONE, reason="", secret=SECRET)
    begun = Beginning(report=report, entries=(), sessions=())
    with pytest.raises(MachineError, match="in the middle"):
        one.begin(charge(), WINDOW, b"window", [], lambda _: begun, fail)

    assert one.charges() == (charge(),)
    begin(other)
    assert one.charges() == (sent(),)


def test_a_window_whose_unit_was_freed_meanwhile_is_not_answered(file: SpoolFile) -> None:
    spool = file.device()
    unit = charge(WindowId(bytes([7]) * 32))
    report = Report(window_id=WINDOW, phase=Phase.ROUND_ONE, reason="", secret=SECRET)

    refusal = alone(spool, unit, report)

    assert isinstance(refusal, PolicyRefusal)
    assert refusal.rule == "reserved"
    assert (spool.report(WINDOW), spool.charges()) == (None, ())
