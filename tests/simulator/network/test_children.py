"""Children of a run: ready when they say so, named when they fail, and always ended."""

import asyncio
import shutil
import sys
from pathlib import Path

import aiomqtt
import pytest
from fleetcount_simulator.errors import ProcessError
from fleetcount_simulator.network.children import Child, Children

pytestmark = pytest.mark.processes

READY = 'import time, sys; print(\'{"ready": true, "n": 1}\', flush=True);'
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + READY + "time.sleep(600)"


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


async def test_a_child_is_ready_with_its_own_line(tmp_path: Path) -> None:
    async with Children(tmp_path) as children:
        child = await children.start("one", python("print('noise');" + READY + "time.sleep(600)"))

        assert await child.ready(60) == {"ready": True, "n": 1}


async def test_a_child_that_fails_to_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    async with Children(tmp_path) as children:
        child = await children.start("one", python("raise SystemExit('no such key')"))

        with pytest.raises(ProcessError, match="one ended with code 1 before it was ready: no such key"):
            await child.ready(60)
        with pytest.raises(ProcessError, match="two cannot be started"):
            await children.start("two", ["/nonexistent/program"])


async def test_a_child_without_a_word_is_said_to_have_none_and_a_full_disk_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Children(tmp_path) as children:
        for free, said in (
            (1 << 30, f"it wrote nothing to {tmp_path}/one.log"),
            (4096, f"the disk of {tmp_path} is full"),
        ):
            monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: shutil._ntuple_diskusage(1 << 40, 0, free))
            child = await children.start("one", python("raise SystemExit(120)"))

            with pytest.raises(ProcessError, match=f"one ended with code 120 before it was ready: {said}"):
                await child.ready(60)


@pytest.mark.parametrize(
    ("program", "term_s", "code"),
    [(READY + "time.sleep(600)", 60.0, -15), (STUBBORN, 0.3, -9)],
    ids=["meek", "stubborn"],
)
async def test_every_child_is_ended_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, term_s: float, code: int
) -> None:
    monkeypatch.setattr("fleetcount_simulator.network.children._TERM_S", term_s)
    started: list[Child] = []

    async def run() -> None:
        async with Children(tmp_path) as children:
            for name in ("one", "two"):
                started.append(await children.start(name, python(program)))
                await started[-1].ready(60)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await run()

    assert [child.process.returncode for child in started] == [code] * 2


async def test_an_interrupted_run_ends_its_children_too(tmp_path: Path) -> None:
    started: list[Child] = []
    runs = asyncio.Event()

    async def run() -> None:
        async with Children(tmp_path) as children:
            started.append(await children.start("one", python(READY + "time.sleep(600)")))
            await started[0].ready(60)
            runs.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await runs.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert started[0].process.returncode is not None


async def test_the_embedded_broker_delivers_on_a_port_of_its_own_and_ends_on_sigterm(tmp_path: Path) -> None:
    async with Children(tmp_path) as children:
        child = await children.start("broker", [sys.executable, "-m", "fleetcount_simulator.network.broker"])
        port = (await child.ready(60))["port"]

        async with aiomqtt.Client("127.0.0.1", port, identifier="one") as client:
            await client.subscribe("a/#", qos=1)
            await client.publish("a/b", b"sealed", qos=1)
            async with asyncio.timeout(60):
                message = await anext(client.messages)

    assert message.payload == b"sealed"
    assert child.process.returncode == 0
    assert child.log.read_text() == ""
