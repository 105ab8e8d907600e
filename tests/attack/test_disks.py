"""What lies in the files of an aggregator while its tasks run."""

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path

import pytest
from fleetcount_protocol.messages import TaskState

from tests.attack.suite import FIGURE
from tests.support.deployment import Deployed

pytestmark = pytest.mark.processes


def holding(secret: bytes, directory: Path) -> list[str]:
    """Return the files below a directory that hold a secret: as it is, in hexadecimal or in base64."""
    forms = (secret, secret.hex().encode(), base64.b64encode(secret).rstrip(b"=")[:-1])
    files = [path for path in directory.rglob("*") if path.is_file()]
    return [path.name for path in files if any(form in path.read_bytes() for form in forms)]


async def test_the_verify_key_is_in_no_file_of_an_aggregator_once_its_task_is_installed(
    pair: Deployed, record_property: Callable[[str, str], None]
) -> None:
    task, verify_key = pair.task(4)
    operator_s_copy = pair.submit(task, verify_key)
    homes = [pair.config(position).parent for position in range(pair.count)]
    for position in range(pair.count):
        await asyncio.to_thread(pair.wait_state, position, task, TaskState.ANNOUNCED)

    found = [holding(verify_key, home) for home in homes]

    # The search finds it where the operator who made the task keeps it.
    assert holding(verify_key, operator_s_copy.parent)
    assert found == [[]] * pair.count
    record_property(FIGURE, f"0 files of {sum(len(list(home.rglob('*'))) for home in homes)}")
