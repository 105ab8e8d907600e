"""What lies in the files of an aggregator while its windows run."""

import asyncio
import base64
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
from fleetcount_protocol.limits import VERIFY_KEY_BYTES
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.question import window_at, window_verify_key

from tests.attack.suite import FIGURE
from tests.support.deployment import Deployed

pytestmark = pytest.mark.processes


def holding(secret: bytes, directory: Path) -> list[str]:
    """Return the files below a directory that hold a secret: as it is, in hexadecimal or in base64."""
    forms = (secret, secret.hex().encode(), base64.b64encode(secret).rstrip(b"=")[:-1])
    files = [path for path in directory.rglob("*") if path.is_file()]
    return [path.name for path in files if any(form in path.read_bytes() for form in forms)]


async def test_neither_seed_nor_verify_key_is_in_a_file_of_an_aggregator_once_a_question_is_installed(
    pair: Deployed, tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    seed = secrets.token_bytes(VERIFY_KEY_BYTES)
    (tmp_path / "question.seed").write_bytes(seed)
    window = window_at(pair.submit(pair.question(4), seed), 0)
    homes = [pair.config(position).parent for position in range(pair.count)]
    for position in range(pair.count):
        await asyncio.to_thread(pair.wait_state, position, window, WindowState.ANNOUNCED)

    verify_key = window_verify_key(seed, window.window_id)
    found = [holding(secret, home) for home in homes for secret in (seed, verify_key)]

    # The search finds it where the operator who made the question keeps it.
    assert holding(seed, tmp_path)
    assert found == [[]] * 2 * pair.count
    record_property(FIGURE, f"0 files of {sum(len(list(home.rglob('*'))) for home in homes)}")
