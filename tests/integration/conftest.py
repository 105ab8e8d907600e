"""The deployments that tests of this folder share, and what they have in common."""

import pytest

from tests.support.live import _compiled, broker, pair, target, trio
from tests.support.processes import without_numba

__all__ = ["_compiled", "broker", "pair", "target", "trio"]


@pytest.fixture
def plain_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all processes verify in plain Python: a few reports are no reason to load compiled code."""
    for name, value in without_numba().items():
        monkeypatch.setenv(name, value)
