"""No truth, coin, key or ciphertext appears in a repr, a log line, an exception or an outcome."""

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from fleetcount_client.answering import draw_two_round, round_one_parts, round_two_parts
from fleetcount_client.memory_transport import MemoryTransport
from fleetcount_client.transport import Unreachable
from fleetcount_mechanisms.randomness import SeededRandom
from fleetcount_protocol.ids import SessionId
from fleetcount_protocol.messages import Instalment, Receipt, Refusal
from fleetcount_protocol.task.domain import Categories
from fleetcount_protocol.task.task import Task

from tests.client.deployment import Deployment

CANARY = "CanaryTruthQ7"


class Failing(MemoryTransport):
    """Fails every third upload, so that the paths of errors are logged too."""

    count = 0

    async def upload(
        self, task: Task, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        self.count += 1
        if self.count % 3 == 0:
            raise Unreachable("lost")
        return await super().upload(task, position, instalments)


async def test_a_whole_answer_leaves_no_trace_of_the_truth_at_debug_level(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = Deployment()
    task = world.task(domain=Categories(names=("A", CANARY, "C")))
    signed = world.sign(task)
    transport = Failing([signed], world.intakes)
    device = world.device(tmp_path / "device.db", transport, truth=CANARY)
    names = [name for name in task.domain.names if name == CANARY]  # type: ignore[union-attr]
    assert names == [CANARY]

    with caplog.at_level(logging.DEBUG):
        outcomes = await device.answer()
    stored = device.spool.reports()
    sessions = device.spool.sessions()
    said = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("fleetcount"))
    shown = repr((outcomes, stored, sessions, device, device.spool))

    assert "no receipt yet" in said
    for text in (said, shown):
        assert CANARY not in text
        for session in sessions:
            assert session.secret.hex() not in text
            assert repr(session.secret) not in text


def test_neither_coins_nor_parts_show_themselves() -> None:
    task = Deployment().task()

    for seed in range(20):
        secret = draw_two_round(task, 2, (SessionId(bytes(16)),), SeededRandom(seed))
        parts = (round_one_parts(task, secret), round_two_parts(task, secret))
        assert repr(secret) == (f"TwoRoundSecret(report_id={secret.report_id!r}, sessions={secret.sessions!r})")
        assert all("parts=" not in repr(one) for one in parts)


async def test_only_the_owner_finds_the_coins_and_only_between_the_rounds(tmp_path: Path) -> None:
    world = Deployment()
    task = world.task()
    path = tmp_path / "device.db"
    transport = MemoryTransport([world.sign(task)], world.intakes)
    device = world.device(path, transport)

    await device.answer()
    await device.close()
    report_ids = world.report_ids(task, 2)

    disk = b"".join(one.read_bytes() for one in tmp_path.iterdir())
    assert all(report_id not in disk for report_id in report_ids)
    assert task.task_id in disk  # The ledger's row stays.
