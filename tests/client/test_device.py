"""A device answers a task from the first judgement to the last receipt, over real cryptography in memory."""

from pathlib import Path

import pytest
from fleetcount_client import OutcomeKind
from fleetcount_protocol.task import UploadStyle

from tests.client.deployment import Deployment


@pytest.mark.parametrize("aggregators", [2, 3, 5])
async def test_a_report_of_two_instalments_is_valid_and_follows_the_coins(tmp_path: Path, aggregators: int) -> None:
    world = Deployment(aggregators)
    task = world.task()
    signed = world.sign(task)
    device = world.device(tmp_path / "device.db", world.transport(signed), truth="B")

    (outcome,) = await device.answer()

    assert outcome.kind is OutcomeKind.DELIVERED, outcome
    (report_id,) = world.report_ids(task, 2)
    assert world.report_ids(task, 1) == {report_id}
    words = world.decoded(task, report_id)
    round_one, round_two = words[:4].index(1), words[4:].index(1)
    assert sorted(words) == [0] * 6 + [1, 1]
    assert round_one in (0, round_two)
    assert round_two in (round_one, 2)
    difference = world.verifies(task, report_id)
    expected = [int(v == round_two) - int(v == round_one) for v in (1, 2, 3)]
    assert [d if d <= 1 else d - (2**64 - 2**32 + 1) for d in difference] == expected


async def test_one_envelope_carries_both_rounds_in_one_message(tmp_path: Path) -> None:
    world = Deployment()
    task = world.task(upload_style=UploadStyle.ONE_ENVELOPE)
    device = world.device(tmp_path / "device.db", world.transport(world.sign(task)))

    (outcome,) = await device.answer()

    assert outcome.kind is OutcomeKind.DELIVERED, outcome
    (report_id,) = world.report_ids(task, 0)
    assert sum(world.decoded(task, report_id)) == 2
    world.verifies(task, report_id)
