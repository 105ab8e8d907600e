"""The feeds of a question: one item per released window, as Atom (RFC 4287) and as JSON Feed 1.1.

An item names the released window and the digest of its signed record; the numbers are on the pages, with their
intervals.
"""

import json
from typing import Final
from urllib.parse import urljoin
from xml.sax.saxutils import escape, quoteattr

from fleetcount_protocol.clock import utc_text

from fleetcount_site.publish.entry import Entry, WindowEntry
from fleetcount_site.publish.texts import utc

_ITEMS: Final = 100
"""The latest windows; the page has all."""


def atom_feed(entry: Entry, address: str) -> str:
    """Return the Atom feed; `address` is that of the entry's folder on the web, "" if it is not known.

    Without one, links are relative to the feed. Ids are digests, which do not change when the site moves.
    """
    last = entry.windows[-1]
    rows = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<feed xmlns="http://www.w3.org/2005/Atom">',
        f"<title>{escape(entry.title)}</title>",
        f"<subtitle>{escape(entry.plain[0])}</subtitle>",
        # A feed's name is its own, and none of its entries' (RFC 4287, section 4.2.6).
        f"<id>{_name(entry.windows[0])}#feed</id>",
        f"<updated>{utc_text(last.released_at)}</updated>",
        "<author><name>fleetcount publish</name></author>",
        f'<link rel="self" href={quoteattr(urljoin(address, "feed.xml"))}/>',
        f"<link href={quoteattr(urljoin(address, 'index.html'))}/>",
    ]
    for one in _latest(entry):
        rows += [
            "<entry>",
            f"<title>{escape(_title(one))}</title>",
            f"<id>{_name(one)}</id>",
            f"<updated>{utc_text(one.released_at)}</updated>",
            f"<link href={quoteattr(_link(address, one))}/>",
            f"<summary>{escape(_summary(entry, one))}</summary>",
            "</entry>",
        ]
    return "\n".join([*rows, "</feed>"]) + "\n"


def json_feed(entry: Entry, address: str) -> str:
    """Return the JSON Feed; `address` as in `atom_feed`."""
    feed = {
        "version": "https://jsonfeed.org/version/1.1",
        "title": entry.title,
        "description": entry.plain[0],
        "home_page_url": urljoin(address, "index.html"),
        "feed_url": urljoin(address, "feed.json"),
        "items": [
            {
                "id": _name(one),
                "url": _link(address, one),
                "title": _title(one),
                "content_text": _summary(entry, one),
                "date_published": utc_text(one.released_at),
            }
            for one in _latest(entry)
        ],
    }
    return json.dumps(feed, ensure_ascii=False, indent=1) + "\n"


def _latest(entry: Entry) -> list[WindowEntry]:
    return list(reversed(entry.windows[-_ITEMS:]))


def _name(window: WindowEntry) -> str:
    # RFC 6920 names a thing by its digest; its base64 form would say the same in fewer characters.
    return f"urn:sha256:{window.digest}"


def _title(window: WindowEntry) -> str:
    return f"Window {window.index}, {utc(window.opens)}"


def _link(address: str, window: WindowEntry) -> str:
    return urljoin(address, f"release.html#{window.index}")


def _summary(entry: Entry, window: WindowEntry) -> str:
    cells = f"{entry.table.design.values:,} cells"
    return f"Counts of {cells} with {entry.level} intervals, signed; record SHA-256 {window.digest}"
