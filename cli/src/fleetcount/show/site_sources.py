"""From kept records and releases to what a site shows of them: each file checked, its record written beside the pages.

Reads files and fills entries; what a page looks like is `fleetcount_site`'s.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from fleetcount_analysis.answers import (
    WindowCounts,
    question_table,
    table_design,
    table_numbers,
    write_csv,
    write_geojson,
)
from fleetcount_analysis.answers.export import write_parquet
from fleetcount_analysis.answers.levels import level_numbers
from fleetcount_analysis.answers.places import DEGREES, Places
from fleetcount_analysis.answers.table import QuestionTable, each_alone
from fleetcount_analysis.errors import ExportError
from fleetcount_analysis.places import to_degrees
from fleetcount_data.streets import BOLOGNA_EPSG, BOLOGNA_OFFSET, bologna_streets
from fleetcount_mechanisms.statement import AdversaryView
from fleetcount_mechanisms.statement_words import plain_sentences
from fleetcount_protocol.errors import FleetcountError, UsageError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.limits import MAX_UNIX_TIME
from fleetcount_protocol.question.question import Question, verify_signed_question
from fleetcount_protocol.release.record import ReleaseRecord, verify_record_signatures
from fleetcount_protocol.release.record_json import record_from_json, record_to_json
from fleetcount_protocol.window.domain import H3Cells, SquareGrid
from fleetcount_protocol.window.signing import TrustedAggregator
from fleetcount_protocol.window.window import Window
from fleetcount_site.publish.entry import Entry, PinnedKey, WindowEntry
from fleetcount_site.publish.site import write_record

from fleetcount.command.options import read_text
from fleetcount.question.files import asked_words, promise_words
from fleetcount.read.averages import opened_numbers, opened_of
from fleetcount.read.records import QUESTION_FILE, Chain, kept_records, question_of_records
from fleetcount.read.report import numbers_text
from fleetcount.read.table import KeptTable, opened_in, place_note, places_of, statement_about, table_of

Trusted = Mapping[AggregatorId, TrustedAggregator]

_MOST_CSV_ROWS: Final = 1_000_000
"""Longer tables are Parquet alone: as CSV they would have hundreds of megabytes."""
_MOST_SOURCES: Final = 200
_STREETS: Final = "Streets: SUMO Bologna scenario, DLR, EPL-2.0"
_RELEASE: Final = "*.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What one entry of a site is made from: a directory of a question's records, or the file of one release."""

    path: Path
    slug: str
    trusted: Trusted | None = field(repr=False)

    def entry(self, folder: Path) -> Entry:
        """Check everything, write records and downloads into a folder, and return what its pages show.

        Raises:
            UsageError: nothing is released, or it asks about other places in every window.
            SignatureError, QuestionError, CheckFailedError: signatures, keys or a chain that do not hold.
        """
        return _question(self, folder) if self.path.is_dir() else _release(self, folder)


def sources_of(directory: Path, trusted: Trusted | None) -> list[Source]:
    """Return what a directory holds: the records of one question, or several such directories and release files.

    Raises:
        UsageError: it is no directory, holds nothing to publish, or two things of one name.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is no directory; give one that 'fleetcount question release' made")
    if (directory / QUESTION_FILE).is_file():
        return [Source(path=directory, slug="question", trusted=trusted)]
    inside = sorted(one for one in directory.iterdir() if not one.name.startswith("."))
    found = [one for one in inside if (one / QUESTION_FILE).is_file() or (one.is_file() and one.match(_RELEASE))]
    if not found:
        raise UsageError(f"{directory} holds no records and no release; 'fleetcount question release' fetches them")
    if len(found) > _MOST_SOURCES:
        raise UsageError(f"{directory} holds {len(found)} questions and releases, allowed: at most {_MOST_SOURCES}")
    named = [Source(path=one, slug=_slug(one.stem), trusted=trusted) for one in found]
    for one, other in pairwise(sorted(named, key=lambda source: source.slug)):
        if one.slug == other.slug:
            raise UsageError(f"{one.path} and {other.path} would both be the folder {one.slug!r}; rename one of them")
    return named


def pinned_keys(trusted: Trusted | None) -> dict[str, tuple[PinnedKey, ...]] | None:
    """Return the keys that pages pin, with the time in which each counts; None if none were given."""
    if trusted is None:
        return None
    pinned: dict[str, tuple[PinnedKey, ...]] = {}
    for name, one in trusted.items():
        begins = (0, *(later.not_before for later in one.successors))
        ends = (*(later.former_until for later in one.successors), MAX_UNIX_TIME)
        held = zip(one.keys, begins, ends, strict=True)
        pinned[str(name)] = tuple(PinnedKey(key=key, not_before=since, not_after=until) for key, since, until in held)
    return pinned


def _slug(stem: str) -> str:
    kept = "".join(one if one.isascii() and one.isalnum() else "-" for one in stem.lower()).strip("-")
    # Not a name of the site's own, nor one that a web server or a disk treats in a way of its own.
    return kept[:60] if kept and kept != "assets" else f"entry-{kept}".rstrip("-")


def _question(source: Source, folder: Path) -> Entry:
    signed = question_of_records(source.path)
    question, trusted = signed.question, source.trusted
    if trusted is not None:
        verify_signed_question(signed, trusted)
    chain, windows, first = Chain(question), list[WindowEntry](), list[ReleaseRecord]()

    def taken(record: ReleaseRecord, signatures: tuple[bytes, ...]) -> None:
        if trusted is not None:
            verify_record_signatures(record, signatures, trusted)
        if not first:
            first.append(record)
        windows.append(_window(record))
        write_record(folder, windows[-1].index, record.canonical, signatures, record_to_json(record, signatures))

    kept = table_of(question, kept_records(source.path, chain, taken), chain.missing)
    if kept is None:
        raise UsageError(f"{source.path} holds no record yet; 'fleetcount question release' fetches them")
    places = _places(question)
    downloads = _downloads(folder, kept.table, places, question.name, kept.participants)
    return Entry(
        slug=source.slug,
        title=question.name,
        plain=(*_promised(question, first[0]), *(f"{words[0].upper()}{words[1:]}." for words in asked_words(question))),
        statement=tuple(_statement(statement_about(question, first[0]))),
        windows=tuple(windows),
        **_as_signed(kept.table),
        places=places,
        first=question.schedule.opens(0),
        every_s=question.schedule.every_s,
        keys=pinned_keys(trusted),
        downloads=downloads,
        numbers=_numbers_of(kept),
        **_map_of(question),
    )


def _release(source: Source, folder: Path) -> Entry:
    try:
        record, signatures = record_from_json(read_text(source.path))
    except FleetcountError as error:
        raise UsageError(f"{source.path}: {error}") from error
    verify_record_signatures(record, signatures, source.trusted)
    window = record.window
    if window.question.index > 0:
        raise UsageError(f"{source.path} is one of many windows; publish the directory of their records")
    table = _single_table(record)
    places = _places(window)
    write_record(folder, 0, record.canonical, signatures, record_to_json(record, signatures))
    return Entry(
        slug=source.slug,
        title=window.name,
        plain=_plain(record),
        statement=tuple(_statement(record.statement)),
        windows=(_window(record),),
        **_as_signed(table),
        places=places,
        first=window.round_one_opens,
        every_s=0,
        keys=pinned_keys(source.trusted),
        downloads=_downloads(folder, table, places, window.name, None),
        numbers=numbers_text(opened_of(record)),
        **_map_of(window),
    )


def _numbers_of(kept: KeptTable) -> str:
    """Return what all released windows of a question for a number say together; nothing where they cannot be added."""
    with contextlib.suppress(UsageError):
        return numbers_text(opened_in(kept, kept.table.windows.tolist()))
    return ""


def _single_table(record: ReleaseRecord) -> QuestionTable:
    """Return a release as a table of one window, of its finest zoom."""
    window = record.window
    outputs = table_numbers(window.design, opened_numbers(record), 0)
    counts = WindowCounts(index=0, opens=window.round_one_opens, unit=0, outputs=outputs)
    labels = level_numbers(window.design, [cell.label for cell in record.cells], 0)
    said, level = _statement(record.statement), window.release.level
    return question_table(table_design(window.design, 0), level, labels, said, [counts])


def _as_signed(table: QuestionTable) -> dict[str, Any]:
    """Return the cells and the total as a page shows them: each number alone, so that it can compare it with records.

    Sums on a page and the files that a reader takes away have them joined.
    """
    total = {"total": each_alone(table, table.design.levels.count - 1)} if table.design.levels.total else {}
    return {"table": each_alone(table), "joined": table, "several": table.design.levels.most > 1} | total


def _promised(question: Question, record: ReleaseRecord) -> tuple[str, ...]:
    # A site shows all windows: what one of them tells would be less than what its reader sees.
    return _plain(record) if question.schedule.windows == 1 else promise_words(question)


def _plain(record: ReleaseRecord) -> tuple[str, ...]:
    # A statement without a view of the public has no plain sentences; it stands for itself.
    return plain_sentences(record.window.design, record.statement) or tuple(_statement(record.statement)[:1])


def _statement(views: Iterable[AdversaryView]) -> list[str]:
    return [f"{view.audience[0].upper()}{view.audience[1:]}: {view.sentence}" for view in views]


def _window(record: ReleaseRecord) -> WindowEntry:
    return WindowEntry(
        index=record.window.question.index,
        opens=record.window.round_one_opens,
        released_at=record.released_at,
        digest=record.digest.hex(),
    )


def _places(asked: Question | Window) -> Places | None:
    return places_of(asked) if isinstance(asked.domain, SquareGrid | H3Cells) else None


def _map_of(asked: Question | Window) -> dict[str, Any]:
    """Return what is drawn below the cells: the streets of Bologna under a grid in their own metres, else nothing."""
    frame = asked.domain.frame if isinstance(asked.domain, SquareGrid) else None
    note = place_note(asked)
    if frame is None or note or (frame.epsg, frame.offset_x, frame.offset_y) != (BOLOGNA_EPSG, *BOLOGNA_OFFSET):
        return {"note": note}
    lines = [np.array(street.line, dtype=np.float64).T for street in bologna_streets()]
    placed = [to_degrees(frame)(x, y) for x, y in lines]
    streets = [list(zip(east.tolist(), north.tolist(), strict=True)) for east, north in placed]
    return {"streets": streets, "attribution": _STREETS}


def _downloads(
    folder: Path, table: QuestionTable, places: Places | None, title: str, participants: tuple[int, ...] | None
) -> dict[str, str]:
    """Write the tables that a reader can take away; return their names by what they are."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, str] = {}
    for what, name in _tables(table):
        write = write_csv if name.endswith(".csv") else write_parquet
        write(table, folder / name, title, participants)
        files[what] = name
    if places is not None and places.coordinates == DEGREES:
        window = int(table.windows[-1])
        try:
            write_geojson(table, places, window, folder / "latest.geojson", title, participants)
        except ExportError as error:
            raise UsageError(str(error)) from error
        files["GeoJSON of the last window"] = "latest.geojson"
    return files


def _tables(table: QuestionTable) -> Iterator[tuple[str, str]]:
    rows = table.raw.size
    yield f"Parquet, {rows:,} rows: every cell of every window with its interval", "counts.parquet"
    if rows <= _MOST_CSV_ROWS:
        yield f"CSV, {rows:,} rows: the same (its first line says what the numbers are)", "counts.csv"
