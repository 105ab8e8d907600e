"""`make test` writes in memory: it removes what killed runs left there, and nothing of programs that live."""

import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    loader = SourceFileLoader("scripts_test", str(ROOT / "scripts" / "test"))
    spec = spec_from_loader("scripts_test", loader)
    assert spec is not None
    module = module_from_spec(spec)
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.setitem(sys.modules, loader.name, module)
    loader.exec_module(module)
    return module


def test_what_a_killed_run_left_is_removed_and_nothing_else(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    killed, lives, others = (tmp_path / f"fleetcount-{name}" for name in (ended.pid, os.getppid(), "jc61bkyj"))
    for one in (killed, lives, others):
        (one / "files").mkdir(parents=True)
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(script, "MEMORY", tmp_path)
    monkeypatch.setattr(script, "NEEDED_BYTES", 0)

    with script.memory() as told:
        assert Path(told["TMPDIR"]).parent == tmp_path
        assert sorted(tmp_path.iterdir()) == sorted([lives, others, Path(told["TMPDIR"])])

    assert sorted(tmp_path.iterdir()) == sorted([lives, others])
