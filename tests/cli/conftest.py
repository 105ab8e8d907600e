"""The command run in this process: fast enough for a whole catalogue of bad input."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from fleetcount.__main__ import run_command


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def error_line(self) -> str:
        """The one line on stderr; anything else fails the test."""
        assert "Traceback" not in self.err
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        return lines[0]


@pytest.fixture
def fleetcount(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run(*arguments: str | Path) -> Ran:
        capsys.readouterr()  # What aggregators of this process logged before is not the command's.
        code = run_command([str(one) for one in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def deployed(fleetcount: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, which is the current one, with the files of a new deployment in `dep`."""
    monkeypatch.chdir(tmp_path)
    assert fleetcount("keys", "init", "--output", "dep", "--base-port", "0").code == 0
    return tmp_path
