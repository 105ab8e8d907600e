"""What lies beside the pages of a published site: feeds that name every window, and tables of the same numbers."""

import json
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from fleetcount.question.files import promise_words
from fleetcount.read.records import question_of_records
from fleetcount_mechanisms.accounting.question_statement import question_views

from tests.site.publish.conftest import COLUMNS, RELEASED, ROWS


def test_feeds_name_every_window_by_its_digest(site: Path) -> None:
    atom = ElementTree.parse(site / "map/feed.xml").getroot()
    feed = json.loads((site / "map/feed.json").read_text())
    name = "{http://www.w3.org/2005/Atom}"

    assert len(atom.findall(f"{name}entry")) == len(feed["items"]) == len(RELEASED)
    ids = [one.findtext(f"{name}id") for one in atom.findall(f"{name}entry")]
    assert ids == [one["id"] for one in feed["items"]]
    assert len({*ids, atom.findtext(f"{name}id")}) == len(RELEASED) + 1, "the feed has a name of its own"
    assert feed["items"][0]["url"] == f"release.html#{RELEASED[-1]}"


def test_pages_and_feeds_say_what_all_windows_together_tell(site: Path, kept: Path) -> None:
    question = question_of_records(kept / "map").question
    lead, *more = promise_words(question)
    views = question_views(question.design, question.shape, question.delta)

    for name in ("index.html", "map/index.html", "map/feed.json"):
        assert escape(lead) in (site / name).read_text(), name
    page = (site / "map/index.html").read_text()
    assert all(escape(words) in page for words in (*more, *(one.sentence for one in views)))
    # A release of one window says what it tells itself.
    assert "whoever reads this release" in (site / "speed/index.html").read_text()


@pytest.mark.nightly
def test_a_feed_reader_finds_no_fault_in_the_feed(site: Path) -> None:
    feedparser: Any = pytest.importorskip("feedparser", reason="needs feedparser (pip install feedparser)")

    read = feedparser.parse(str(site / "map/feed.xml"))

    assert not read.bozo
    assert read.version == "atom10"
    assert len({read.feed.id, *(one.id for one in read.entries)}) == len(RELEASED) + 1
    assert all(one.updated_parsed and one.title and one.links for one in read.entries)


def test_files_hold_the_same_numbers(site: Path) -> None:
    names = {path.name for path in (site / "map").iterdir()}

    assert {"counts.csv", "counts.parquet"} <= names
    assert "latest.geojson" not in names, "its grid has no place on Earth"
    assert len((site / "map/counts.csv").read_text().splitlines()) == 2 + len(RELEASED) * COLUMNS * ROWS
    assert "latest.geojson" not in {path.name for path in (site / "colours").iterdir()}
