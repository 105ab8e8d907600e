"""Writes the files of a site into a folder; the caller renames the folder into place, so that it is whole or absent.

It must not read records: an `Entry` has everything that the pages show.
"""

import gzip
import json
import shutil
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from fleetcount_site.pages import ASSETS, assets
from fleetcount_site.publish.entry import (
    Entry,
    excess_script,
    line_scripts,
    number_scripts,
    question_script,
    record_script,
)
from fleetcount_site.publish.feeds import atom_feed, json_feed
from fleetcount_site.publish.texts import index_page, question_page, release_page

MARK = "fleetcount-site.json"
"""The file that marks a folder as a site by `fleetcount publish`."""


def write_record(folder: Path, index: int, record: bytes, signatures: Sequence[bytes], text: str) -> None:
    """Write a window's signed record for pages, and as the packed file `text` that `fleetcount verify` reads."""
    records = folder / "records"
    records.mkdir(parents=True, exist_ok=True)
    _write(records / f"{index:05d}.js", record_script(index, record, signatures))
    # Without a time: two runs over the same records write the same bytes.
    (records / f"{index:05d}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def write_entry(folder: Path, entry: Entry, address: str = "") -> None:
    """Write the pages, numbers and feeds of an entry into its folder, where its records and downloads are.

    `address` is the folder's address on the web, for its feeds; with "" their links are relative.
    """
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    _write(data / "question.js", question_script(entry))
    lines = () if entry.single else line_scripts(entry.table)
    for name, script in chain(number_scripts(entry.table), lines, excess_script(entry.joined)):
        _write(data / f"{name}.js", script)
    _write(folder / "index.html", question_page(entry))
    _write(folder / "release.html", release_page(entry))
    if not entry.single:
        _write(folder / "feed.xml", atom_feed(entry, address))
        _write(folder / "feed.json", json_feed(entry, address))


def write_site(folder: Path, title: str, entries: Sequence[Entry]) -> None:
    """Write the index, the files that all pages share and the mark of a site."""
    for name, path in assets().items():
        target = folder / ASSETS / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    _write(folder / "index.html", index_page(title, entries))
    mark = {"format": "fleetcount site 1", "entries": [entry.slug for entry in entries]}
    _write(folder / MARK, json.dumps(mark) + "\n")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
