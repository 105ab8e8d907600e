"""Programs that hold secrets leave no core file and let nobody attach; each of them says so first."""

import subprocess
import sys

import pytest
from fleetcount.__main__ import run_command
from fleetcount_aggregator.verification.workers import ProcessWorkers
from fleetcount_transport import hardening

TELL = (
    "import ctypes, resource; from fleetcount_transport.hardening import keep_out_of_dumps; "
    "seen = lambda: (ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), resource.getrlimit(resource.RLIMIT_CORE)); "
    "before = seen(); keep_out_of_dumps(); print(before[0], seen())"
)


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="prctl(2) is Linux's")
def test_a_process_is_not_dumpable_afterwards_and_was_before() -> None:
    said = subprocess.run([sys.executable, "-c", TELL], capture_output=True, text=True, check=True).stdout

    assert said.split(maxsplit=1) == ["1", "(0, (0, 0))\n"]


def _in_worker() -> int:
    import ctypes

    return ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="prctl(2) is Linux's")
async def test_workers_that_see_shares_are_not_dumpable() -> None:
    workers = ProcessWorkers(1, warm=False)

    assert await workers.run(_in_worker) == 0
    await workers.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(hardening, "keep_out_of_dumps", lambda: found.append("asked"))
    return found


@pytest.mark.parametrize(
    "command",
    [
        "aggregator serve --config no-such-file.toml",
        "aggregator check --config no-such-file.toml",
        "device run --config no-such-file.toml",
        "relay --config no-such-file.toml",
        "console --config no-such-file.toml",
        "doctor --config no-such-file.toml",
        "keys descriptor --config no-such-file.toml --from no-such-file.toml --output no-such-directory/descriptor",
        "pki revoke --pki no-such-directory --certificate no-such-file.crt",
        "operator join no-such-file.toml --directory no-such-directory",
        "broker join no-such-file.toml --directory no-such-directory",
        "analyst new ana no-such-file.toml",
        "broker new broker --host b.example no-such-file.toml",
        "question sign --config no-such-file.toml no-such-file.question",
    ],
)
def test_every_program_with_keys_asks_before_it_reads_anything(asked: list[str], command: str) -> None:
    code = run_command(command.split())

    assert code == 2
    assert asked == ["asked"]


def test_a_program_without_keys_may_be_looked_into(asked: list[str]) -> None:
    assert run_command(["verify", "no-such-file.json", "--config", "no-such-file.toml"]) == 2
    assert asked == []
