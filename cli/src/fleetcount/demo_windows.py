"""`fleetcount demo --windows`: the morning as one signed question, a record, a table and a map a window, and all at
once.

What it leaves is a directory of records as `fleetcount question release` makes it, with the pictures beside.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from fleetcount_protocol.errors import MachineError
from fleetcount_protocol.question.signed_file import encode_signed_question
from fleetcount_protocol.release import ReleaseRecord

from fleetcount.demo_command import asked_of, how_lines, started
from fleetcount.demo_outputs import comparison_csv, covered, draw, drawn, title_of
from fleetcount.exits import RefusedByPolicyError, one_line
from fleetcount.files import staged_directory
from fleetcount.question_records import QUESTION_FILE, Chain, save_record
from fleetcount.release_report import table_lines

if TYPE_CHECKING:
    from fleetcount_simulator.network.run import QuestionAsked

    from fleetcount.demo_question import DemoOptions, DemoQuestion
    from fleetcount.progress import Progress

__all__ = ["asked_question", "finish_question", "keep_records", "released"]

_FRAME_MS: Final = 1_200
_MOVING: Final = "time-lapse.gif"


async def asked_question(
    question: "DemoQuestion", options: "DemoOptions", directory: Path, progress: "Progress"
) -> "QuestionAsked":
    """Start aggregators, broker and vehicles and ask every window; everything has ended when this returns."""
    from fleetcount_simulator.network.plan import faultless_plan
    from fleetcount_simulator.network.run import ask_question

    scenarios = (question.scenario, *question.later)
    plan = faultless_plan(question.scenario.domain, [one.readings for one in scenarios], question.walk)
    async with started(options, directory) as parties:
        return await ask_question(parties, asked_of(question, options, progress), plan, directory)


def released(result: "QuestionAsked") -> dict[int, ReleaseRecord]:
    """Return the records by window.

    Raises:
        RefusedByPolicyError, MachineError: there is none.
    """
    records = {index: one.record for index, one in enumerate(result.windows) if one.record is not None}
    if not records:
        reason = next((one.answer.abort_reason for one in result.windows if one.answer is not None), "")
        raise RefusedByPolicyError(f"no window was released: {reason}") if reason else MachineError("no record in time")
    return records


def finish_question(question: "DemoQuestion", options: "DemoOptions", result: "QuestionAsked") -> None:
    """Write every file and say what came of each window.

    Raises:
        RefusedByPolicyError, MachineError: no window was released.
        CheckFailedError: the records do not hang together.
    """
    from fleetcount.question_files import describe_question

    records = released(result)
    windows = result.windows
    truths = [scenario.truths() for scenario in (question.scenario, *question.later)]
    with staged_directory(options.output) as stage:
        names = _write(stage, question.scenario.question, result, truths)
    for index, one in enumerate(windows):
        _say_window(index, one.record, truths[index], int(one.account.counted.sum()), question.vehicles)
    last = max(records)
    for line in [
        *table_lines(records[last], truths[last]),
        "",
        *describe_question(result.signed, 100, explain=options.explain),
    ]:
        click.echo(line)
    for line in how_lines(options, windows[0].broker, windows[0].reasons):
        click.echo(one_line(line))
    click.echo(f"wrote {', '.join(names)} in {options.output}")
    click.echo(f"ask them: fleetcount question export --records {options.output} --largest 3")


def _say_window(index: int, record: ReleaseRecord | None, truths: Sequence[int], delivered: int, vehicles: int) -> None:
    if record is None:
        click.echo(f"window {index}: not released; {delivered} of {vehicles} vehicles hold every receipt")
        return
    level = f"{float(record.level * 100):g} %"
    click.echo(
        f"window {index}: {covered(record, truths)} of {len(truths)} truths lie in their {level} interval; "
        f"{delivered} of {vehicles} vehicles hold every receipt"
    )


def _write(stage: Path, question: str, result: "QuestionAsked", truths: Sequence[Sequence[int]]) -> list[str]:
    """Write all files into an empty directory; return what is said to have been written."""
    chain = keep_records(stage, result)
    records = {index: one.record for index, one in enumerate(result.windows) if one.record is not None}
    for index, record in records.items():
        (stage / f"window-{index:02d}.csv").write_text(comparison_csv(record, truths[index]), encoding="utf-8")
    table = _write_table(stage, chain, list(records.values()))

    def maps() -> None:
        scale = max(1.0, *(float(count) for counts in truths for count in counts))
        for index, record in records.items():
            title = f"Window {index}: {title_of(question, record)}"
            draw(stage / f"window-{index:02d}", title, record, truths[index], scale)

    pictures = drawn(["a map (svg, png) a window"], maps)
    if pictures:
        pictures += drawn([_MOVING], lambda: _time_lapse(sorted(stage.glob("window-*.png")), stage / _MOVING))
    return [f"{len(records)} records and for each a table (csv)", table, *pictures]


def keep_records(stage: Path, result: "QuestionAsked") -> Chain:
    """Write the question and its records as `fleetcount question release` keeps them; return their chain.

    Raises:
        CheckFailedError: the records do not hang together.
    """
    (stage / QUESTION_FILE).write_bytes(encode_signed_question(result.signed))
    chain = Chain(result.signed.question)
    for one in result.windows:
        if one.record is not None and one.answer is not None:
            chain.follow(one.record)
            save_record(stage, one.record, one.answer.signatures)
    return chain


def _write_table(stage: Path, chain: Chain, released: Sequence[ReleaseRecord]) -> str:
    from fleetcount_analysis.answers import append_parquet, write_csv

    from fleetcount.question_table import table_of

    kept = table_of(chain.question, released, chain.missing)
    if kept is None:
        raise MachineError("no window was released")
    if importlib.util.find_spec("duckdb") is None:
        write_csv(kept.table, stage / "question.csv", chain.question.name, kept.participants)
        return "question.csv (Parquet needs the package duckdb)"
    append_parquet(kept.table, stage / "question.parquet", chain.question.name, kept.participants)
    return "question.parquet"


def _time_lapse(pictures: Sequence[Path], path: Path) -> None:
    """Join the pictures into a moving one."""
    from PIL import Image

    frames = [Image.open(picture).convert("RGB") for picture in pictures]
    frames = [frame.resize(frames[0].size).quantize() for frame in frames]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=_FRAME_MS, loop=0)
