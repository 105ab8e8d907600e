"""Pause, resume and stop as operators give them: numbered, for windows still open to change, taken by aggregators."""

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount.question.files import read_question
from fleetcount_aggregator.process.app import limits_of
from fleetcount_aggregator.windows.status import read_spent, read_status
from fleetcount_protocol.question.fields import Coin
from fleetcount_protocol.question.orders import (
    OrderAction,
    QuestionOrder,
    encode_signed_order,
    sign_order,
    started_question,
)
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.window.signal import normal_signal

from tests.cli.test_question_files import CREATE, SAMPLED, SPEC
from tests.support.town import ASKING, Town


class Asked:
    """A town with one question of 720 hourly windows, installed everywhere."""

    def __init__(self, town: Town, fleetcount: Callable) -> None:
        self.town, self._fleetcount = town, fleetcount
        self.question: Question = read_question(town.root / "q.question").question

    def order(self, action: str, *more: str, by: str = "alpha") -> Any:
        sure = ("--yes",) if action == "stop" else ()
        config = ("--config", f"dep/{by}/aggregator.toml")
        return self._fleetcount("question", action, *config, *more, *sure, "q.question")

    def orders(self, by: str = "alpha") -> list[str]:
        return sorted(path.name for path in (self.town.root / "dep" / by / "questions").glob("q.0*"))

    async def missing(self, position: int) -> dict[int, str]:
        return await self.town.network.missing(self.question, position)


@pytest.fixture
async def asked(fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Asked]:
    monkeypatch.chdir(tmp_path)
    async with Town(tmp_path, fleetcount) as town:
        town.told(monkeypatch, *ASKING)
        (tmp_path / "spec.toml").write_text(SPEC)
        assert fleetcount(*CREATE).code == 0
        early = fleetcount("question", "pause", "--config", "dep/alpha/aggregator.toml", "q.question")
        assert (early.code, "is not installed at this aggregator" in early.error_line) == (3, True)
        for step, name in (("sign", "alpha"), ("sign", "beta"), ("submit", "alpha")):
            assert fleetcount("question", step, "--config", f"dep/{name}/aggregator.toml", "q.question").code == 0
        await town.pass_to(town.clock.now() + 2)
        await town.pass_to(town.clock.now() + 2)
        yield Asked(town, fleetcount)


async def test_orders_are_numbered_and_taken_and_skip_their_windows_everywhere(asked: Asked) -> None:
    schedule, town = asked.question.schedule, asked.town
    third = asked.order("pause", "--from", "3")
    assert "pause from window 3 on, which opens" in third.out
    await town.pass_to(town.clock.now() + 2)
    assert asked.order("resume", "--from", "5").code == 0
    await town.pass_to(schedule.opens(4))
    stop = asked.order("stop", "--from", "7", by="beta")
    await town.pass_to(town.clock.now() + 2)
    for index in range(5, 9):
        await town.pass_to(schedule.opens(index))

    assert asked.orders() == ["q.0001.order", "q.0002.order"]
    assert (stop.code, asked.orders("beta")) == (0, ["q.0001.order"])
    for position in (0, 1):
        expected = {3: "paused", 4: "paused", 7: "stopped", 8: "stopped"}
        assert {index: why for index, why in (await asked.missing(position)).items() if index > 2} == expected


async def test_without_a_window_the_next_that_can_still_be_skipped_is_meant(asked: Asked) -> None:
    schedule, town = asked.question.schedule, asked.town
    await town.pass_to(schedule.opens(2) - 62)

    assert "pause from window 3 on" in asked.order("pause").out
    await town.pass_to(schedule.opens(2) - 30)
    assert not [name for name in asked.orders() if name.endswith(".refused")]


@pytest.mark.parametrize(
    ("arguments", "by", "code", "said"),
    [
        (("pause", "--from", "2"), "alpha", 2, "--from is window 2, allowed: 3 to 719"),
        (("pause", "--from", "720"), "alpha", 2, "--from is '720', allowed: a window's number, 0 to 719, or a time"),
        (("stop", "--from", "2020-01-01T00:00Z"), "alpha", 2, "is '2020-01-01T00:00Z', window 0, allowed: 3 to 719"),
        (("stop", "--from", "2099-01-01T00:00Z"), "alpha", 2, "allowed: 3 to 719"),
        (("stop", "--from", "2027-12-01T00:00+01:00"), "alpha", 2, "a time in UTC"),
        (("stop", "--from", "2027-12-01T00:00"), "alpha", 2, "a time in UTC"),
        (("stop", "--from", "soon"), "alpha", 2, "--from is 'soon', allowed"),
        (("pause",), "beta", 3, "pause is for the leader, 'alpha'; 'beta' may stop its own part"),
        (("resume",), "beta", 3, "resume is for the leader"),
        (("resume",), "alpha", 3, "resume from window 3 on changes nothing: none from there on is skipped"),
    ],
)
async def test_a_bad_order_is_one_line_and_no_file(
    asked: Asked, arguments: tuple[str, ...], by: str, code: int, said: str
) -> None:
    await asked.town.pass_to(asked.question.schedule.opens(2))

    ran = asked.order(*arguments, by=by)

    assert (ran.code, said in ran.error_line) == (code, True), ran
    assert asked.orders(by) == []


async def test_nothing_follows_a_stop_not_even_one_that_is_not_taken_yet(asked: Asked) -> None:
    assert asked.order("stop", "--from", "4").code == 0
    waiting = asked.order("stop", "--from", "6")
    await asked.town.pass_to(asked.town.clock.now() + 2)
    taken = asked.order("resume", "--from", "6")

    assert (waiting.code, "nothing follows a stop" in waiting.error_line) == (3, True)
    assert (taken.code, "nothing follows a stop" in taken.error_line) == (3, True)
    assert asked.orders() == ["q.0001.order"]


async def test_a_refused_order_keeps_its_number_and_does_not_stop_what_follows(asked: Asked) -> None:
    assert asked.order("stop", "--from", "4").code == 0
    (asked.town.root / "dep" / "alpha" / "questions" / "q.0001.refused").write_text("no\n")

    assert asked.order("pause", "--from", "6").code == 0

    assert [name for name in asked.orders() if name.endswith(".order")] == ["q.0001.order", "q.0002.order"]


async def test_a_pause_or_resume_that_changes_nothing_is_refused_and_takes_no_number(asked: Asked) -> None:
    assert asked.order("pause", "--from", "4").code == 0
    waiting = asked.order("pause", "--from", "4")
    await asked.town.pass_to(asked.town.clock.now() + 2)
    taken = asked.order("pause", "--from", "9")
    assert asked.order("resume", "--from", "8").code == 0
    again = asked.order("resume", "--from", "10")
    assert asked.order("stop", "--from", "12", by="beta").code == 0
    await asked.town.pass_to(asked.town.clock.now() + 2)
    await asked.town.pass_to(asked.town.clock.now() + 2)
    stopped = asked.order("pause", "--from", "12")

    for ran, said in (
        (waiting, "pause from window 4 on changes nothing: windows 4 to 719 are skipped"),
        (taken, "pause from window 9 on changes nothing: windows 9 to 719 are skipped"),
        (again, "resume from window 10 on changes nothing: none from there on is skipped"),
        (stopped, "changes nothing: windows 12 to 719 are skipped, those from 12 on for good"),
    ):
        assert (ran.code, ran.error_line.endswith(said)) == (3, True), ran
    assert asked.orders() == ["q.0001.order", "q.0002.order"]


async def test_what_a_stranger_signed_takes_no_number(asked: Asked) -> None:
    order = QuestionOrder(
        question_id=asked.question.question_id,
        number=2**32 - 1,
        action=OrderAction.STOP,
        aggregator_id=asked.question.aggregators[0].aggregator_id,
        from_window=5,
    )
    forged = encode_signed_order(sign_order(order, Ed25519PrivateKey.generate()))
    (asked.town.root / "dep" / "alpha" / "questions" / "forged.order").write_bytes(forged)

    assert asked.order("pause", "--from", "6").code == 0

    await asked.town.pass_to(asked.town.clock.now() + 2)
    refused = asked.town.root / "dep" / "alpha" / "questions" / "forged.refused"
    assert refused.read_text() == "signature of alpha under order 4294967295 does not verify\n"
    assert asked.orders() == ["q.0001.order"]


async def test_a_stop_says_first_what_stays_charged_and_writes_nothing_without_a_word(asked: Asked) -> None:
    unsure = asked._fleetcount("question", "stop", "--config", "dep/alpha/aggregator.toml", "q.question")
    assert unsure.code != 0
    assert asked.orders() == []

    stop = asked.order("stop", "--from", "9", by="beta")
    assert "this ends question 'Where are you now?' for good, at all aggregators, from window 9 on" in stop.out
    assert "each aggregator (alpha, beta): epsilon" in stop.out
    assert "stays, for windows 0 to 8\n" in stop.out
    assert "each device: what it reserved for windows 9 to 719 comes back; what it answered stays charged" in stop.out


DRIVERS = 2


class Started(Asked):
    """A town with a question that is counted from submission, installed everywhere, and drivers who have joined it."""

    def __init__(self, town: Town, fleetcount: Callable) -> None:
        super().__init__(town, fleetcount)
        place = self.town.configs[0].store_place
        (known,) = read_status(place).questions
        self.question = started_question(self.question, (one.order for one in known.orders))

    def spent(self) -> list[str]:
        """Return what each aggregator's store says that the question costs."""
        limits, now = limits_of(self.town.configs[0]), self.town.clock.now()
        spent = [read_spent(one.store_place, limits, now) for one in self.town.configs]
        return [f"{one.get(normal_signal(self.question.signal), 0)}" for one in spent]

    def charges(self) -> list[tuple[int, int]]:
        """Return how many charges each driver has, and of how many something was sent."""
        charges = [device.spool.charges() for device in self.town.devices]
        return [(len(one), sum(charge.sent for charge in one)) for one in charges]

    async def pass_some(self) -> None:
        """Let orders be taken, handed over and fetched by devices, which ask every ten minutes."""
        for _ in range(3):
            await self.town.pass_to(self.town.clock.now() + 2)
        await self.town.pass_to(self.town.clock.now() + 601)


@pytest.fixture(params=["window", "question"])
async def started(
    request: pytest.FixtureRequest, fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Started]:
    monkeypatch.chdir(tmp_path)
    async with Town(tmp_path, fleetcount, devices=DRIVERS) as town:
        town.told(monkeypatch, *ASKING)
        spec = (
            SPEC if request.param == "window" else SAMPLED.replace("windows = 720", 'windows = 720\ncoin = "question"')
        )
        counted = spec.replace('opens = "in 10 min"', 'opens = "20 min after submission"\nsubmit_by = "in 2 h"')
        few = counted.replace("windows = 720", "windows = 6").replace("min_batch_size = 10", "min_batch_size = 2")
        (tmp_path / "spec.toml").write_text(few.replace('epsilon = "10"', 'epsilon = "1"'))
        made = fleetcount(*CREATE)
        assert made.code == 0, made
        for step, name in (("sign", "alpha"), ("sign", "beta"), ("submit", "alpha")):
            ran = fleetcount("question", step, "--config", f"dep/{name}/aggregator.toml", "q.question")
            assert ran.code == 0, ran
        await town.pass_to(town.clock.now() + 2)
        await town.pass_to(town.clock.now() + 2)
        for number in range(1, DRIVERS + 1):
            place = tmp_path / "dep" / "devices" / f"{number:04d}" / "currentlocation.json"
            place.write_text('{"x": 10, "y": 10}')
            town.drive(number)
        await town.pass_to(town.clock.now() + 2)
        yield Started(town, fleetcount)


def told(out: str) -> tuple[str, str, str]:
    """Return what a stop says that was charged and stays, and its line about devices."""
    found = re.search(r"epsilon (\S+) on \S+ was charged for windows 0 to 5; (all|\S+)", out)
    assert found is not None, out
    [devices] = [line for line in out.splitlines() if line.startswith("each device: ")]
    return found[1], found[2], devices


async def test_what_is_stopped_before_its_first_window_costs_nobody_anything(started: Started) -> None:
    [whole, other] = started.spent()
    reserved = started.charges()
    stop = started.order("stop", "--from", "0")
    await started.pass_some()

    charged, stays, devices = told(stop.out)
    assert (charged, stays) == (whole, "all") == (other, "all")
    assert devices == "each device: what it reserved for windows 0 to 5 comes back; nothing was answered"
    assert all(count > 0 and not sent for count, sent in reserved), reserved
    assert started.charges() == [(0, 0)] * DRIVERS
    assert started.spent() == ["0", "0"]


@pytest.mark.parametrize("window", [1, 3], ids=["while the first is open", "later"])
async def test_what_a_stop_says_that_stays_charged_is_what_stays(started: Started, window: int) -> None:
    [whole, _] = started.spent()
    schedule = started.question.schedule
    for index in range(window - 1):
        await started.town.pass_to(schedule.opens(index) + 1)
        await started.town.pass_to(schedule.closes(index) + 5)
    await started.town.pass_to(schedule.closes(window - 1) - 10)  # Every device has answered by then.
    stop = started.order("stop")
    await started.pass_some()

    charged, stays, devices = told(stop.out)
    assert f"from window {window} on" in stop.out
    assert f"stays, for {'window 0' if window == 1 else 'windows 0 to 2'}" in stop.out
    assert charged == whole
    assert started.spent() == [stays, stays]
    if started.question.coin is Coin.WINDOW:
        assert devices.endswith(f"for windows {window} to 5 comes back; what it answered stays charged")
        assert started.charges() == [(window, window)] * DRIVERS
    else:
        assert stays == whole, "one toss holds for all windows"
        assert devices.endswith(
            "comes back where nothing of the same toss was sent; a toss of which anything was sent stays charged whole"
        )
        assert started.charges() == [(1, 1)] * DRIVERS


async def test_a_stop_counts_from_an_earlier_one_and_one_that_changes_nothing_is_refused(asked: Asked) -> None:
    assert asked.order("stop", "--from", "9", by="beta").code == 0
    for _ in range(2):
        await asked.town.pass_to(asked.town.clock.now() + 2)
    later = asked.order("stop", "--from", "12")
    limits, now = limits_of(asked.town.configs[0]), asked.town.clock.now()
    [held] = read_spent(asked.town.configs[0].store_place, limits, now).values()
    sooner = asked.order("stop", "--from", "4")

    assert (later.code, "stop from window 12 on changes nothing" in later.error_line) == (3, True), later
    assert f"epsilon {held} on Vehicle.CurrentLocation was charged for windows 0 to 8; " in sooner.out
    assert "stays, for windows 0 to 3\n" in sooner.out
    assert "each device: what it reserved for windows 4 to 8 comes back; what it answered stays charged" in sooner.out


async def test_a_stop_of_paused_windows_is_taken_since_they_may_come_back(asked: Asked) -> None:
    assert asked.order("pause", "--from", "4").code == 0

    assert asked.order("stop", "--from", "6").code == 0


@pytest.mark.parametrize("action", ["pause", "resume"])
def test_only_what_asks_takes_the_answer_beforehand(fleetcount: Callable, action: str) -> None:
    refused = fleetcount("question", action, "--yes", "q.question")
    assert (refused.code, "No such option '--yes'" in refused.error_line) == (2, True)
