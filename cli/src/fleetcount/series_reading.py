"""`fleetcount series status`, `records` and `export`: what anybody with a reader's certificate can see of a series.

Asks, checks and prints; what is checked how is `series_records`', what is computed `series_table`'s.
"""

import asyncio
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fleetcount.exits import one_line
from fleetcount.lazy import StrictCommand
from fleetcount.numbers import Count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetcount_protocol.series.series import Series, SignedSeries

    from fleetcount.readers import Reader
    from fleetcount.series_records import Chain

__all__ = ["by_reason", "chain_lines", "records", "spans_text", "status"]

_FILE: Final = click.Path(path_type=Path)
_SERIES: Final = click.option(
    "--series", "path", required=True, metavar="NAME.series", type=_FILE, help="The series' file."
)
_READER: Final = click.option(
    "--config",
    "config_path",
    required=True,
    metavar="READER.toml",
    type=_FILE,
    help="Who asks: an analyst's configuration (keys init writes one) or a device's.",
)
_LOOK_S: Final = 1.0


@click.command("status", cls=StrictCommand)
@_SERIES
@_READER
def status(path: Path, config_path: Path) -> None:
    """Say which windows are released, which are missing and why, and which comes next.

    Asks the aggregators for every window that has closed, and verifies the series, every record and the chain: each
    record holds the digest of the one before it and names the windows between them. Writes nothing.
    """
    from fleetcount_protocol.series.signing import verify_signed_series

    from fleetcount.readers import read_reader
    from fleetcount.series_files import read_series
    from fleetcount.series_records import Chain

    signed, reader = read_series(path), read_reader(config_path)
    verify_signed_series(signed, reader.trusted)
    chain = Chain(signed.series)
    asyncio.run(_fetched(signed, reader, chain, None, time.time()))
    click.echo(one_line(f"series {signed.series.name!r} {signed.series.series_id}"))
    for line in chain_lines(chain, time.time()):
        click.echo(line)


@click.command("records", cls=StrictCommand)
@_SERIES
@_READER
@click.option("--output", required=True, metavar="DIR", type=_FILE, help="Where the records go, a file a window.")
@click.option(
    "--wait", "wait_s", type=Count(0, 366 * 86_400), default=0, show_default=True, help="Go on for so many seconds."
)
def records(path: Path, config_path: Path, output: Path, wait_s: int) -> None:
    """Fetch the signed record of every released window, check it, and keep it as DIR/00000.json and so on.

    Run it again, or with --wait, and it goes on where it was: what is there is checked again and not fetched again. A
    record whose signatures or whose place in the chain are wrong is not written.
    """
    from fleetcount.readers import read_reader
    from fleetcount.series_files import read_series
    from fleetcount.series_records import open_records

    signed, reader = read_series(path), read_reader(config_path)
    chain = open_records(output, signed, reader.trusted)
    deadline, before = time.time() + wait_s, chain.released
    while True:
        asyncio.run(_fetched(signed, reader, chain, output, time.time()))
        ended = chain.asked >= signed.series.schedule.windows
        if ended or time.time() >= deadline:
            break
        time.sleep(min(_LOOK_S, max(0.0, deadline - time.time())))
    click.echo(f"{output}: {chain.released - before} new records, {chain.released} in all, every signature checked")
    for line in chain_lines(chain, time.time()):
        click.echo(line)


async def _fetched(signed: "SignedSeries", reader: "Reader", chain: "Chain", output: Path | None, now: float) -> None:
    from fleetcount.readers import WindowReader
    from fleetcount.series_records import fetch_windows, save_record

    async with WindowReader(reader, signed.series.aggregators) as asking:
        async for record, signatures in fetch_windows(chain, asking, reader.trusted, now):
            if output is not None:
                save_record(output, record, signatures)


# What is printed.


def chain_lines(chain: "Chain", now: float) -> Iterator[str]:
    """Return what a person reads of a chain: released, missing by reason, without a record yet, and what comes next."""
    series, windows = chain.series, chain.series.schedule.windows
    yield f"{chain.released} of {windows:,} windows released{_chained(chain)}"
    for reason, spans in by_reason(chain.missing):
        yield one_line(f"missing: {spans}: {reason}")
    for reason, spans in by_reason(chain.pending):
        yield one_line(f"no record: {spans}: {reason}; the next record will say why")
    yield _next_line(series, now)


def _chained(chain: "Chain") -> str:
    return "" if not chain.released else f", the last is window {chain.last}; all signatures and the chain hold"


def by_reason(windows: "Mapping[int, str]") -> list[tuple[str, str]]:
    """Return every reason with its windows in words."""
    reasons = sorted(set(windows.values()))
    return [(reason, spans_text([index for index, why in windows.items() if why == reason])) for reason in reasons]


def spans_text(indices: list[int]) -> str:
    """Return windows in words: "windows 3 to 5 and 9"."""
    ordered = sorted(indices)
    runs = [list(run) for _, run in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0])]
    spans = [f"{run[0][1]}" if len(run) == 1 else f"{run[0][1]} to {run[-1][1]}" for run in runs]
    what = "window" if len(ordered) == 1 else "windows"
    return f"{what} {', '.join(spans[:-1])}{' and ' if len(spans) > 1 else ''}{spans[-1]}"


def _next_line(series: "Series", now: float) -> str:
    from fleetcount.task_files import utc

    schedule = series.schedule
    following = max(0, -(-int(now - schedule.first) // schedule.every_s))
    if following >= schedule.windows:
        return f"the last window closed {utc(schedule.end)}" if now >= schedule.end else "the last window is open"
    return f"next: window {following} opens {utc(schedule.opens(following))}"
