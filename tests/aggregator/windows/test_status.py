"""What an operator sees of questions: how far each is, what comes next, and which windows are missing for which
reason.
"""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from fleetcount.command.base import CannotReachError, RefusedByPolicyError
from fleetcount.groups import aggregator
from fleetcount.read import states
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.windows.question_orders import take_own_order
from fleetcount_aggregator.windows.status import read_status
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.question.orders import OrderAction, QuestionOrder, sign_order
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import Network, answer_all

COINS = [(0, 1), (0, 2), (3, 3)]


async def test_the_status_names_the_next_window_the_released_and_the_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network = Network(2, directory=tmp_path)
    network.seats[0].store_path = tmp_path / "aggregator.db"
    await network.start_all()
    question = await network.stand()
    stop = QuestionOrder(
        question_id=question.question_id,
        number=1,
        action=OrderAction.STOP,
        aggregator_id=network.seats[0].aggregator_id,
        from_window=3,
    )
    await take_own_order(network.core(0).context.questions, sign_order(stop, network.seats[0].signing_key))
    for index in range(2):
        window = window_at(question, index)
        await network.advance_to(window.round_one_opens)
        await network.look_after_all()
        await answer_all(network, window, COINS if index == 0 else [])
        await network.run_to_the_end(window)
    await network.advance_to(question.schedule.opens(3) - 30)
    await network.look_after_all()

    found = read_status(StorePlace(directory=tmp_path))

    [line] = found.questions
    assert (line.question_id, line.name, line.windows, line.released) == (question.question_id, question.name, 5, 1)
    assert (line.following, line.upcoming, line.opens, line.skipped) == (4, None, None, [range(4, 5)])
    assert line.missing == {"too_few_reports": [1, 2], "stopped": [3]}
    assert [window.index for window in found.windows] == [0, 1, 2]

    class Settings:
        store_place = StorePlace(directory=tmp_path)
        metrics = None

    monkeypatch.setattr("fleetcount.run.aggregator.load_config", lambda *_: Settings)
    said = CliRunner().invoke(aggregator, ["status", "--config", "any.toml"]).output.splitlines()
    assert "1 of 5 released, no further window" in said[0]
    assert said[1:4] == [
        "    skipped by orders: window 4",
        "    missing: stopped 1, the last is window 3",
        "    missing: too_few_reports 2, the last is window 2",
    ]
    await network.stop_all()

    async def nobody_knows(_: Path, window: Window) -> dict[AggregatorId, str]:
        return {one.aggregator_id: "refuses: unknown_window" for one in window.aggregators}

    own = SimpleNamespace(store_place=Settings.store_place, aggregator=SimpleNamespace(question_directory=tmp_path))
    monkeypatch.setattr(states, "operator_of", lambda _: SimpleNamespace(config=own))
    monkeypatch.setattr(states, "ask_statuses", nobody_knows)
    for index, error, why in ((3, RefusedByPolicyError, "is missing: stopped"), (4, CannotReachError, "no status")):
        with pytest.raises(error, match=why):
            await asyncio.to_thread(states.show_states, Path("a.toml"), question, index, 0, as_json=False)
    assert [line.rpartition("; ")[2][:31] for line in capsys.readouterr().out.splitlines() if "refuses" in line] == [
        *["the window is missing: stopped"] * 2,
        *["windows are decided about short"] * 2,
    ]
    with pytest.raises(RefusedByPolicyError):
        await asyncio.to_thread(states.show_states, Path("a.toml"), question, 3, 0, as_json=True)
    assert [row["missing"] for row in json.loads(capsys.readouterr().out)] == ["stopped"] * 2


async def test_a_window_under_way_says_what_comes_next(tmp_path: Path) -> None:
    network = Network(2, directory=tmp_path)
    network.seats[0].store_path = tmp_path / "aggregator.db"
    await network.start_all()
    window = await network.ask()
    await network.stop_all()

    [line] = read_status(StorePlace(directory=tmp_path)).windows

    assert line.wait is not None
    assert (line.wait.kind.value, line.wait.until) == ("opening", window.round_one_opens)
