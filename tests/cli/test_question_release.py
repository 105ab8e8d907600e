"""What a person reads who signs a question or waits for its release."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from fleetcount.command.base import RefusedByPolicyError, describe
from fleetcount.question.files import describe_question, question_json, unsigned
from fleetcount.read import release as reading
from fleetcount.read import states
from fleetcount.read.report import release_json, statement_lines, table_lines
from fleetcount_analysis.interval_words import interval_text
from fleetcount_mechanisms.accounting.question_statement import question_views
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.errors import FleetcountError, UsageError
from fleetcount_protocol.ids import AggregatorId, Digest
from fleetcount_protocol.messages import ReleaseAnswer, WindowState, WindowStatus
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.release.chain import ChainLink
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.fields import Mode, Release, ReleaseKind
from fleetcount_protocol.window.window import Window

from tests.support.protocol_samples import every_window, record
from tests.support.question_samples import GEOMETRIC, one_round_question


def one_window() -> Question:
    """Return a direct question of one window."""
    question = one_round_question(Mode.DIRECT, release=GEOMETRIC)
    return replace(question, schedule=replace(question.schedule, windows=1))


def test_who_waits_for_a_release_is_told_once_until_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question, asked = one_window(), list[int]()

    async def answer(*_: object) -> tuple[Window | None, ReleaseAnswer | None]:
        asked.append(1)
        if len(asked) == 1:
            return None, None
        window = window_at(question, 0)
        if len(asked) < 4:
            return window, ReleaseAnswer(state=WindowState.COLLECTING)
        return window, ReleaseAnswer(state=WindowState.ABORTED, abort_reason="too few reports")

    monkeypatch.setattr(reading, "read_question", lambda _: SimpleNamespace(question=question))
    monkeypatch.setattr(reading, "read_reader", lambda _: SimpleNamespace(trusted={}))
    monkeypatch.setattr(reading, "_answer", answer)
    monkeypatch.setattr(reading.time, "sleep", lambda _: None)
    words = ["--question", "a.question", "--config", "c.toml", "--output", str(tmp_path / "out"), "--wait", "600"]

    done = CliRunner().invoke(reading.release, words)

    assert done.stderr == f"waiting up to 600 s: the window closes {utc_text(question.schedule.closes(0))}\n"
    assert "too few reports" in str(done.exception)
    assert len(asked) == 4


def test_a_question_that_no_aggregator_has_yet_is_not_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> tuple[None, None]:
        return None, None

    monkeypatch.setattr(reading, "read_question", lambda _: SimpleNamespace(question=one_window()))
    monkeypatch.setattr(reading, "read_reader", lambda _: SimpleNamespace(trusted={}))
    monkeypatch.setattr(reading, "_answer", nothing)
    words = ["--question", "a.question", "--config", "c.toml", "--output", str(tmp_path / "out")]

    done = CliRunner().invoke(reading.release, words)

    assert isinstance(done.exception, RefusedByPolicyError)
    assert "is at no aggregator that answers, at least not yet" in str(done.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("names", "said"), [(("yes",), "in 1 value, mode"), (("red", "green"), "in 2 values, mode")])
def test_a_question_of_one_window_is_described_in_plain_words(names: tuple[str, ...], said: str) -> None:
    question = replace(one_window(), domain=Categories(names=names))

    lines = describe_question(unsigned(question), 200)

    assert said in lines[1]
    assert lines[2].startswith("one window: round one 20")
    assert "Privacy:" in lines
    assert not any("all 1 releases" in line for line in lines)


@pytest.mark.parametrize("kind", [ReleaseKind.EXACT, ReleaseKind.GEOMETRIC])
def test_every_view_of_one_window_is_told_once(kind: ReleaseKind) -> None:
    question = one_window()
    if kind is ReleaseKind.EXACT:
        die = SamplingDie.uniform(Fraction(1, 4), question.domain.values)
        schedule = replace(question.schedule, round_one_s=60, round_two_s=60)
        release = Release(kind=kind, noise_epsilon=None, level=question.release.level)
        question = replace(question, mode=Mode.SAMPLING, mechanism=die, schedule=schedule, release=release)

    told = question_json(question)["statement"]

    assert len({view["audience"] for view in told}) == len(told)


def test_an_interval_far_below_zero_is_not_shown_as_an_exact_count() -> None:
    released = record(every_window()["direct_gaussian"])
    low = replace(released.cells[0], estimate=-abs(released.cells[0].estimate) - 1000, low=0, high=0)
    lines = table_lines(replace(released, cells=(low, *released.cells[1:])))

    assert not any("0 to 0" in line for line in lines)
    assert "  0, below noise  " in lines[1]
    assert lines[-1].startswith("0, below noise: a number this far below 0 is rarer than")
    assert interval_text(0, 0, 0) == "0 to 0", "without noise it is exact"
    assert interval_text(-4.0, 0, 1200) == "0 to 1,200"


def test_the_table_of_a_one_sided_release_names_the_side_of_every_cell_and_how_sure_it_is() -> None:
    one_sided = table_lines(record(every_window()["one_sided"]), [2])
    other = table_lines(record(every_window()["direct_gaussian"]))

    assert one_sided[0].split()[-2:] == ["side", "truth"]
    assert one_sided[1].split()[-2:] == ["safe", "2"]
    assert one_sided[2].startswith('"safe" (at most the threshold) is never wrong; "danger"')
    assert "side" not in " ".join(other)


@pytest.mark.parametrize(("windows", "said"), [(1, "whoever reads this release"), (7, "all releases of the question")])
def test_the_statement_of_one_window_speaks_of_one_release(windows: int, said: str) -> None:
    question = one_window()
    question = replace(question, schedule=replace(question.schedule, windows=windows))
    statement = question_views(question.design, question.shape, question.delta)
    link = ChainLink(previous=None, previous_index=None, missing=())
    released = record(window_at(question, 0), statement=statement, chain=link)

    assert said in statement_lines(released)[1]
    assert len(release_json(released)["statement"]["adversaries"]) == len(statement)


def answered(state: WindowState, digest: int, reason: str = "") -> WindowStatus:
    """Return what an aggregator says of a window; `digest` names the set."""
    return WindowStatus(state=state, ledger_rows=0, abort_reason=reason, set_digest=Digest(bytes([digest] * 32)))


RELEASED = answered(WindowState.RELEASED, 1)


def test_one_set_digest_alone_is_not_said_to_be_equal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    question, adopted = one_round_question(Mode.DIRECT), replace(RELEASED, set_digest=None)

    async def statuses(*_: object) -> dict[AggregatorId, WindowStatus | str]:
        return {AggregatorId("alpha"): adopted, AggregatorId("beta"): RELEASED}

    monkeypatch.setattr(states, "ask_statuses", statuses)
    states.show_states(Path("a.toml"), question, 2, 0, as_json=False)

    assert "equal" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answers", "code", "said"),
    [
        ((RELEASED, RELEASED), 0, "set digests: equal"),
        ((RELEASED, answered(WindowState.RELEASED, 2)), 1, "set digests differ"),
        ((RELEASED, answered(WindowState.ABORTED, 1, "too_few_reports")), 3, "was aborted: too_few_reports"),
        ((RELEASED, "cannot reach 127.0.0.1:1"), 4, "no status from beta"),
        (
            ("refuses: unknown_window", "refuses: unknown_window"),
            4,
            "windows are decided about shortly before they open",
        ),
    ],
)
def test_an_operator_sees_the_states_of_a_window_and_the_exit_code_says_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answers: tuple[WindowStatus | str, ...],
    code: int,
    said: str,
) -> None:
    question, asked = one_round_question(Mode.DIRECT), list[Window]()

    async def statuses(_: Path, window: Window) -> dict[AggregatorId, WindowStatus | str]:
        asked.append(window)
        return dict(zip((AggregatorId("alpha"), AggregatorId("beta")), answers, strict=True))

    monkeypatch.setattr(states, "ask_statuses", statuses)
    now, error = question.schedule.opens(2) + 1, ""
    try:
        states.show_states(Path("a.toml"), question, None, now, as_json=False)
        ended = 0
    except FleetcountError as failed:
        ended, error = describe(failed)

    assert ended == code
    assert said in capsys.readouterr().out + error
    assert [window.question and window.question.index for window in asked] == [2], "the last that has opened"
    with pytest.raises(UsageError, match="--window is 7, allowed: 0 to 6"):
        states.show_states(Path("a.toml"), question, 7, now, as_json=False)
