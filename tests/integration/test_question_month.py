"""A week of hourly counts as a newcomer asks for it: the command alone, two aggregators, six drivers, a told clock."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fleetcount.__main__ import run_command
from fleetcount.question.files import read_question
from fleetcount_aggregator.windows.status import read_status
from fleetcount_protocol.question.fields import Schedule
from fleetcount_protocol.question.orders import started_question

from tests.cli.conftest import Ran
from tests.support.town import ASKING, Town

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

SPEC = """
[question]
name = "What are you?"
deployment = "test"
signal = "Vehicle.Category"
mode = "direct"
min_batch_size = 2
time_precision_s = 60

[domain]
kind = "categories"
names = ["car", "van", "bus"]

[schedule]
opens = {opens}
every = "1 h"
windows = {windows}
window = "10 min"

[release]
epsilon = "{epsilon}"
followed = false
delta = "1e-9"
level = "0.999999"

[[aggregators]]
descriptor = "dep/alpha.descriptor.toml"

[[aggregators]]
descriptor = "dep/beta.descriptor.toml"
"""
AT_A_TIME = '"in 10 min"'
AFTER_SUBMISSION = '"10 min after submission"\nsubmit_by = "in 2 h"'
DRIVERS = ("car", "car", "car", "van", "van", "bus")
READER = ("--question", "week.question", "--config", "dep/analyst/analyst.toml")


@pytest.fixture
def fleetcount(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run(*arguments: str | Path) -> Ran:
        code = run_command([str(one) for one in arguments])
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return run


async def command(fleetcount: Callable[..., Ran], *arguments: str) -> str:
    """Run a command that must succeed, as a person does beside everything else; return what it prints."""
    ran = await asyncio.to_thread(fleetcount, *arguments)
    assert ran.code == 0, (arguments, ran)
    return ran.out


async def ask(fleetcount: Callable[..., Ran], town: Town, windows: int, epsilon: str, opens: str) -> Schedule:
    """Create, sign and submit the question, and let the drivers start; return its schedule."""
    Path("spec.toml").write_text(SPEC.format(windows=windows, epsilon=epsilon, opens=opens))
    await command(fleetcount, "question", "create", "--spec", "spec.toml", "--output", "week.question")
    for step, name in (("sign", "alpha"), ("sign", "beta"), ("submit", "alpha")):
        await command(fleetcount, "question", step, "--config", f"dep/{name}/aggregator.toml", "week.question")
    for _ in range(2):
        await town.pass_to(town.clock.now() + 2)
    for number, kind in enumerate(DRIVERS, start=1):
        (town.root / "dep" / "devices" / f"{number:04d}" / "category.json").write_text(json.dumps(kind))
        town.drive(number)
    [known] = read_status(town.configs[0].store_place).questions
    question = read_question(Path("week.question")).question
    return started_question(question, (one.order for one in known.orders)).schedule


@pytest.mark.parametrize(
    ("windows", "epsilon", "pause", "opens"),
    [
        pytest.param(12, "2.6", range(5, 7), AT_A_TIME, id="12-at-a-time"),
        pytest.param(7, "1.5", range(3, 5), AFTER_SUBMISSION, id="7-after-submission"),
        pytest.param(168, "9.9", range(50, 55), AT_A_TIME, id="168-at-a-time", marks=pytest.mark.nightly),
        pytest.param(168, "9.9", range(50, 55), AFTER_SUBMISSION, id="168-after-submission", marks=pytest.mark.nightly),
    ],
)
async def test_hour_after_hour_on_one_signature_with_a_pause_in_the_middle(
    fleetcount: Callable[..., Ran],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    windows: int,
    epsilon: str,
    pause: range,
    opens: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    duckdb: Any = pytest.importorskip("duckdb")
    asked = [index for index in range(windows) if index not in pause]
    early = pause.start - 2
    operator = ("--config", "dep/alpha/aggregator.toml", "week.question")
    async with Town(tmp_path, fleetcount, devices=len(DRIVERS)) as town:
        town.told(
            monkeypatch,
            *ASKING,
            "fleetcount.read.release",
            "fleetcount.run.device",
        )
        schedule = await ask(fleetcount, town, windows, epsilon, opens)
        for index in range(windows):
            if index == early:
                await command(fleetcount, "question", "pause", "--from", str(pause.start), *operator)
                await command(fleetcount, "question", "release", *READER, "--output", "got")
                await command(fleetcount, "question", "export", "--records", "got", "--output", "week.parquet")
            if index == pause.start:
                await command(fleetcount, "question", "resume", "--from", str(pause.stop), *operator)
            for moment in (schedule.opens(index) - 50, schedule.opens(index), schedule.closes(index)):
                await town.pass_to(moment)
            await town.pass_to(schedule.closes(index) + 5)
        status = await command(fleetcount, "question", "status", *READER)
        fetched = await command(fleetcount, "question", "release", *READER, "--output", "got")
        export = ("question", "export", "--records", "got")
        said = await command(fleetcount, *export, "--output", "week.parquet", "--sum", "1", "--largest", "3")
        lost = await command(fleetcount, "device", "ledger", "--config", "dep/devices/0001/device.toml")
    words = " ".join((await command(fleetcount, "question", "show", "week.question")).split())

    gap = f"windows {pause.start} to {pause.stop - 1}: paused"
    released = f"{len(asked)} of {windows} windows released, the last is window {windows - 1}"
    assert f"{released}; all signatures and the chain hold" in status
    assert f"missing: {gap}" in status
    assert f"got: {len(asked) - early} new records, {len(asked)} in all" in fetched
    rows = duckdb.sql("SELECT DISTINCT window_index FROM 'week.parquet' ORDER BY 1").fetchall()
    assert [row[0] for row in rows] == asked
    answer = next(line for line in said.splitlines() if line.startswith("sum of 1 cell"))
    low, high = (int(part.replace(",", "")) for part in answer.rsplit("interval ", 1)[1].split(" to "))
    assert low <= 3 * len(asked) <= high, answer
    assert f"not in it: {gap}" in said
    driver = r"all answers of a device together by at most e\^([0-9.]+) \(epsilons at delta 0.000000001; with"
    said_of_all = re.search(driver, words)
    # The noise is solved for at most what was asked, and may give a little less.
    assert said_of_all is not None
    assert 0 <= float(epsilon) - float(said_of_all[1]) < 0.02
    # Paused windows stay reserved until the device has looked at the question after its last window.
    [reserved] = [count for count in (len(pause), 0) if f"answered {len(asked)}, reserved {count}" in lost]
    [total] = [line for line in lost.splitlines() if " in the last " in line]
    assert f"{len(asked) + reserved} charges, within epsilon" in total
    assert 0 < float(total.split("within epsilon ")[1].split()[0]) <= 10


@pytest.mark.parametrize(
    ("windows", "epsilon", "rotate_s"),
    [
        pytest.param(12, "2.6", 3 * 3600, id="half a day"),
        pytest.param(720, "9.9", 7 * 86_400, id="a month", marks=pytest.mark.nightly),
    ],
)
async def test_a_month_with_a_pause_dead_parties_new_keys_and_a_stop_releases_every_other_window(
    fleetcount: Callable[..., Ran],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    windows: int,
    epsilon: str,
    rotate_s: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    pause, stop = range(windows // 4, windows // 4 + 2), windows - windows // 6
    helper_dies, leader_dies = windows // 3, windows // 2
    asked = [index for index in range(stop) if index not in pause]
    operator = ("--config", "dep/alpha/aggregator.toml", "week.question")
    async with Town(tmp_path, fleetcount, devices=len(DRIVERS), rotate_s=rotate_s) as town:
        town.told(monkeypatch, *ASKING, "fleetcount.read.release", "fleetcount.run.device")
        keys = [town.network.seats[position].keys for position in range(2)]
        first_keys = [{key_id for key_id, _, _ in one.listed()} for one in keys]
        schedule = await ask(fleetcount, town, windows, epsilon, AT_A_TIME)
        for index in range(windows):
            if index == pause.start - 2:
                await command(fleetcount, "question", "pause", "--from", str(pause.start), *operator)
            if index == pause.start:
                await command(fleetcount, "question", "resume", "--from", str(pause.stop), *operator)
            if index == stop - 1:
                await command(fleetcount, "question", "stop", "--yes", "--from", str(stop), *operator)
            opens, closes = schedule.opens(index), schedule.closes(index)
            await town.pass_to(opens - 50)
            if index == helper_dies:  # No device reaches it in the first half of the window.
                await town.kill(1)
                await town.pass_to((opens + closes) // 2)
                await town.start(1)
            await town.pass_to(closes)
            if index == leader_dies:  # It has receipted everything, and sealed nothing.
                await town.kill(0)
                await town.pass_to(closes + 120)
                await town.start(0)
                await town.pass_to(closes + 130)
            await town.pass_to(closes + 600)
        status = await command(fleetcount, "question", "status", *READER)
        await command(fleetcount, "question", "release", *READER, "--output", "got")
        said = await command(fleetcount, "question", "export", "--records", "got", "--sum", "1", "--output", "got.csv")
        last_keys = [{key_id for key_id, _, _ in one.listed()} for one in keys]
        ledgers = [
            await command(fleetcount, "device", "ledger", "--config", f"dep/devices/{number:04d}/device.toml")
            for number in range(1, len(DRIVERS) + 1)
        ]

    gap = f"windows {pause.start} to {pause.stop - 1}: paused"
    assert f"{len(asked)} of {windows} windows released, the last is window {stop - 1}" in status
    assert "all signatures and the chain hold" in status
    assert gap in status
    assert all(f"answered {len(asked)}, " in lost for lost in ledgers), ledgers
    assert not any(before & after for before, after in zip(first_keys, last_keys, strict=True))
    answer = next(line for line in said.splitlines() if line.startswith("sum of 1 cell"))
    low, high = (int(part.replace(",", "")) for part in answer.rsplit("interval ", 1)[1].split(" to "))
    assert low <= 3 * len(asked) <= high, answer
