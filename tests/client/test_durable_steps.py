"""What an answer asks of a device's file: durable transactions, each of which waits for the disk, and reads."""

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fleetcount_client.config import DeliverySettings
from fleetcount_client.contact import OutcomeKind
from fleetcount_client.policy import Trust
from fleetcount_client.question_rows import QuestionRow, QuestionRows, QuestionState
from fleetcount_client.spool import SpoolFile
from fleetcount_protocol.ids import QuestionId, WindowId
from fleetcount_protocol.messages import Instalment
from fleetcount_protocol.window.fields import UploadStyle

from tests.client.deployment import START, Deployment, open_policy
from tests.client.test_delivery import make, only
from tests.client.test_spool import charge

AT_ONCE = DeliverySettings(spread=Fraction(1, 10**9))
JOINED = "ledger questions change"
BEGUN = "ledger windows report session change"
BETWEEN, FORMED, ENDED = "report", "report", "report questions"

_CHANGED = re.compile(r"(?:INSERT|UPDATE|DELETE)(?: OR \w+)?(?: INTO| FROM)? (\w+)")


class Statements(list[str]):
    """What SQLite was asked for, in order."""

    def commits(self) -> list[str]:
        """Return the tables that each transaction changed, of those that changed any."""
        found, changed, inside = list[str](), dict[str, None](), False
        for statement in self:
            if match := _CHANGED.match(statement):
                changed[match[1]] = None
            inside = statement.startswith("BEGIN") or (inside and statement not in ("COMMIT", "ROLLBACK"))
            if not inside:  # A statement alone is a transaction of its own.
                found += [" ".join(changed)] if changed and statement != "ROLLBACK" else []
                changed = {}
        return found

    def reads(self) -> int:
        """Return how often rows were asked for."""
        return sum(statement.startswith("SELECT") for statement in self)


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Statements:
    seen, connect = Statements(), sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_trace_callback(seen.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    return seen


@pytest.mark.parametrize(
    ("style", "steps", "reads"),
    [
        (UploadStyle.TWO_INSTALMENTS, [JOINED, BEGUN, BETWEEN, FORMED, ENDED], 13),
        (UploadStyle.ONE_ENVELOPE, [JOINED, BEGUN, ENDED], 13),
    ],
)
@pytest.mark.parametrize("aggregators", [2, 5])
async def test_an_answer_to_one_window_waits_for_the_disk_at_its_own_steps_alone(
    tmp_path: Path, statements: Statements, aggregators: int, style: UploadStyle, steps: Sequence[str], reads: int
) -> None:
    world = Deployment(aggregators)
    world.ask(upload_style=style)
    device = world.device(tmp_path / "device.db", world.transport(), settings=AT_ONCE, idle_close_s=10**9)
    device.spool.age(0.0, None)
    statements.clear()

    [outcome] = await device.answer_question(world.offers[0])

    assert outcome.kind is OutcomeKind.DELIVERED
    assert (statements.commits(), statements.reads()) == (steps, reads)
    assert [row.state for row in device.questions.rows()] == [QuestionState.ENDED]


async def test_a_receipt_is_written_where_another_part_is_not_due_soon(tmp_path: Path, statements: Statements) -> None:
    _, _, transport, device = make(tmp_path)
    leaves: dict[tuple[int, int], float] = {}

    def note(position: int, instalment: Instalment) -> None:
        leaves[position, instalment.round] = transport.world.timer.now()

    transport.before = note
    await only(device)

    waits = sum(abs(leaves[0, number] - leaves[1, number]) > 5 for number in (1, 2))
    assert statements.commits().count(BETWEEN) == 2 + waits


async def test_what_an_offer_does_not_change_is_not_written(tmp_path: Path, statements: Statements) -> None:
    """A device looks for questions every few minutes for years, and is refused most of what it is not asked for."""
    world = Deployment()
    world.ask(START + 3600, name="too small", min_batch_size=9)
    world.ask(START + 3600, name="too much")
    world.offers.append(world.offer(world.question()))
    policy = open_policy(trust=Trust.NO_OPERATOR, largest_chance=Fraction(1), largest_expected_answers=Fraction(1, 8))
    questions = world.device(tmp_path / "device.db", world.transport(), policy=policy).questions

    first = questions.take(world.offers)
    once = statements.commits()
    again = questions.take([*world.offers, *world.offers])

    rules = ["smallest_min_batch_size", "largest_expected_answers"]
    assert [one.rule for one in first.values()] == [one.rule for one in again.values()] == rules
    assert once == ["questions", "device questions", "questions"]
    assert statements.commits() == once


def test_a_long_offer_that_stays_the_same_is_written_once(tmp_path: Path) -> None:
    device = SpoolFile(tmp_path / "state.db").device()
    rows, written = QuestionRows(device), tmp_path / "state.db-wal"
    offer = bytes(range(256)) * 400
    row = QuestionRow(
        question_id=QuestionId(bytes(32)), name="q", offer=offer, state=QuestionState.OFFERED, changed_at=1.5, reason=""
    )
    rows.put(row)
    before = written.stat().st_size
    assert before > len(offer)

    rows.put(replace(row, state=QuestionState.JOINED, changed_at=2.5))

    assert written.stat().st_size - before < len(offer) // 4
    assert rows.all() == (replace(row, state=QuestionState.JOINED, changed_at=2.5),)


def test_the_charges_of_devices_that_share_a_file_are_read_once_each(tmp_path: Path, statements: Statements) -> None:
    file = SpoolFile(tmp_path / "device.db", durable=False)
    spools = [file.device(str(number)) for number in range(20)]

    for _ in range(3):
        assert {spool.charges() for spool in spools} == {()}

    assert sum(" FROM ledger" in statement for statement in statements) == len(spools)


@pytest.mark.parametrize(("devices", "windows", "looks"), [(1, 32, 1), (2, 16, 1), (2, 17, 3)])
def test_devices_that_share_a_file_keep_each_its_part_of_so_many_charges_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statements: Statements, devices: int, windows: int, looks: int
) -> None:
    monkeypatch.setattr("fleetcount_client.spool._KEPT_CHARGES", 32)
    before = SpoolFile(tmp_path / "device.db").device("0")
    with before.change():
        for number in range(windows):
            before.insert_charge(charge(WindowId(number.to_bytes(32))))
    statements.clear()
    file = SpoolFile(tmp_path / "device.db")
    spool, *_ = [file.device(str(number)) for number in range(devices)]

    for _ in range(3):
        spool.charges()

    assert sum(" FROM ledger" in statement for statement in statements) == looks
