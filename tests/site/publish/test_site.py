"""A published site in a real browser, from the disk and over http: maps, slider, lines, regions, tables, signatures."""

import json
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from fleetcount.__main__ import run_command
from fleetcount_analysis.answers import Region, WindowCounts, question_table
from fleetcount_analysis.answers import total as added_up
from fleetcount_protocol.question.question import Question
from fleetcount_site import serving
from fleetcount_site.publish.serve import site_routes
from playwright.sync_api import Browser, Page, expect

from tests.site.conftest import Visit
from tests.site.publish.conftest import COLUMNS, CROSSED, RELEASED, ROWS, SUMMED
from tests.support.published import change_script, packed_json

pytestmark = [pytest.mark.nightly, pytest.mark.processes]
"""A browser each: what every run asks of one is in tests/site/test_walk.py."""

PAGES = (
    "index",
    *(f"{name}/{what}" for name in ("map", "bologna", "colours", "speed") for what in ("index", "release")),
)
READY = "body[data-ready=all]"
PINNED = "2 of 2 signatures verified in your browser, under the keys that this page's publisher pins."


def opened(browser: Browser, path: Path, ready: bool = True, **how: object) -> Visit:
    """Return a page of the site that has done all it does by itself."""
    visit = Visit(browser, path.as_uri(), **how)  # type: ignore[arg-type]
    if ready:
        visit.page.wait_for_selector(READY)
    return visit


def quiet(visit: Visit) -> Page:
    """Return the page, which must not have complained or asked another place."""
    assert visit.complaints == []
    assert all(one.startswith(("file:", "data:", "http://127.0.0.1")) for one in visit.requests)
    return visit.page


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), pytest.param(1280, "light", marks=pytest.mark.nightly)])
def test_every_page_is_whole_at_every_width(browser: Browser, site: Path, width: int, scheme: str) -> None:
    visit = opened(browser, site / "index.html", ready=False, width=width, scheme=scheme)

    for name in PAGES:
        visit.page.goto((site / f"{name}.html").as_uri())
        if name != "index":
            visit.page.wait_for_selector(READY)

        assert quiet(visit).evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        assert visit.page.locator("h1").count() == 1, name
        assert "undefined" not in visit.page.inner_text("body"), name
        assert visit.page.locator("b").count() == 0, name
    visit.close()


def test_the_page_verifies_signatures_and_that_its_numbers_are_the_signed_ones(browser: Browser, site: Path) -> None:
    visit = opened(browser, site / "map/index.html")

    said = quiet(visit).inner_text("#verdict")

    assert said == f"Window {RELEASED[-1]}: {PINNED} The numbers shown are the signed ones."
    visit.close()


def test_the_slider_the_line_and_the_table_show_one_window(browser: Browser, site: Path) -> None:
    visit = opened(browser, site / "map/index.html")
    page = quiet(visit)

    page.focus("#slider")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.locator("#numbers summary").press("Enter")

    window = RELEASED[-3]
    expect(page.locator("#when")).to_contain_text(f"window {window},")
    expect(page.locator("#table caption")).to_contain_text(f"window {window},")
    cells = packed_json(site / f"map/records/{window:05d}.json.gz")["cells"]
    rows = page.locator("#table tbody tr").all_inner_texts()
    assert len(rows) == COLUMNS * ROWS
    for row, cell in zip(rows, cells, strict=True):
        label, interval, estimate, raw = re.split(r"\s*\t\s*", row.strip())
        low_high = f"{cell['low']} to {cell['high']}"
        below = cell["low"] == cell["high"] == 0 and float(cell["estimate"]) < 0
        assert (label, interval) == (cell["label"], "0, below noise" if below else low_high)
        assert (estimate, raw) == (cell["estimate"], str(cell["raw"]))
    assert page.get_attribute("#slider", "aria-valuetext")
    [shown] = [cell for cell in cells if f"Cell {cell['label']} (" in page.inner_text("#cell-name")]
    below = "".join(page.inner_text(".u-legend").split())
    assert below.endswith(f"high{shown['high']}low{shown['low']}estimate{shown['estimate']}")
    assert page.locator("#line canvas").count() == 1
    page.locator("#table tbody tr button").nth(5).press("Enter")
    expect(page.locator("#cell-name")).to_have_text(f"Cell {cells[5]['label']} (number 6)")
    expect(page.locator("#cell-text")).to_contain_text("95 % interval")
    visit.close()


def test_a_reader_by_keyboard_stays_at_a_row_whose_table_is_filled_again(browser: Browser, site: Path) -> None:
    visit = opened(browser, site / "map/index.html")
    page = quiet(visit)

    page.locator("#numbers summary").press("Enter")
    button = page.locator("#table tbody tr button").nth(5)
    label = button.inner_text()
    button.press("Enter")
    # What is said of the cell comes with the table filled again, behind the last step.
    expect(page.locator("#said")).to_contain_text(label)

    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#cell-name")).to_have_text(f"Cell {label} (number 6)")
    visit.close()


def test_a_region_is_summed_by_the_law_of_its_noise_by_hand_and_by_keyboard(browser: Browser, site: Path) -> None:
    visit = opened(browser, site / "map/index.html")
    page = quiet(visit)

    page.fill("#cells", "1-3, 7")
    page.keyboard.press("Enter")
    alone = page.inner_text("#region-now")
    page.click("#region-sum")
    expect(page.locator("#region-all")).to_contain_text(" to ")
    across = page.inner_text("#region-all")
    page.click("#draw")
    page.locator("#map").scroll_into_view_if_needed()
    box = page.locator("#map").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 20, box["y"] + box["height"] - 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 20, steps=4)
    page.mouse.up()

    assert re.fullmatch(r"4 cells in window 6, .* UTC: \d+ to \d+ \(estimate -?[\d.]+\)", alone)
    assert across.startswith(f"in all {len(RELEASED)} released windows, a device once in each: ")
    assert page.input_value("#cells") == f"1-{COLUMNS * ROWS}"
    assert page.inner_text("#region-now").startswith(f"{COLUMNS * ROWS} cells in window 6")
    page.fill("#cells", "1-400")
    page.keyboard.press("Enter")
    said = "'1-400' is no cell; allowed: 1 to 96, as in 1,5-9, and squares as (7,2)"
    assert page.inner_text("#cells-state") == said
    # A square goes by the name that the table and the map have for it.
    page.fill("#cells", "(3,1), 1")
    page.keyboard.press("Enter")
    assert page.input_value("#cells") == f"1,{COLUMNS + 4}"
    page.fill("#cells", "(77,1)")
    page.keyboard.press("Enter")
    assert page.inner_text("#cells-state") == "no cell is called (77,1)"
    notes = "faint: the interval holds 0 hatched: 0, below noise cells are x,y: x from the west, y from the south"
    assert " ".join(page.inner_text("#scale").split("devices")[1].split()) == notes
    visit.close()


def test_of_sets_the_vehicles_that_told_any_are_shown_and_nothing_is_added_up(browser: Browser, site: Path) -> None:
    visit = opened(browser, site / "codes/index.html")
    cells = packed_json(site / "codes/records/00001.json.gz")["cells"]
    total = cells[-1]

    said, verdict = quiet(visit).inner_text("#together"), visit.page.inner_text("#verdict")

    assert said.startswith(f"Vehicles that told any: {total['low']} to {total['high']} (95 % interval; estimate")
    assert verdict.endswith("The numbers shown are the signed ones.")
    assert "their sum is no number of vehicles" in visit.page.inner_text("#several")
    assert not visit.page.is_visible("#cells")
    expect(visit.page.locator("#table tbody tr")).to_have_count(3)
    visit.page.goto((site / "codes/release.html").as_uri())
    visit.page.wait_for_selector(READY)
    rows = visit.page.locator("#table tbody th").all_inner_texts()
    assert rows == ["P0301", "P0420", "U0100", "told any"] == [cell["label"] for cell in cells]
    assert " on the number that told any" in visit.page.inner_text("#facts")
    assert "total" not in visit.page.inner_text("body")
    visit.close()


def test_all_cells_together_are_shown_by_the_signed_total(browser: Browser, site: Path, tmp_path: Path) -> None:
    visit = opened(browser, site / "summed/index.html")
    total = packed_json(site / "summed/records/00001.json.gz")["cells"][-1]

    said, verdict = quiet(visit).inner_text("#together"), visit.page.inner_text("#verdict")

    assert said == (
        f"All cells together: {total['low']} to {total['high']} (95 % interval; estimate {total['estimate']}, opened"
        f" total {total['raw']})"
    )
    assert verdict.endswith("The numbers shown are the signed ones.")
    check_sums(visit.page, site / "summed", SUMMED, "1-3", [1, 2, 3])
    visit.close()
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    script = copy / "summed/data/question.js"
    script.write_text(script.read_text().replace(f"[{total['raw']},", f"[{total['raw'] + 1},"))
    visit = opened(browser, copy / "summed/index.html")
    assert quiet(visit).inner_text("#verdict").endswith("do not believe this page.")
    visit.close()


def check_sums(page: Page, folder: Path, question: Question, text: str, cells: Sequence[int]) -> None:
    """Hold the sum of cells that a reader names, of the last window and of both, against Python's."""
    released = [
        WindowCounts(index=index, opens=index, unit=index, outputs=tuple(int(cell["raw"]) for cell in one))
        for index in (0, 1)
        for one in [packed_json(folder / f"records/0000{index}.json.gz")["cells"]]
    ]
    labels = [question.domain.label(value) for value in range(1, question.domain.values + 1)]
    table = question_table(question.design, question.release.level, labels, (), released)
    page.fill("#cells", text)
    page.keyboard.press("Enter")
    page.click("#region-sum")
    expect(page.locator("#region-all")).to_contain_text(" to ")
    for place, windows in (("#region-now", [1]), ("#region-all", [0, 1])):
        found = added_up(table, Region.of(cells, windows))
        assert f": {found.low:,} to {found.high:,} (estimate " in page.inner_text(place)


def test_sums_of_a_table_are_joined_with_its_signed_margins(browser: Browser, site: Path, tmp_path: Path) -> None:
    visit = opened(browser, site / "both/index.html")

    assert quiet(visit).inner_text("#verdict").endswith("The numbers shown are the signed ones.")
    check_sums(visit.page, site / "both", CROSSED, "2,5", [2, 5])
    check_sums(visit.page, site / "both", CROSSED, "1,3-5", [1, 3, 4, 5])
    visit.close()
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    change_script(copy / "both/data/excess.js", lambda text: re.sub(r",(-?[0-9]+)\]\]", r",\g<1>1]]", text))
    visit = opened(browser, copy / "both/index.html")
    assert quiet(visit).inner_text("#verdict").endswith("do not believe this page.")
    visit.close()


def test_play_goes_through_the_windows_and_stops(browser: Browser, site: Path) -> None:
    visit = opened(browser, site / "map/index.html")
    page = quiet(visit)

    page.locator("#play").press("Space")

    expect(page.locator("#play")).to_have_text("Pause")
    expect(page.locator("#play")).to_have_text("Play", timeout=10_000)
    assert page.input_value("#slider") == str(len(RELEASED) - 1)
    visit.close()


def test_a_release_page_is_made_from_the_signed_bytes(browser: Browser, site: Path) -> None:
    visit = Visit(browser, (site / "map/release.html").as_uri() + "#3")
    visit.page.wait_for_selector(READY)
    page = quiet(visit)
    record = packed_json(site / "map/records/00003.json.gz")

    assert page.inner_text("#verdict") == PINNED
    assert record["privacy_statement"][0]["sentence"] in (page.text_content("#statement") or "")
    assert page.inner_text(".lead").startswith("As long as one operator is honest")
    assert page.locator("#table tbody tr").count() == COLUMNS * ROWS
    assert "two-sided geometric noise of epsilon 1/2" in page.inner_text("#facts")
    page.click("#after")
    expect(page.locator("#facts")).to_contain_text("window 4: paused")
    assert page.title().endswith("window 5")
    visit.close()


def test_a_release_of_two_signals_is_a_table_with_its_margins(browser: Browser, site: Path) -> None:
    visit = Visit(browser, (site / "both/release.html").as_uri())
    visit.page.wait_for_selector(READY)
    page = quiet(visit)
    cells = packed_json(site / "both/records/00001.json.gz")["cells"]

    assert page.inner_text("#verdict") == PINNED
    head = page.locator("#crosstab thead th").all_inner_texts()
    assert head == ["Vehicle.Speed x Vehicle.Category", "diesel", "<b>gas</b>", "other", "all"]
    rows = [row.locator("td").all_inner_texts() for row in page.locator("#crosstab tbody tr").all()]
    places = [[0, 1, 2, 6], [3, 4, 5, 7], [8, 9, 10, 11]]
    for row, among in zip(rows, places, strict=True):
        for text, place in zip(row, among, strict=True):
            assert f"{cells[place]['high']:,}" in text.replace("\u202f", ",")
    assert page.locator("#table tbody th").all_inner_texts()[6:8] == ["[0, 50) km/h x *", "[50, ∞) km/h x *"]
    assert "the margin of Vehicle.Speed" in page.inner_text("#facts")
    assert page.inner_text("#facts").count("Vehicle.Speed x Vehicle.Category") == 1
    visit.close()
    other = Visit(browser, (site / "summed/release.html").as_uri())
    other.page.wait_for_selector(READY)
    assert other.page.locator("#both").is_hidden()
    other.close()


@pytest.mark.parametrize("name", ["question", "release"])
def test_a_damaged_record_or_number_is_not_believed(browser: Browser, site: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    place = copy / f"map/records/{RELEASED[-1]:05d}.js"
    change_script(place, lambda text: text[:400] + ("A" if text[400] != "A" else "B") + text[401:])

    visit = Visit(browser, (copy / f"map/{'index' if name == 'question' else name}.html").as_uri())
    visit.page.wait_for_selector("#verdict.bad")

    said = visit.page.inner_text("#verdict")
    assert "2 of 2" not in said
    assert "0 of 2" in said or "cannot be" in said
    visit.close()


def test_numbers_that_are_not_the_signed_ones_are_called_so(browser: Browser, site: Path, tmp_path: Path) -> None:
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    place = copy / "map/data/numbers-0.js"
    change_script(place, lambda text: re.sub(r'"raw":\[(-?\d+)', lambda found: f'"raw":[{int(found[1]) + 1}', text))

    visit = Visit(browser, (copy / "map/index.html").as_uri())
    visit.page.wait_for_selector("#verdict.bad, #verdict.good")
    for _ in RELEASED:
        if "do not believe" in visit.page.inner_text("#verdict"):
            break
        visit.page.focus("#slider")
        visit.page.keyboard.press("ArrowLeft")
        visit.page.click("#verify")
        visit.page.wait_for_selector("#verdict.bad, #verdict.good")

    assert "The numbers shown are not the signed ones: do not believe this page." in visit.page.inner_text("#verdict")
    visit.close()


def test_a_line_that_is_not_the_signed_one_is_called_so(browser: Browser, site: Path, tmp_path: Path) -> None:
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    place = copy / "map/data/line-0.js"
    more = lambda found: f'"raw":{[int(one) + 1 for one in found[1].split(",")]}'[:-1]  # noqa: E731
    change_script(place, lambda text: re.sub(r'"raw":\[([^]]+)', more, text))

    visit = opened(browser, copy / "map/index.html")
    visit.page.fill("#cells", "1-3")
    visit.page.keyboard.press("Enter")
    visit.page.click("#region-sum")

    assert "do not believe this page" in visit.page.inner_text("#verdict")
    expect(visit.page.locator("#region-all")).to_have_text(
        "Lines and map have different numbers: do not believe this page."
    )
    visit.close()


def test_a_long_question_in_many_scripts_shows_the_same(
    browser: Browser, site: Path, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetcount_site.publish.entry.CHUNK_NUMBERS", 50)
    assert run_command(["publish", str(kept / "map"), "--output", str(tmp_path / "site")]) == 0
    parts = [len(list((tmp_path / "site/question/data").glob(f"{name}-*.js"))) for name in ("numbers", "line")]

    shown = []
    for page_path in (site / "map/index.html", tmp_path / "site/question/index.html"):
        visit = opened(browser, page_path)
        page = quiet(visit)
        page.focus("#slider")
        page.keyboard.press("ArrowLeft")
        page.fill("#cells", "8-9,17,96")
        page.keyboard.press("Enter")
        page.click("#region-sum")
        expect(page.locator("#region-all")).to_contain_text(" to ")
        shown.append([page.inner_text(f"#{name}") for name in ("region-now", "region-all", "cell-text")])
        visit.close()

    assert parts == [len(RELEASED), COLUMNS * ROWS // (50 // len(RELEASED))]
    assert shown[0] == shown[1]


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Serve the site; return its address."""
    listener = serving.listen()
    running = serving.server(serving.secured(site_routes(site)))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    yield serving.address_of(listener)
    running.should_exit = True
    thread.join()
    listener.close()


def test_a_served_site_is_the_same(browser: Browser, address: str) -> None:
    visit = Visit(browser, f"{address}map/")
    visit.page.wait_for_selector(READY)

    assert PINNED in quiet(visit).inner_text("#verdict")
    visit.page.goto(f"{address}nothing.html")
    assert "Not Found" in visit.page.inner_text("body")
    visit.close()


def test_a_grid_with_a_frame_lies_on_earth_with_its_streets(browser: Browser, site: Path) -> None:
    text = (site / "bologna/data/question.js").read_text()
    question = json.loads(text.removeprefix('fleetcount.give("question", ').removesuffix(");\n"))
    visit = opened(browser, site / "bologna/index.html")

    assert question["degrees"] is True
    assert len(question["streets"]) == 267
    for east, north in [*(line[0] for line in question["streets"]), *(ring[:2] for ring in question["rings"])]:
        assert 11.2 < east < 11.5
        assert 44.4 < north < 44.6
    assert "EPL-2.0" in quiet(visit).inner_text("#map")
    assert "streets" not in (site / "map/data/question.js").read_text().partition('"streets":[]')[0]
    visit.close()
