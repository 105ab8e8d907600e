"""The page's own reading of records: every vector of the wire, good and bad, as in Python; and who signed."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_analysis.interval_words import level_text
from fleetcount_protocol.errors import FleetcountError
from fleetcount_protocol.release.record import decode_record
from fleetcount_protocol.release.record_json import record_from_json
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.signal import decimal_text
from fleetcount_site.pages import RECORD_SCRIPTS, page
from playwright.sync_api import Browser, Page

from tests.site.conftest import Visit
from tests.support.protocol_samples import every_window

pytestmark = [pytest.mark.nightly, pytest.mark.processes]
"""A browser each: what every run asks of one is in tests/site/test_walk.py."""

VECTORS = Path(__file__).resolve().parent.parent / "vectors"
RECORDS = json.loads((VECTORS / "wire/records.json").read_text())
WINDOWS = json.loads((VECTORS / "wire/windows.json").read_text())
REFUSED = json.loads((VECTORS / "refused/layouts.json").read_text())

BYTES = """(data, more, times) => {
  const [head, tail] = [data, more].map(one => Uint8Array.from(one.match(/../g) || [], pair => parseInt(pair, 16)));
  const bytes = new Uint8Array(head.length + tail.length * times);
  bytes.set(head);
  for (let at = 0; at < times; at += 1) bytes.set(tail, head.length + at * tail.length);
  return bytes;
}"""
"""From hexadecimal digits, and further ones so many times: some records of the vectors have megabytes."""
READ = (
    f"(data, more = '', times = 0) => {{ const bytes = ({BYTES})(data, more, times);"
    """
  try {
    const record = fleetcount.decodeRecord(bytes);
    return {cells: record.cells.map(c => [c.label, `${c.raw}`, `${c.estimate}`, `${c.low}`, `${c.high}`]),
      views: record.views.map(v => [v.adversary, v.epsilon, v.delta, v.sentence]), released: record.releasedAt,
      level: `${record.window.release.level}`, name: record.window.name,
      missing: record.link && record.link.missing.map(m => [m.first, m.count, m.reason])};
  } catch (error) {
    if (!(error instanceof fleetcount.layout.DecodeError)) throw error;
    return error.message;
  }
}"""
)
READ_WINDOW = (
    f"(data, more = '', times = 0) => {{ const bytes = ({BYTES})(data, more, times);"
    """
  try {
    const { domain } = fleetcount.decodeWindow(bytes);
    return Array.from({length: domain.values}, (_, place) => domain.label(place + 1));
  } catch (error) {
    if (!(error instanceof fleetcount.layout.DecodeError)) throw error;
    return error.message;
  }
}"""
)
SIGNED = """async ([data, signatures, pinned, until]) => {
  const bytes = fleetcount.fromBase64(data);
  const keys = pinned && Object.fromEntries(Object.entries(pinned).map(([id, key]) =>
    [id, [{key: fleetcount.fromBase64(key), notBefore: 0, notAfter: until}]]));
  return fleetcount.verifyRecord(fleetcount.decodeRecord(bytes), bytes, signatures.map(fleetcount.fromBase64), keys);
}"""


@pytest.fixture(scope="module")
def reader(browser: Browser, assets_folder: Path) -> Iterator[Page]:
    """Return a page that has the scripts of records."""
    (assets_folder / "records.html").write_text(page("r", "<h1>r</h1>", scripts=RECORD_SCRIPTS))
    visit = Visit(browser, (assets_folder / "records.html").as_uri())
    yield visit.page
    assert visit.complaints == []
    visit.close()


def test_every_good_record_is_read_as_python_reads_it(reader: Page) -> None:
    for one in RECORDS:
        record = decode_record(bytes.fromhex(one["canonical"]))
        found = reader.evaluate(READ, one["canonical"])

        assert found["cells"] == [
            [cell.label, str(cell.raw), str(cell.estimate), str(cell.low), str(cell.high)] for cell in record.cells
        ], one["name"]
        assert [view[3] for view in found["views"]] == [view.sentence for view in record.statement]
        assert (found["released"], found["level"]) == (record.released_at, str(record.level))
        assert found["name"] == record.window.name
        windows = [index for first, count, _ in found["missing"] or [] for index in range(first, first + count)]
        assert windows == [gap.index for gap in (record.chain.missing if record.chain else ())]


def test_every_good_window_is_read_with_its_labels(reader: Page) -> None:
    for one in WINDOWS:
        assert reader.evaluate(READ_WINDOW, one["canonical"]) == one["window"]["labels"], one["name"]


def test_a_page_writes_an_edge_as_python_does(reader: Page) -> None:
    edges = [Fraction(one) for one in ("12.4", "-0.05", "0", "1500", "40/3", f"1/{10**28}", f"1/{10**29}", "-61/2")]
    pairs = [[str(one.numerator), str(one.denominator)] for one in edges]

    written = reader.evaluate("pairs => pairs.map(pair => fleetcount.layout.Fraction.of(...pair).decimal)", pairs)

    assert written == [decimal_text(one) for one in edges]


def test_a_page_writes_a_level_as_python_does(reader: Page) -> None:
    levels = [Fraction(one) for one in ("19/20", "0.9999", "0.99999999", "2999999999/3000000000", "2/3", "0.00001")]
    pairs = [[str(one.numerator), str(one.denominator)] for one in levels]

    written = reader.evaluate(
        "pairs => { const { Fraction } = fleetcount.layout; return pairs.map(pair =>"
        " Fraction.of(...pair).times(Fraction.of(100)).ending); }",
        pairs,
    )

    assert [f"{one} %" for one in written] == [level_text(one) for one in levels]


def test_everything_that_python_refuses_is_refused(reader: Page) -> None:
    bad = [(READ, (broken["data"], "", 0)) for one in RECORDS for broken in one["bad"]]
    bad += [(READ_WINDOW, (broken["data"], "", 0)) for one in WINDOWS for broken in one["bad"]]
    for one in REFUSED:
        if one["decoder"] in ("record", "window"):
            read = READ if one["decoder"] == "record" else READ_WINDOW
            bad.append((read, (one["data"], *one.get("then", ("", 0)))))

    taken = []
    for read in (READ, READ_WINDOW):
        given = [data for chosen, data in bad if chosen is read]
        found = reader.evaluate(f"given => given.map(one => ({read})(...one))", given)
        taken += [data[0][:80] for data, answer in zip(given, found, strict=True) if not isinstance(answer, str)]

    assert len(bad) > 100
    assert taken == []


@pytest.mark.parametrize(("most", "label"), [(1, "total"), (2, "told any")])
def test_no_category_is_called_as_the_total_is(reader: Page, most: int, label: str) -> None:
    other = label[:-1] + "_"
    domain = Categories(names=("a", "b", other), most=most)
    good = replace(every_window()["direct_holders"], domain=domain).canonical

    taken, refused = (
        reader.evaluate(READ_WINDOW, data.hex()) for data in (good, good.replace(other.encode(), label.encode()))
    )

    assert taken == ["a", "b", other]
    assert refused == f"a total is asked beside a category '{label}'"


def test_what_is_damaged_is_refused_as_in_python_byte_for_byte(reader: Page) -> None:
    data = bytes.fromhex(next(one for one in RECORDS if one["name"] == "window")["canonical"])
    given, taken = [], []
    for place in range(0, len(data), 3):
        given.append(data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1 :])
        try:
            decode_record(given[-1])
            taken.append(True)
        except FleetcountError:
            taken.append(False)

    found = reader.evaluate(f"given => given.map(one => ({READ})(one))", [one.hex() for one in given])

    assert [isinstance(one, dict) for one in found] == taken
    assert True in taken


def test_signatures_count_under_pinned_keys_alone(reader: Page) -> None:
    text = RECORDS[0]["json"]
    record, signatures = record_from_json(text if isinstance(text, str) else json.dumps(text))
    data = base64.b64encode(record.canonical).decode()
    signed = [base64.b64encode(one).decode() for one in signatures]
    keys = {
        str(one.aggregator_id): base64.b64encode(one.signing_public_key).decode() for one in record.window.aggregators
    }
    other = dict(zip(keys, reversed(keys.values()), strict=True))
    flipped = base64.b64encode(bytes([signatures[0][0] ^ 1]) + signatures[0][1:]).decode()

    def verified(given: list[str], pinned: dict[str, str] | None, until: int = 10**12) -> tuple[int, bool, bool]:
        found = reader.evaluate(SIGNED, [data, given, pinned, until])
        return found["verified"], found["all"], found["pinned"]

    assert verified(signed, keys) == (len(keys), True, True)
    assert verified(signed, None) == (len(keys), True, False)
    assert verified(signed, other) == (0, False, True)
    assert verified([flipped, *signed[1:]], keys) == (len(keys) - 1, False, True)
    assert verified(signed[:1], keys) == (1, False, True)
    assert verified(signed, keys, record.released_at) == (0, False, True)  # A key that had been succeeded by then.
    assert verified(signed, {}) == (0, False, True)
