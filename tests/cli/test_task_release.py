"""What a person reads who signs a task or waits for its release."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from fleetcount import readers, task_commands, task_files
from fleetcount.release_report import table_lines
from fleetcount_analysis.interval_words import interval_text
from fleetcount_protocol.messages import ReleaseAnswer, TaskState
from fleetcount_protocol.task.domain import Categories
from fleetcount_protocol.task.signed_file import signed_task

from tests.support.protocol_samples import every_task, record, sampling_task


def test_who_waits_for_a_release_is_told_once_until_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, asked = sampling_task(), list[int]()

    async def answer(*_: object) -> ReleaseAnswer:
        asked.append(1)
        if len(asked) < 3:
            return ReleaseAnswer(state=TaskState.COLLECTING)
        return ReleaseAnswer(state=TaskState.ABORTED, abort_reason="too few reports")

    monkeypatch.setattr(task_files, "read_task", lambda _: SimpleNamespace(task=task))
    monkeypatch.setattr(readers, "read_reader", lambda _: SimpleNamespace(trusted={}))
    monkeypatch.setattr(readers, "ask_release", answer)
    monkeypatch.setattr(task_commands.time, "sleep", lambda _: None)
    words = ["release", "--task", "a.task", "--config", "c.toml", "--output", str(tmp_path / "out"), "--wait", "600"]

    done = CliRunner().invoke(task_commands.task, words)

    assert done.stderr == f"waiting up to 600 s: the last window closes {task_files.utc(task.round_two_closes)}\n"
    assert "too few reports" in str(done.exception)
    assert len(asked) == 3


@pytest.mark.parametrize(("names", "said"), [(("yes",), "in 1 value, mode"), (("red", "green"), "in 2 values, mode")])
def test_a_task_is_described_in_plain_words(names: tuple[str, ...], said: str) -> None:
    sample = sampling_task()
    task = replace(
        sample,
        domain=Categories(names=names),
        mechanism=type(sample.mechanism).uniform(sample.mechanism.sampling_rate, len(names)),
    )

    lines = task_files.describe_task(signed_task(task, (b"",) * len(task.aggregators)))

    assert said in lines[1]


def test_an_interval_far_below_zero_is_not_shown_as_an_exact_count() -> None:
    released = record(every_task()["direct_gaussian"])
    low = replace(released.cells[0], estimate=-abs(released.cells[0].estimate) - 1000, low=0, high=0)
    lines = table_lines(replace(released, cells=(low, *released.cells[1:])))

    assert not any("0 to 0" in line for line in lines)
    assert "  0, below noise  " in lines[1]
    assert lines[-1].startswith("0, below noise: a number this far below 0 is rarer than")
    assert interval_text(0, 0, 0) == "0 to 0", "without noise it is exact"
    assert interval_text(-4.0, 0, 1200) == "0 to 1,200"


def test_the_table_of_a_one_sided_release_names_the_side_of_every_cell_and_how_sure_it_is() -> None:
    one_sided = table_lines(record(every_task()["one_sided"]), [2])
    other = table_lines(record(every_task()["direct_gaussian"]))

    assert one_sided[0].split()[-2:] == ["side", "truth"]
    assert one_sided[1].split()[-2:] == ["safe", "2"]
    assert one_sided[2].startswith('"safe" (at most the threshold) is never wrong; "danger"')
    assert "side" not in " ".join(other)
