"""Pause, resume and stop as operators give them: numbered, for windows still open to change, taken by aggregators."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount.question_files import read_question
from fleetcount_protocol.question.orders import OrderAction, QuestionOrder, encode_signed_order, sign_order
from fleetcount_protocol.question.question import Question

from tests.cli.test_question_files import CREATE, SPEC
from tests.support.town import Town

HOUR = 3600


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
        town.told(monkeypatch, "fleetcount.question_commands")
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
    assert "windows 0 to 8" in stop.out
    assert "each device: what it reserved for windows 9 to 719 comes back" in stop.out
    whole = asked.order("stop", "--from", "0")
    assert "all of it comes back" in whole.out
    assert "each device: what it reserved comes back; nothing was answered" in whole.out
