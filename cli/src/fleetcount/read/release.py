"""`fleetcount question status` and `release`: how far a question is, and its released counts.

Asks, checks and prints; `records` checks the chain, `table` computes.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click
from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.limits import MAX_QUESTION_WINDOWS
from fleetcount_protocol.messages import ReleaseAnswer
from fleetcount_protocol.question.orders import (
    OrderAction,
    QuestionOrder,
    skipped_windows,
    started_question,
    stopped_at,
)
from fleetcount_protocol.question.question import Question, SignedQuestion, window_at
from fleetcount_protocol.release.record import verify_record_signatures
from fleetcount_protocol.release.record_json import record_from_json, record_to_json
from fleetcount_protocol.window.signing import TrustedAggregator
from fleetcount_protocol.window.window import Window
from fleetcount_transport.toml_table import read_toml
from fleetcount_transport.trust_files import read_succession, succeeded

from fleetcount.command.base import (
    EXPLAIN,
    JSON,
    CannotReachError,
    RefusedByPolicyError,
    StrictCommand,
    one_line,
    show,
)
from fleetcount.command.numbers import spans_text
from fleetcount.command.options import PATH, Count, check_output_directory, config_option, read_text
from fleetcount.command.outputs import staged_directory
from fleetcount.question.files import read_question
from fleetcount.read.asking import WindowReader
from fleetcount.read.readers import Reader, read_reader, trusted_in
from fleetcount.read.records import (
    QUESTION_FILE,
    Chain,
    by_reason,
    fetch_windows,
    kept_chain,
    open_records,
    save_record,
)
from fleetcount.read.report import checked_record, release_json, statement_lines, table_lines

# `fleetcount verify`: which aggregators signed a release, from its file alone.
#
# It reads files and prints names; it asks no aggregator.


@click.command(cls=StrictCommand)
@click.argument("release", type=PATH, metavar="RELEASE.json")
@click.option(
    "--config",
    type=PATH,
    metavar="FILE",
    help="Of an analyst, device or aggregator, or a TOML file of [[aggregators]]: whom you trust.",
)
@click.option("--succession", "files", multiple=True, type=PATH, metavar="FILE", help="A key's successor; in order.")
@JSON
def verify(release: Path, config: Path | None, files: tuple[Path, ...], as_json: bool) -> None:
    """Check the signatures of every aggregator under a release.

    Without --config the keys are those that the window in the release names: then all of them agree on it, and only
    those who know the window know who they are. Where an aggregator's signing key was succeeded in between, give the
    statement.

    Exit code 3 when a signature is missing or does not verify.
    """
    record, signatures = record_from_json(read_text(release))
    if config is None:
        trusted = {one.aggregator_id: TrustedAggregator.of(one) for one in record.window.aggregators}
    else:
        trusted = {one.aggregator_id: one for one in trusted_in(config)}
    for path in files:
        name = read_succession(path).succession.aggregator_id
        if name not in trusted:
            raise UsageError(f"{path} is about aggregator {name!r}, which is not trusted")
        trusted[name] = succeeded(trusted[name], [path])
    verify_record_signatures(record, signatures, trusted)
    names = ", ".join(f"{one.aggregator_id} ({one.operator})" for one in record.window.aggregators)
    known = "all of them agree; who they are, the window says" if config is None else f"trusted by {config}"
    line = f"{release}: window {record.window_id.hex()[:12]} {record.window.name!r}, signed by {names}: {known}"
    found = {
        "question": record.window.name,
        "window_id": record.window_id.hex(),
        "signed_by": [str(one.aggregator_id) for one in record.window.aggregators],
        "trusted": config is not None,
    }
    show(found, [line], as_json=as_json)


_QUESTION: Final = click.option(
    "--question", "path", required=True, metavar="NAME.question", type=PATH, help="The question's file."
)
_LOOK_S: Final = 1.0
_DONE: Final = ("released", "aborted")


@click.command("status", cls=StrictCommand)
@_QUESTION
@config_option(
    "Who asks: an operator's configuration, an analyst's (keys init writes one) or a device's.", "config_path"
)
@click.option("--records", metavar="DIR", type=PATH, help="What 'release' has kept of many windows: not asked again.")
@click.option(
    "--window",
    "index",
    type=Count(0, MAX_QUESTION_WINDOWS - 1),
    help="Which one an operator sees; default: the last that has opened.",
)
@JSON
def status(path: Path, config_path: Path, records: Path | None, index: int | None, as_json: bool) -> None:
    """Say how far a question is.

    To an operator, with its aggregator's configuration: the state of one window at every aggregator, what it waits for,
    what it refused, and whether their set digests are equal. Exit code 0 when all answered and agree, 1 when digests
    differ, 3 when the window is missing or was aborted somewhere, 4 when one cannot be reached.

    To a reader: which windows are released, which are missing and why, and which comes next. Asks for every window that
    has closed, or for those behind --records, and verifies the question, every record and the chain: each record holds
    the digest of the one before it and names the windows between them. Writes nothing.
    """
    signed = read_question(path)
    if read_toml(config_path).has("aggregator"):
        from fleetcount.read.states import show_states  # Readers have no package of an aggregator.

        if records is not None:
            raise click.UsageError("--records goes with a reader's configuration; an operator sees one window")
        show_states(config_path, signed.question, index, time.time(), as_json=as_json)
        return

    if index is not None:
        raise click.UsageError("--window goes with an operator's configuration; a reader sees every window")
    reader = read_reader(config_path)
    chain = kept_chain(records, signed, reader.trusted)
    orders = asyncio.run(_fetched(signed, reader, chain, None, time.time()))
    head = one_line(f"question {signed.question.name!r} {signed.question.question_id}")
    show(_chain_json(chain, orders), [head, *_chain_lines(chain, orders, time.time())], as_json=as_json)


@click.command("release", cls=StrictCommand)
@_QUESTION
@config_option(
    "Who asks: an analyst's configuration (keys init writes one) or a device's.", "config_path", metavar="READER.toml"
)
@click.option("--output", required=True, metavar="DIR", type=PATH, help="Where release.json or the records go.")
@click.option(
    "--wait", "wait_s", type=Count(0, 366 * 86_400), default=0, show_default=True, help="Go on for so many seconds."
)
@EXPLAIN
@JSON
def release(path: Path, config_path: Path, output: Path, wait_s: int, explain: bool, as_json: bool) -> None:
    """Fetch what is released, verify every aggregator's signature, and keep it.

    Of a question with one window: writes release.json, and prints the table and the privacy statement. Exit code 3 when
    it is not released yet or was aborted.

    Of many windows: keeps the record of each released one as DIR/00000.json and so on. Run again, or with --wait, it
    goes on where it was: what is there is checked again and not fetched again. A record whose signatures or whose place
    in the chain are wrong is not written.
    """
    check_output_directory(output)
    signed, reader = read_question(path), read_reader(config_path)
    if explain and signed.question.schedule.windows > 1:
        raise UsageError("--explain is of one window; of many 'fleetcount question show --explain' says what they tell")
    if signed.question.schedule.windows == 1:
        _release_one(signed, reader, output, wait_s, explain=explain, as_json=as_json)
    else:
        _release_many(signed, reader, output, wait_s, as_json=as_json)


def _release_one(
    signed: SignedQuestion, reader: Reader, output: Path, wait_s: int, *, explain: bool, as_json: bool
) -> None:
    deadline, told, question = time.monotonic() + wait_s, False, signed.question
    while True:
        window, answer = asyncio.run(_answer(reader, question))
        if (answer is not None and answer.state.value in _DONE) or time.monotonic() >= deadline:
            break
        if not told and window is not None:
            click.echo(f"waiting up to {wait_s} s: the window closes {utc_text(window.round_two_closes)}", err=True)
            told = True
        time.sleep(min(_LOOK_S, max(0.0, deadline - time.monotonic())))
    if window is None or answer is None:
        raise RefusedByPolicyError(f"question {question.name!r} is {_nowhere(question, time.time())}")
    record = checked_record(answer, window, reader.trusted)
    with staged_directory(output) as stage:
        (stage / "release.json").write_text(record_to_json(record, answer.signatures), encoding="utf-8")
    lines = [
        *table_lines(record),
        "",
        *statement_lines(record, explain=explain),
        "",
        f"wrote {output / 'release.json'}, signed by all {len(answer.signatures)} aggregators",
    ]
    show(release_json(record) | {"written": str(output / "release.json")}, lines, as_json=as_json)


async def _answer(reader: Reader, question: Question) -> tuple[Window | None, ReleaseAnswer | None]:
    """Return the only window of a question and what is known of it; no window before it has started."""
    async with WindowReader(reader, question.aggregators) as asking:
        if question.schedule.first is None:
            question = started_question(question, await asking.orders(question))
        if question.schedule.first is None:
            return None, None
        window = window_at(question, 0)
        return window, await asking.ask(window.window_id)


def _release_many(signed: SignedQuestion, reader: Reader, output: Path, wait_s: int, *, as_json: bool) -> None:
    there = output.exists(), (output / QUESTION_FILE).exists()
    chain = open_records(output, signed, reader.trusted)
    deadline, before = time.time() + wait_s, chain.released
    while True:
        try:
            orders = asyncio.run(_fetched(signed, reader, chain, output, time.time()))
        except CannotReachError:
            _take_back(output, *there, released=chain.released)
            raise
        ended = chain.asked >= signed.question.schedule.windows
        if ended or time.time() >= deadline:
            break
        time.sleep(min(_LOOK_S, max(0.0, deadline - time.time())))
    new = chain.released - before
    head = f"{output}: {new} new records, {chain.released} in all, every signature checked"
    lines = [head, *_chain_lines(chain, orders, time.time())]
    show({"new": new} | _chain_json(chain, orders), lines, as_json=as_json)


def _take_back(output: Path, directory: bool, question: bool, *, released: int) -> None:
    """Remove the question and the directory, unless they were there before: no aggregator answered."""
    if question or released:
        return
    with contextlib.suppress(OSError):
        (output / QUESTION_FILE).unlink()
        if not directory:
            output.rmdir()


async def _fetched(
    signed: SignedQuestion, reader: Reader, chain: Chain, output: Path | None, now: float
) -> Sequence[QuestionOrder] | None:
    """Follow the chain as far as it goes; return the known orders, None if no aggregator that knows them answers."""
    async with WindowReader(reader, signed.question.aggregators) as asking:
        if chain.question.schedule.first is None:
            orders = await asking.orders(chain.question)
            chain.question = started_question(chain.question, orders)
            if chain.question.schedule.first is None:
                return orders
        async for record, signatures in fetch_windows(chain, asking, reader.trusted, now):
            if output is not None:
                save_record(output, record, signatures)
        try:
            return await asking.orders(signed.question)
        except CannotReachError:
            return None


# What is printed.


def _chain_json(chain: Chain, orders: Sequence[QuestionOrder] | None) -> dict[str, Any]:
    """Return a chain for programs: every window that is missing, or without a record yet, with its reason.

    "ordered" has the windows that orders skip, first and last of each run; null where none of the
    aggregators that know them answers.
    """
    return {
        "question": chain.question.name,
        "question_id": chain.question.question_id.hex(),
        "windows": chain.question.schedule.windows,
        "released": chain.released,
        "last": None if chain.last < 0 else chain.last,
        "missing": {str(index): reason for index, reason in sorted(chain.missing.items())},
        "pending": {str(index): reason for index, reason in sorted(chain.pending.items())},
        "ordered": None if orders is None else [[one[0], one[-1]] for one in skipped_windows(chain.question, orders)],
    }


def _chain_lines(chain: Chain, orders: Sequence[QuestionOrder] | None, now: float) -> Iterator[str]:
    """Return a chain for people: windows released, missing by reason, without a record yet, and the next one."""
    question, windows = chain.question, chain.question.schedule.windows
    yield f"{chain.released} of {windows:,} windows released{_chained(chain)}"
    for reason, spans in by_reason(chain.missing):
        yield one_line(f"missing: {spans}: {reason}")
    stop = stopped_at(orders or ())
    follows = chain.last + 1 + len(chain.pending) < (windows if stop is None else stop)
    why = "the next record will say why" if follows else "no record comes after them that could say why"
    for reason, spans in by_reason(chain.pending):
        yield one_line(f"no record: {spans}: {reason}; {why}")
    if question.schedule.first is None:
        yield f"not started: {_nowhere(question, now)}"
        return
    following = max(0, -(-int(now - question.schedule.opens(0)) // question.schedule.every_s))
    if following < windows and orders is None:
        yield "whether windows ahead are paused or stopped is not known: no aggregator that knows it answers"
    yield from _ahead(question, orders or (), following, now)


def _ahead(question: Question, orders: Sequence[QuestionOrder], following: int, now: float) -> Iterator[str]:
    """Yield what orders skip from a window on, and which window is asked next."""
    schedule, stop = question.schedule, stopped_at(orders)
    by = ", ".join(sorted({one.aggregator_id for one in orders if one.action is OrderAction.STOP}))
    skipped = {index for one in skipped_windows(question, orders) for index in one if index >= following}
    paused = [index for index in skipped if stop is None or index < stop]
    if paused:
        yield f"paused: {spans_text(paused)}"
    if stop is not None and stop < schedule.windows:
        yield f"stopped by {by}: no window is asked from {stop} on"
    following = next((index for index in range(following, schedule.windows) if index not in skipped), schedule.windows)
    if following < schedule.windows:
        yield f"next: window {following} opens {utc_text(schedule.opens(following))}"
    elif skipped:
        yield "no further window is asked"
    else:
        yield f"the last window closed {utc_text(schedule.end)}" if now >= schedule.end else "the last window is open"


def _nowhere(question: Question, now: float) -> str:
    """Return where a question is that no aggregator knows, and if it is counted from submission until when it may be
    submitted.
    """
    counted = question.schedule.submission
    if counted is None:
        return "at no aggregator that answers, at least not yet"
    by = counted.latest - counted.delay_s
    until = f"it may be submitted until {utc_text(by)}" if now <= by else f"it had to be submitted by {utc_text(by)}"
    return f"at no aggregator that answers; {until}"


def _chained(chain: Chain) -> str:
    return "" if not chain.released else f", the last is window {chain.last}; all signatures and the chain hold"
