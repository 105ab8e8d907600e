"""An aggregator as the first process of a container, which no signal ends that it does not take itself (F51)."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.processes
def test_as_process_1_it_ends_with_zero_and_all_its_processes_when_it_is_told_to(
    fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = ["unshare", "--pid", "--fork"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs the right to make a namespace of processes")
    monkeypatch.chdir(tmp_path)
    assert fleetcount("keys", "init", "--output", "dep", "--base-port", "0").code == 0
    command = [sys.executable, "-m", "fleetcount", "aggregator", "serve", "--config", "dep/alpha/aggregator.toml"]

    with subprocess.Popen([*namespace, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as outer:
        assert outer.stdout is not None
        try:
            line = outer.stdout.readline()
        finally:
            inner = _children(outer.pid)
            workers = [worker for one in inner for worker in _children(one)]
            for one in inner:
                os.kill(one, signal.SIGTERM)
        try:
            _, err = outer.communicate(timeout=60)
        finally:
            for one in inner:  # What has not ended goes, and with the first process all others of its namespace.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)

    assert json.loads(line)["event"] == "ready"
    assert outer.returncode == 0, err
    assert len(inner) == 1
    assert workers
    assert not [one for one in workers if Path(f"/proc/{one}").exists()]


def _children(process: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
