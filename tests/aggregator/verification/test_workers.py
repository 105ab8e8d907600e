"""Compiled code that crashes its process gives way to NumPy; compiling ahead is waited for by who needs it."""

import asyncio
import gc
import multiprocessing
import os
import signal
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
from fleetcount_aggregator.verification import compile_ahead as warming
from fleetcount_aggregator.verification import self_check as kernel_check
from fleetcount_aggregator.verification.compile_ahead import STEPS, _compile, compile_ahead
from fleetcount_aggregator.verification.share_arithmetic import ProofSetting
from fleetcount_aggregator.verification.workers import ProcessWorkers
from fleetcount_kernel import compiling
from structlog.testing import capture_logs

from tests.support.dying import (
    asked_for,
    dies_of_compiled_code,
    dies_once,
    kill_oneself,
    loaded,
    loaded_by_readings,
    nothing,
    wait_for,
)

pytestmark = pytest.mark.processes

SETTING = ProofSetting(window=b"", verify_key=b"", position=0)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGSEGV, marks=pytest.mark.nightly), signal.SIGILL])
async def test_machine_code_that_crashes_its_worker_gives_way_to_numpy(number: int) -> None:
    workers = ProcessWorkers(1, warm=False)

    with capture_logs() as logs:
        first = await asyncio.gather(*(workers.run(dies_of_compiled_code, SETTING, number) for _ in range(3)))
        worker = await workers.run(os.getpid)
        later = await workers.run(dies_of_compiled_code, SETTING, number)

    assert first == ["arrays"] * 3
    assert later == "arrays"
    assert await workers.run(os.getpid) == worker
    assert [one["event"] for one in logs if one["log_level"] == "error"] == ["compiled_verifier_crashed"]
    await workers.close()


async def test_a_worker_killed_from_outside_says_nothing_of_its_machine_code(tmp_path: Path) -> None:
    workers = ProcessWorkers(1, warm=False)

    with capture_logs() as logs:
        first = await workers.run(dies_once, SETTING, tmp_path / "mark")

    assert first == await workers.run(asked_for, SETTING) == "auto"
    assert [(one["event"], one["exit_codes"]) for one in logs] == [("worker_died", [-signal.SIGKILL])]
    await workers.close()


async def test_killed_workers_leave_one_line_and_no_tracebacks_of_their_tracker(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    workers = ProcessWorkers(1, warm=False)
    await workers.run(os.getpid)
    tracker = resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]  # Who kills all children kills it.
    os.kill(tracker, signal.SIGKILL)

    with capture_logs() as logs:
        await workers.run(dies_once, SETTING, tmp_path / "mark")
    await workers.close()
    del workers
    gc.collect()  # What the first pool registered is given back to a tracker that never heard of it.
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]  # Until it has said all it has to say.

    assert capfd.readouterr().err == ""
    assert [one["event"] for one in logs] == ["worker_died"]


@pytest.mark.nightly  # Three workers one after the other.
async def test_a_crash_without_compiled_code_leaves_it_in_use() -> None:
    workers = ProcessWorkers(1, warm=False)

    with pytest.raises(Exception, match="died 3 times"):
        await workers.run(kill_oneself, signal.SIGSEGV)

    assert await workers.run(asked_for, SETTING) == "auto"
    await workers.close()


async def test_what_needs_compiled_code_waits_until_it_is_compiled_and_nothing_else_does(tmp_path: Path) -> None:
    workers = ProcessWorkers(1, warm=False)
    mark = tmp_path / "compiled"
    workers.compile_ahead(partial(compile_ahead, [("waiting", partial(wait_for, mark))]))

    verifying = asyncio.ensure_future(workers.run(asked_for, SETTING))
    other = await workers.run(os.getpid)
    small = await workers.run(asked_for, ProofSetting(window=b"", verify_key=b"", position=0, prefer="arrays"))

    assert other != os.getpid()
    assert small == "arrays"
    assert not verifying.done()
    mark.touch()
    assert await verifying == "auto"
    await workers.close()


async def test_compiling_begins_at_once_when_it_is_needed() -> None:
    workers = ProcessWorkers(1, warm=False)
    workers.compile_ahead(partial(compile_ahead, [("quick", nothing)]), pause_s=600)

    other = await workers.run(os.getpid)
    async with asyncio.timeout(60):
        found = await workers.run(asked_for, SETTING)

    assert (found, other != os.getpid()) == ("auto", True)
    await workers.close()


async def test_workers_that_end_in_the_pause_compile_nothing() -> None:
    workers = ProcessWorkers(1, warm=False)
    begun: list[int] = []

    async def compiling() -> bool:
        begun.append(1)
        return True

    workers.compile_ahead(compiling, pause_s=600)
    await asyncio.sleep(0)
    await workers.close()

    assert begun == []


async def test_compiled_code_that_crashes_while_it_is_tried_out_is_never_given_to_a_worker() -> None:
    workers = ProcessWorkers(1, warm=False)

    with capture_logs() as logs:
        workers.compile_ahead(partial(compile_ahead, [("crashing", partial(kill_oneself, signal.SIGILL))]))
        found = await workers.run(asked_for, SETTING)

    assert found == "arrays"
    assert "compiled_verifier_crashed" in [one["event"] for one in logs]
    await workers.close()


def test_a_process_that_compiles_ends_when_nobody_follows_it_any_more(tmp_path: Path) -> None:
    reader, writer = multiprocessing.Pipe(duplex=False)
    reader.close()
    process = multiprocessing.get_context("spawn").Process(
        target=_compile, args=(writer, [("a mark", partial(Path.touch, tmp_path / "mark"))])
    )

    process.start()
    process.join()

    assert process.exitcode == 0
    assert not (tmp_path / "mark").exists()


async def test_compiling_says_how_far_it_is_when_it_takes_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warming, "_QUIET_S", 0.0)
    mark = tmp_path / "compiled"

    with capture_logs() as logs:
        running = asyncio.ensure_future(compile_ahead([("quick", nothing), ("slow", partial(wait_for, mark))]))
        while not any(one.get("step") == 2 for one in logs):
            await asyncio.sleep(0.01)
        mark.touch()

        assert await running
    said = [one for one in logs if one["event"] == "compiling_batch_verifier"]
    assert {(one["what"], one["step"], one["of"]) for one in said} >= {("slow", 2, 2)}


async def test_compiling_that_does_not_end_is_ended(tmp_path: Path) -> None:
    with capture_logs() as logs:
        worked = await compile_ahead([("stuck", partial(wait_for, tmp_path / "never"))], patience_s=0.2)

    assert worked
    assert [one["event"] for one in logs] == ["batch_verifier_not_compiled"]


async def test_workers_that_end_end_the_compiling(tmp_path: Path) -> None:
    workers = ProcessWorkers(1, warm=False)
    begun = tmp_path / "begun"
    steps = [("begun", begun.touch), ("stuck", partial(wait_for, tmp_path / "never"))]
    workers.compile_ahead(partial(compile_ahead, steps))
    while not begun.exists():
        await asyncio.sleep(0.01)

    await workers.close()

    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("kept", [True, False])
def test_every_kind_of_window_is_compiled_ahead_where_that_is_of_use(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[tuple[str, int]] = []
    monkeypatch.setattr(compiling, "cache_directory", lambda: tmp_path if kept else None)
    monkeypatch.setattr(kernel_check, "may_verify", lambda prio3, at: compiled.append((prio3.circuit.name, at)))
    monkeypatch.setattr(kernel_check, "may_combine", lambda prio3: compiled.append((prio3.circuit.name, -1)))

    for _, step in STEPS:
        step()

    assert len(set(compiled)) == len(compiled) == (9 if kept else 0)


async def test_a_worker_loads_no_event_loop_no_transport_and_no_logging() -> None:
    workers = ProcessWorkers(1, warm=True)
    try:
        found = await workers.run(
            loaded, frozenset({"asyncio", "ssl", "grpc", "structlog", "cryptography.x509", "scipy.special"})
        )
    finally:
        await workers.close()

    assert found == set()


async def test_a_worker_reads_a_release_of_every_design_without_the_laws_of_scipy() -> None:
    workers = ProcessWorkers(1, warm=False)
    try:
        found = await workers.run(loaded_by_readings, frozenset({"scipy.stats", "scipy.special"}))
    finally:
        await workers.close()

    assert found == {"scipy.special"}
