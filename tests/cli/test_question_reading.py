"""What a reader sees of a question: records fetched and kept one by one, the chain followed, missing windows named."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fleetcount.command.base import CheckFailedError
from fleetcount.question.files import read_question
from fleetcount.read.records import Chain
from fleetcount_aggregator.windows.status import read_status
from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.question.orders import started_question
from fleetcount_protocol.release.record_json import record_from_json

from tests.cli.test_question_files import CREATE, SPEC
from tests.support.town import ASKING, Town

BRANDS = """
kind = "categories"
names = ["A", "B", "C"]
"""
WEEK = SPEC[: SPEC.index("kind =")].replace("CurrentLocation", "Category").replace("batch_size = 10", "batch_size = 2")
WEEK += BRANDS + SPEC[SPEC.index("[schedule]") :].replace("windows = 720", "windows = 6").replace('"10"', '"2"')
READER = ("--question", "q.question", "--config", "dep/analyst/analyst.toml")
TRUTHS = ("A", "A", "B", "C")


class Running:
    """A town with a question of six hourly windows, devices that answer, and a reader."""

    def __init__(self, town: Town, fleetcount: Callable) -> None:
        self.town, self._fleetcount = town, fleetcount
        self.schedule = read_question(town.root / "q.question").question.schedule

    async def command(self, *arguments: str) -> Any:
        # The command has an event loop of its own.
        return await asyncio.to_thread(self._fleetcount, "question", *arguments)

    async def records(self, *more: str) -> Any:
        return await self.command("release", *READER, "--output", "got", *more)

    async def status(self, *more: str) -> list[str]:
        ran = await self.command("status", *READER, *more)
        assert ran.code == 0, ran
        return [line for line in ran.out.splitlines() if not line.startswith("20")]

    async def operator(self, *arguments: str) -> None:
        given = (*arguments[1:], "--yes") if arguments[0] == "stop" else arguments[1:]
        ran = await self.command(arguments[0], "--config", "dep/alpha/aggregator.toml", *given, "q.question")
        assert ran.code == 0, ran

    async def answer(self, index: int) -> None:
        """Let a window pass in which every device answers."""
        await self.town.pass_to(self.schedule.opens(index) - 50)
        await self.town.pass_to(self.schedule.opens(index))
        await self.town.pass_to(self.schedule.closes(index))
        await self.town.pass_to(self.schedule.closes(index) + 5)


@pytest.fixture
async def running(fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.chdir(tmp_path)
    async with Town(tmp_path, fleetcount, devices=len(TRUTHS)) as town:
        town.told(
            monkeypatch,
            *ASKING,
            "fleetcount.read.release",
        )
        (tmp_path / "spec.toml").write_text(WEEK)
        assert fleetcount(*CREATE).code == 0
        asked = Running(town, fleetcount)
        await asked.operator("sign")
        assert fleetcount("question", "sign", "--config", "dep/beta/aggregator.toml", "q.question").code == 0
        await asked.operator("submit")
        for _ in range(2):
            await town.pass_to(town.clock.now() + 2)
        for number, truth in enumerate(TRUTHS, start=1):
            (tmp_path / "dep" / "devices" / f"{number:04d}" / "category.json").write_text(json.dumps(truth))
            town.drive(number)
        yield asked


async def test_records_are_kept_one_by_one_and_gaps_are_named_with_their_reason(running: Running) -> None:
    await running.answer(0)
    first = await running.records()
    await running.operator("pause", "--from", "2")
    await running.operator("resume", "--from", "4")
    await running.answer(1)
    ahead = await running.status()
    for index in range(2, 4):
        await running.answer(index)
    between = await running.status()
    await running.answer(4)
    kept = {path.name: path.stat().st_mtime_ns for path in Path("got").iterdir()}
    second = await running.records()
    again = await running.records()
    whole, from_kept = await running.status(), await running.status("--records", "got")

    assert from_kept == whole
    assert "paused: windows 2 to 3" in ahead
    assert ahead[-1].startswith("next: window 4 opens")
    assert "got: 1 new records, 1 in all" in first.out, first
    assert "no record: windows 2 to 3: paused; the next record will say why" in between
    assert "2 of 6 windows released, the last is window 1; all signatures and the chain hold" in between
    assert "got: 2 new records, 3 in all, every signature checked" in second.out
    assert "missing: windows 2 to 3: paused" in second.out
    assert "next: window 5 opens" in second.out
    assert "got: 0 new records, 3 in all" in again.out
    assert sorted(path.name for path in Path("got").iterdir()) == ["00000.json", "00001.json", "00004.json", "question"]
    assert all(Path("got", name).stat().st_mtime_ns == made for name, made in kept.items())
    cells = json.loads(Path("got/00004.json").read_text())["cells"]
    assert [cell["label"] for cell in cells] == ["A", "B", "C", "total"]


async def test_a_question_that_was_stopped_has_no_next_window(running: Running) -> None:
    await running.answer(0)
    await running.operator("stop", "--from", "3")
    await running.answer(1)
    stopped = await running.status()
    read = json.loads((await running.command("status", *READER, "--json")).out)
    await running.answer(2)

    assert "stopped by alpha: no window is asked from 3 on" in stopped
    assert stopped[-1].startswith("next: window 2 opens")
    assert read["ordered"] == [[3, 5]]
    assert (await running.status())[-1] == "no further window is asked"


async def test_no_record_is_promised_behind_the_last_window(running: Running) -> None:
    await running.answer(0)
    await running.operator("pause", "--from", "3")
    for index in range(1, 6):
        await running.answer(index)

    over = await running.status()

    assert "no record: windows 3 to 5: paused; no record comes after them that could say why" in over
    assert over[-1].startswith("the last window closed ")


async def test_no_record_is_promised_behind_a_stop(running: Running) -> None:
    await running.answer(0)
    await running.operator("pause", "--from", "2")
    await running.operator("stop", "--from", "3")
    for index in range(1, 5):
        await running.answer(index)

    over = await running.status()

    assert "no record: window 2: paused; no record comes after them that could say why" in over
    assert over[-1] == "no further window is asked"


async def test_a_directory_whose_records_do_not_hang_together_is_refused(running: Running) -> None:
    for index in range(3):
        await running.answer(index)
    assert (await running.records()).code == 0
    files = [Path(f"got/{index:05d}.json") for index in range(3)]
    texts = [file.read_text() for file in files]

    files[1].unlink()
    gap = await running.records()
    files[1].write_text(texts[2])
    twice = await running.records()
    changed = json.loads(texts[1])
    changed["cells"][0]["raw"] += 1
    files[1].write_text(json.dumps(changed))
    forged = await running.records()
    changed = json.loads(texts[1])
    changed["signatures"][0]["signature"] = changed["signatures"][1]["signature"]
    files[1].write_text(json.dumps(changed))
    unsigned = await running.records()
    files[1].write_text(texts[1])

    says = "the record of window 2 says that that of window 1 came before it; the one known is that of window 0"
    assert (gap.code, says in gap.error_line) == (1, True), gap
    assert (twice.code, "the one known is that of window 0" in twice.error_line) == (1, True), twice
    assert (forged.code, "not what the signed record says" in forged.error_line) == (2, True), forged
    assert (unsigned.code != 0, "does not verify" in unsigned.error_line) == (True, True), unsigned
    assert (await running.records()).code == 0


async def test_a_record_that_names_another_one_before_it_breaks_the_chain(running: Running) -> None:
    for index in range(2):
        await running.answer(index)
    await running.records()
    signed = read_question(Path("q.question"))
    first, second = (record_from_json(Path(f"got/0000{index}.json").read_text())[0] for index in range(2))
    assert second.chain is not None
    other = replace(second, chain=replace(second.chain, previous=Digest(bytes(32))))
    chain = Chain(signed.question)
    chain.follow(first)

    with pytest.raises(CheckFailedError, match="that of window 0 came before it with another digest"):
        chain.follow(other)
    chain.follow(second)
    with pytest.raises(CheckFailedError, match="the one known is that of window 1"):
        chain.follow(second)


async def test_waiting_goes_on_until_the_last_window_ends(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetcount.read.release._LOOK_S", 0.1)
    monkeypatch.setattr("fleetcount.read.release.time.sleep", time.sleep, raising=False)
    waiting = asyncio.create_task(running.records("--wait", "86400"))
    for index in range(5):
        await running.answer(index)
    await running.operator("stop", "--from", "5")
    # Decided about before it is over: a reader that sees it closed is told why it is missing.
    await running.town.pass_to(running.schedule.opens(5) - 50)
    await running.town.pass_to(running.schedule.end + 5)

    ran = await waiting

    assert "got: 5 new records, 5 in all" in ran.out, ran
    assert "no record: window 5: stopped" in ran.out
    assert "the last window closed" in ran.out


async def test_another_question_s_records_are_not_mixed_in(running: Running, fleetcount: Callable) -> None:
    await running.answer(0)
    await running.records()
    Path("spec.toml").write_text(WEEK.replace("where are you", "where were you").replace("Where", "When"))
    assert fleetcount(*(*CREATE[:-1], "r.question")).code == 0
    for name in ("alpha", "beta"):
        assert fleetcount("question", "sign", "--config", f"dep/{name}/aggregator.toml", "r.question").code == 0

    ran = await running.command(
        "release", "--question", "r.question", "--config", "dep/analyst/analyst.toml", "--output", "got"
    )

    assert (ran.code, "got has the records of question" in ran.error_line) == (2, True), ran


@pytest.fixture(params=[6, 1])
async def counted(
    request: pytest.FixtureRequest, fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Running]:
    """A town with a signed question that is counted from submission, of six windows or of one, not submitted yet."""
    monkeypatch.chdir(tmp_path)
    async with Town(tmp_path, fleetcount, devices=len(TRUTHS)) as town:
        town.told(monkeypatch, *ASKING, "fleetcount.read.release", "fleetcount.read.states")
        spec = WEEK.replace('opens = "in 10 min"', 'opens = "5 min after submission"\nsubmit_by = "in 2 h"')
        if request.param == 1:
            spec = spec.replace("windows = 6\n", "").replace('every = "1 h"\n', "").replace('delta = "1e-9"\n', "")
            spec = spec.replace('epsilon = "2"', 'epsilon = "1"')
        (tmp_path / "spec.toml").write_text(spec)
        made = fleetcount(*CREATE)
        assert made.code == 0, made
        asked = Running(town, fleetcount)
        await asked.operator("sign")
        assert fleetcount("question", "sign", "--config", "dep/beta/aggregator.toml", "q.question").code == 0
        for number, truth in enumerate(TRUTHS, start=1):
            (tmp_path / "dep" / "devices" / f"{number:04d}" / "category.json").write_text(json.dumps(truth))
            town.drive(number)
        yield asked


async def test_a_reader_of_a_question_that_is_not_submitted_reads_until_when_it_may_be(counted: Running) -> None:
    limits, many = counted.schedule.submission, counted.schedule.windows > 1
    assert limits is not None
    by = limits.latest - limits.delay_s
    early, seen = await counted.records(), await counted.status()
    await counted.town.pass_to(by + 1)
    late = await counted.records()

    assert [(early.code, late.code)] == [(0, 0) if many else (3, 3)]
    assert f"at no aggregator that answers; it may be submitted until {utc_text(by)}" in (
        early.out if many else early.err
    )
    assert f"at no aggregator that answers; it had to be submitted by {utc_text(by)}" in (
        late.out if many else late.err
    )
    assert seen[1:] == [
        f"0 of {counted.schedule.windows} windows released",
        f"not started: at no aggregator that answers; it may be submitted until {utc_text(by)}",
    ]
    assert not many or [one.name for one in Path("got").iterdir()] == ["question"]
    states = await counted.command("status", "--question", "q.question", "--config", "dep/alpha/aggregator.toml")
    assert (states.code, "is not installed at this aggregator" in states.error_line) == (3, True), states


async def test_a_reader_follows_a_question_from_the_start_that_its_leader_gave_it(counted: Running) -> None:
    submitted = counted.town.clock.now()
    await counted.operator("submit")
    for _ in range(2):
        await counted.town.pass_to(counted.town.clock.now() + 2)
    [known] = read_status(counted.town.configs[0].store_place).questions
    counted.schedule = started_question(
        read_question(Path("q.question")).question, (one.order for one in known.orders)
    ).schedule
    opens = counted.schedule.opens(0)
    ahead = await counted.status()
    await counted.answer(0)
    got = await counted.records()
    operator = await counted.command("status", "--question", "q.question", "--config", "dep/alpha/aggregator.toml")

    assert submitted + 300 <= opens <= submitted + 300 + 60
    assert ahead[-1] == f"next: window 0 opens {utc_text(opens)}"
    assert got.code == 0, got
    many = counted.schedule.windows > 1
    [path] = Path("got").glob("00000.json" if many else "release.json")
    record, _ = record_from_json(path.read_text())
    assert record.window.round_one_opens == opens
    assert not many or f"window 0, which opens {utc_text(opens)}" in operator.out
    if many:
        exported = await counted.command("export", "--records", "got", "--output", "got.csv")
        assert exported.code == 0, exported
