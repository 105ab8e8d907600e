"""The report of a study: what it says, that every text is escaped, and that odd studies give whole pages too.

The picture files of a page take a second to draw: those of studies that are large or odd are drawn at night.
"""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from fleetcount_analysis.figures.charts import Measure
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.report.conclusions import headlines, introduction, warnings_of
from fleetcount_simulator.report.figures import FIGURES, coverage_band
from fleetcount_simulator.report.study import Study, Tables, read_study, share_measure
from fleetcount_simulator.report.tables import case_table, number_table, report_tables
from fleetcount_site.report import write_report
from matplotlib.image import imread

from tests.simulator.report_studies import MadeUp, attack, write_record, write_study

VOID = {"meta", "link", "br", "img", "input", "hr"}
SIZES = (1_000, 10_000, 100_000)


class Page(HTMLParser):
    """Reads a page strictly: every element is closed in order, ids are unique, labels point at something."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.pointed: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.data: dict[str, Any] = {}
        self.feed(text)
        self.close()
        assert self.open == []
        assert len(self.ids) == len(set(self.ids))
        assert set(self.pointed) <= set(self.ids)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            self.ids += [value or ""] if name == "id" else []
            self.pointed += [value or ""] if name == "aria-labelledby" else []
            self.addresses += [value or ""] if name in {"href", "src"} else []
            self.words += [value or ""] if name == "aria-label" else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.data = json.loads(data)
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def written(directory: Path, **changes: object) -> Page:
    """Write a made-up study and its report, check every file, and return the page."""
    path = write_report(write_study(directory / "study", MadeUp(**changes)))  # type: ignore[arg-type] # by name
    for file in (directory / "study" / "figures").iterdir():
        if file.suffix == ".svg":
            ElementTree.parse(file)
        else:
            assert imread(file).std() > 0.004
    return Page(path.read_text(encoding="utf-8"))


def figures(directory: Path) -> set[str]:
    return {file.stem for file in (directory / "study" / "figures").glob("*.svg")}


def read(directory: Path, **changes: object) -> Study:
    write_study(directory / "study", MadeUp(**changes))  # type: ignore[arg-type] # by name
    with Tables(directory / "study") as tables:
        return read_study(directory / "study", tables)


def sizes(*more: dict[str, float | str]) -> tuple[dict[str, float | str], ...]:
    return tuple({"population.devices": size, **one} for size in SIZES for one in (more or ({},)))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Page]:
    """Return the folder of a study of one case, and its page."""
    folder = tmp_path_factory.mktemp("plain")
    return folder, written(folder)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Page]:
    """Return the folder of a study of three fleets with an attacker, and its page."""
    folder = tmp_path_factory.mktemp("swept")
    return folder, written(folder, axes=("population.devices",), points=sizes(), attackers=(attack(),))


# What it says.


def test_a_reader_is_told_what_was_asked_the_three_numbers_and_where_it_came_from(plain: tuple[Path, Page]) -> None:
    _, page = plain

    assert "What this made-up study is for." in page.text
    assert "500 devices were asked “In which part are you?”, with 4 possible answers" in page.text
    assert re.search(r"Typical error (9|10)(\.\d+)? devices root mean square", page.text)
    assert re.search(r"Coverage \d\d(\.\d)? % of the intervals hold the truth", page.text)
    assert "Privacy epsilon 1 what one release tells" in page.text
    assert "fleetcount simulate made-up.toml" in page.text
    assert "drop out 0, 1/100" in page.text


@pytest.mark.nightly
def test_every_figure_has_a_caption_a_title_and_both_files(tmp_path: Path) -> None:
    page = written(
        tmp_path,
        axes=("population.devices", "mechanism.epsilon"),
        points=sizes({"mechanism.epsilon": 1.0}, {"mechanism.epsilon": 2.0}),
        attackers=(attack(),),
    )

    assert figures(tmp_path) == {"error", "coverage", "epsilon", "map", "attackers"}
    assert {file.stem for file in (tmp_path / "study" / "figures").glob("*.png")} == figures(tmp_path)
    assert page.tags.count("figure") == page.tags.count("figcaption") == 5
    assert page.text.count("It does not show") + page.text.count("it does not show") >= 4


def test_figures_without_data_are_left_out_with_a_reason(plain: tuple[Path, Page]) -> None:
    folder, page = plain

    assert figures(folder) == {"coverage", "map"}
    assert "Attackers, What lies can do: the scenario has no attackers." in page.text
    assert "Over the epochs: every question was asked once." in page.text


@pytest.mark.nightly
def test_a_figure_of_an_earlier_report_does_not_stay(tmp_path: Path) -> None:
    directory = write_study(tmp_path / "study", MadeUp())
    (directory / "figures").mkdir()
    for kind in ("svg", "png"):
        (directory / "figures" / f"bias.{kind}").write_bytes(b"old")
    (directory / "figures" / "mine.svg").write_bytes(b"kept")

    write_report(directory)

    assert not list((directory / "figures").glob("bias.*"))
    assert (directory / "figures" / "mine.svg").read_bytes() == b"kept"


def test_the_page_needs_nothing_from_elsewhere(swept: tuple[Path, Page]) -> None:
    folder, page = swept
    text = (folder / "study" / "report.html").read_text(encoding="utf-8")

    assert "style=" not in text
    assert "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:" in text
    beside = [address for address in page.addresses if not address.startswith("#") and address != "data:,"]
    assert all((folder / "study" / address).is_file() for address in beside)
    assert {address.partition("/")[0] for address in beside} == {"assets", "figures"}
    assert (folder / "study" / "assets" / "vendor" / "uplot" / "LICENSE").is_file()
    assert {address[1:] for address in page.addresses if address.startswith("#")} <= set(page.ids)


def test_a_page_without_figures_loads_no_script(tmp_path: Path) -> None:
    page = written(tmp_path, released=False)

    assert "script" not in page.tags
    assert not (tmp_path / "study" / "assets" / "report.js").exists()


def test_dots_of_the_page_say_their_numbers(swept: tuple[Path, Page]) -> None:
    panels = swept[1].data["panels"]
    texts = {name: [mark["text"] for mark in panel["marks"] if mark["text"]] for name, panel in panels.items()}

    assert len(texts["error-0"]) == 3
    assert re.fullmatch(r"devices=1000: [\d.]+ \([\d.]+ to [\d.]+\)", texts["error-0"][0])
    assert texts["attackers-0"] == ["known-others · 1,000: 60 % (50 % to 70 %)"]
    assert {f"{name}-told" for name in panels} <= set(swept[1].ids)


@pytest.mark.nightly
def test_labels_of_any_letters_are_drawn_without_a_warning(tmp_path: Path) -> None:
    odd = ("道路 \U0001f697", "costs $5 and $x_1$", r"$\frac{1}{2}", "w" * 300, "مرحبا")
    page = written(tmp_path, labels=odd, mechanisms=odd[:3], attackers=tuple(attack(case=place) for place in range(3)))
    svg = (tmp_path / "study" / "figures" / "map.svg").read_text(encoding="utf-8")

    assert all(f">{label}</text>" in svg for label in odd[1:3])
    assert ">[U+9053][U+8DEF] [U+1F697]</text>" in svg
    assert page.data["panels"]["map-0"]["rows"] == list(odd)
    assert all(page.text.count(label) > 3 for label in odd[:3])


@pytest.mark.nightly
def test_what_all_attackers_have_in_common_is_said_once(tmp_path: Path) -> None:
    page = written(
        tmp_path, axes=("population.devices",), points=sizes(), attackers=tuple(attack(case=case) for case in range(3))
    )
    svg = (tmp_path / "study" / "figures" / "attackers.svg").read_text(encoding="utf-8")

    assert "All rows: known-others." in page.text
    assert [f">{size}</text>" in svg for size in ("1,000", "10k", "100k")] == [True] * 3
    assert ">known-others" not in svg


@pytest.mark.nightly
def test_the_same_study_gives_the_same_files(tmp_path: Path) -> None:
    directory = write_study(tmp_path / "study", MadeUp(axes=("population.devices",), points=sizes()))

    write_report(directory)
    first = {file: file.read_bytes() for file in directory.rglob("*") if file.is_file()}
    write_report(directory)

    assert {file: file.read_bytes() for file in directory.rglob("*") if file.is_file()} == first


def test_an_epsilon_that_holds_with_a_delta_is_never_shown_without_it(tmp_path: Path) -> None:
    study = read(tmp_path)
    case = replace(study.cases[0], epsilon=0.3041, total_epsilon=0.9121, delta=1e-9, total_delta=3.01e-9)
    shown = replace(study, cases=(case,))

    assert case_table(shown).rows[0][-2:] == ["0.305, delta 1e−9", "0.913, delta 3.1e−9"]
    assert "epsilon 0.305, delta up to 1e−9" in [one.number for one in headlines(shown)]
    assert "delta" not in str(case_table(study))


# Warnings.


@pytest.mark.nightly
def test_intervals_that_miss_are_a_warning_and_wide_ones_a_note(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    seldom = warnings_of(read(tmp_path / "a", share_inside=0.8, runs=100))
    often = warnings_of(read(tmp_path / "b", share_inside=1.0, runs=100))

    assert [(one.severe, one.text[:40]) for one in seldom] == [(True, "Intervals hold the truth too seldom here")]
    assert [(one.severe, one.text[:33]) for one in often] == [(False, "Intervals are wider than needed, ")]


@pytest.mark.nightly
def test_nothing_is_warned_of_when_all_is_as_it_should_be(tmp_path: Path) -> None:
    assert "What to look out for Nothing. All releases happened" in written(tmp_path, runs=200).text


@pytest.mark.nightly
def test_a_bias_is_believed_only_beyond_luck(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    assert any("biased" in one.text and one.severe for one in warnings_of(read(tmp_path / "a", shift=3.0)))
    assert not any("bias" in one.text for one in warnings_of(read(tmp_path / "b", shift=0.0, runs=200)))


@pytest.mark.parametrize(
    ("coverage", "warned"),
    [
        (Measure(0.93, 0.90, 0.95), []),
        (Measure(0.93, 0.92, 0.939), [True]),
        (Measure(0.98, 0.96, 0.99), []),
        (Measure(0.98, 0.971, 0.99), [False]),
    ],
)
def test_a_coverage_is_judged_by_its_error_bar(tmp_path: Path, coverage: Measure, warned: list[bool]) -> None:
    study = read(tmp_path)
    judged = replace(study, cases=(replace(study.cases[0], coverage=coverage, coverage_fleet=coverage),))

    assert [one.severe for one in warnings_of(judged)] == warned


def test_a_level_other_than_95_has_its_own_band() -> None:
    assert coverage_band(0.95) == pytest.approx((0.94, 0.97))
    assert coverage_band(0.90) == pytest.approx((0.88, 0.94))


def test_a_broken_promise_is_said_and_shown(tmp_path: Path) -> None:
    page = written(tmp_path, attackers=(attack(measured=0.9, low=0.85, high=0.94, within=False),))

    assert "Warning: Attackers achieved more than is promised, beyond luck: known-others (guess rate)." in page.text
    assert "BROKEN" in page.text


def test_releases_that_did_not_happen_leave_a_page_without_figures(tmp_path: Path) -> None:
    page = written(tmp_path, released=False)

    assert "20 of 20 releases did not happen" in page.text
    assert "Nothing was released, so there is no result." in page.text
    assert figures(tmp_path) == set()
    assert "nan" not in page.text


def test_one_run_says_so(tmp_path: Path) -> None:
    page = written(tmp_path, runs=1)

    assert "One run: how much results differ between runs is not known." in page.text
    assert "Coverage not known 4 intervals do not show how often they hold the truth" in page.text
    assert figures(tmp_path) == {"map"}
    assert "nan" not in page.text


# Odd studies.


def test_texts_are_escaped_wherever_they_stand(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'&\u0007"
    page = written(
        tmp_path,
        title=evil,
        labels=(evil, "long " * 60, "道路\U0001f697", "مرحبا"),
        axes=("mechanism.keep",),
        points=({"mechanism.keep": evil}, {"mechanism.keep": "b"}),
        mechanisms=(evil, "direct"),
        attackers=(attack(attacker=evil, target=evil),),
        scenario=f"# {evil}\nname = 1",
    )
    raw = (tmp_path / "study" / "report.html").read_text(encoding="utf-8")

    assert raw.count("<script") == raw.count("</script>") == page.tags.count("script")
    assert "<script>" not in raw
    assert "\u0007" not in raw
    assert "alert(1)" in page.text
    assert "alert(1)" in page.data["panels"]["map-0"]["rows"][0]


def test_a_study_that_has_not_finished_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    write_record(tmp_path / "study", MadeUp(status="running"), 1)

    page = Page(write_report(tmp_path / "study").read_text(encoding="utf-8"))

    assert "Warning: The study has not finished; the same command goes on with it." in page.text
    assert "There are no results yet." in page.text
    assert "What this made-up study is for." in page.text


@pytest.mark.nightly
def test_a_hundred_cases_stay_a_few_lines(tmp_path: Path) -> None:
    points = tuple(
        {"population.devices": float(size), "mechanism.epsilon": epsilon}
        for size in (1_000, 3_000, 10_000, 30_000, 100_000)
        for epsilon in (0.25, 0.5, 1.0, 2.0, 4.0)
    )
    page = written(
        tmp_path,
        axes=("population.devices", "mechanism.epsilon"),
        points=points,
        mechanisms=("sampling", "direct", "warner", "mangat"),
    )

    assert "of 100 cases" in page.text
    assert {"error", "coverage", "epsilon", "map"} <= figures(tmp_path)
    for name in figures(tmp_path):
        words = re.findall(r"<text[^>]*>", (tmp_path / "study" / "figures" / f"{name}.svg").read_text(encoding="utf-8"))
        assert len(words) < 150, name


@pytest.mark.nightly
def test_a_map_of_thousands_of_cells_is_a_picture(tmp_path: Path) -> None:
    squares = tuple(
        f"POLYGON(({x} {y}, {x + 1}.0 {y}, {x + 1} {y + 1}, {x} {y + 1}, {x} {y}))"
        for x, y in (divmod(value, 77) for value in range(5_835))
    )
    written(tmp_path, labels=tuple(map(str, range(5_835))), outlines=squares, runs=1)
    svg = (tmp_path / "study" / "figures" / "map.svg").read_text(encoding="utf-8")

    assert 3 <= svg.count("<image") <= 6  # Each map is one, and its scale may be.
    assert len(svg) < 500_000
    assert (tmp_path / "study" / "report.html").stat().st_size < 1_500_000


@pytest.mark.parametrize(
    "outlines",
    [
        ("POLYGON((0 0, 1 0, 1 1, 0 0))", "POLYGON((1 1, 2 1, 2 2, 1 1))"),
        ("LINESTRING(0 0, 5 0)", "LINESTRING(5 0, 9 3, 9 9)"),
    ],
)
def test_a_map_hatches_an_interval_without_width_below_noise_and_says_why(
    tmp_path: Path, outlines: tuple[str, ...]
) -> None:
    page = written(tmp_path, labels=("a", "b"), outlines=outlines, below_noise=("b",))
    truth, estimate, width = page.data["map"]["layers"]

    assert (truth["hatched"], estimate["hatched"], width["hatched"]) == (None, None, [False, True])
    assert width["unit"] == "devices (hatched: 0, below noise)"
    assert page.data["map"]["texts"][1] == "b: truth 102, estimate \N{MINUS SIGN}16, interval 0, below noise"
    assert "<pattern" in (tmp_path / "study" / "figures" / "map.svg").read_text(encoding="utf-8")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("outlines", "unit", "lines"),
    [
        (("POLYGON((0 0, 1 0, 1 1, 0 0))", "POLYGON((1 1, 2 1, 2 2, 1 1))"), "deg", False),
        (("LINESTRING(0 0, 5 0)", "LINESTRING(5 0, 9 3, 9 9)"), "m", True),
    ],
)
def test_maps_draw_areas_and_roads(tmp_path: Path, outlines: tuple[str, ...], unit: str, lines: bool) -> None:
    page = written(tmp_path, labels=("a", "b"), outlines=outlines, unit=unit)
    drawn = page.data["map"]

    assert (drawn["lines"], drawn["degrees"]) == (lines, unit == "deg")
    assert [len(cell["ring"]) for cell in drawn["cells"]] == [outline.count(",") + 1 for outline in outlines]
    assert [len(layer["values"]) for layer in drawn["layers"]] == [2, 2, 2]
    assert re.fullmatch(r"a: truth 101, estimate \d+, interval \d+ to \d+", drawn["texts"][0])
    assert {"map", "map-layers", "map-scale", "map-told"} <= set(page.ids)


@pytest.mark.nightly
def test_without_cells_the_map_is_left_out(tmp_path: Path) -> None:
    page = written(tmp_path, keep_cells=False)

    assert "the table of cells was left out" in page.text
    assert figures(tmp_path) == {"coverage"}


@pytest.mark.nightly
def test_epochs_and_drop_outs_have_their_figures(tmp_path: Path) -> None:
    points: tuple[dict[str, float | str], ...] = ({"faults.drop_out": 0.0}, {"faults.drop_out": 0.05})
    written(
        tmp_path,
        axes=("faults.drop_out",),
        points=points,
        epochs=3,
        attackers=tuple(attack(measure="shift", measured=1.1 * bound, bound=bound) for bound in (5.0, 50.0)),
    )

    assert {"bias", "epochs", "error", "shift"} <= figures(tmp_path)
    assert figures(tmp_path) <= set(FIGURES)


def tracker(windows: int, measured: float, **changes: object) -> dict[str, object]:
    plain = attack(attacker="month", kind="tracker", questions=windows, measured=measured, bound=0.9)
    return plain | {"low": measured - 0.01, "high": measured + 0.01} | changes


@pytest.mark.nightly
def test_a_question_has_its_rules_and_its_tracker(tmp_path: Path) -> None:
    rules = [{"rule": rule, "windows": t, "sd": t * 0.4} for rule in ("exact", "p = 1/2, coin a day") for t in (1, 720)]
    rows = [tracker(700, 0.77, theory=None), tracker(5, 0.52), tracker(5, 0.51, measure="beyond_promise")]
    page = written(tmp_path, epochs=3, rules=tuple(rules), attackers=tuple(rows))

    assert {"rules", "tracker", "attackers"} <= figures(tmp_path)
    assert "sd of an empty cell, in devices against windows. p = 1/2, coin a day, 720 windows: 288." in page.text
    # Rows come as the table has them; lines go from few windows to many, and the list of attackers has the last alone.
    assert "month: 0.52 after 5 windows, 0.77 after 700" in page.text
    assert "Guess rates of 1 attacks" in page.text


def shown(run: int, estimate: float, **changes: object) -> dict[str, object]:
    plain = {"case": 0, "run": run, "epoch": 0, "what": "median", "unit": "km/h", "q": 0.5, "fleet": 30.0}
    return plain | {"estimate": estimate, "low": estimate - 2, "high": estimate + 2} | changes


def test_numbers_stand_beside_those_of_the_fleet(tmp_path: Path) -> None:
    rows = [shown(1, 33), shown(0, 31), shown(0, 12.5, what="mean", q=math.nan, fleet=12.0)]
    study = read(tmp_path, numbers=tuple(rows))

    table = number_table(study)

    # The first release is run 0's; of two medians one is within 2 of the fleet's, and their errors are 1 and 3.
    assert [row[1:-1] for row in table.rows] == [
        ["median", "30 km/h", "32", "2.24", "31", "29 to 33", "4", "2"],
        ["mean", "12 km/h", "12.5", "0.5", "12.5", "10.5 to 14.5", "4", "1"],
    ]
    assert table.rows[0][-1].startswith("50 %")
    assert table in report_tables(study)


def test_a_study_without_numbers_has_no_table_of_them(tmp_path: Path) -> None:
    assert "Numbers" not in str([table.caption for table in report_tables(read(tmp_path))])


def test_many_epochs_are_put_together(tmp_path: Path) -> None:
    study = read(tmp_path, epochs=250, runs=1)
    rows = study.epochs[0]

    assert study.epoch_step == 3
    assert [row["epoch"] for row in rows] == list(range(0, 250, 3))
    assert sum(row["asked"] for row in rows) == 250


@pytest.mark.nightly
def test_long_names_of_cases_become_their_values(tmp_path: Path) -> None:
    points = tuple(
        {"population.devices": float(size), "faults.drop_out": share, "faults.naive": naive}
        for size in (1_000, 100_000)
        for share in (0.0, 0.05)
        for naive in ("false", "true")
    )
    written(tmp_path, axes=("population.devices", "faults.drop_out", "faults.naive"), points=points)
    svg = (tmp_path / "study" / "figures" / "coverage.svg").read_text(encoding="utf-8")

    assert ">devices · drop out · naive</text>" in svg
    assert ">100k · 0.05 · true</text>" in svg


@pytest.mark.nightly
def test_what_only_epsilon_changes_is_drawn_once(tmp_path: Path) -> None:
    points = tuple({"mechanism.sampling.epsilon": epsilon} for epsilon in (1.0, 2.0))
    written(tmp_path, axes=("mechanism.sampling.epsilon",), points=points)

    names = {path.stem for path in (tmp_path / "study" / "figures").glob("*.svg")}
    assert "epsilon" in names
    assert "error" not in names


# What is refused.


def test_a_directory_without_a_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"holds no study \(run\.json is missing\)"):
        write_report(tmp_path)


def test_a_table_that_is_damaged_is_refused_by_name(tmp_path: Path) -> None:
    directory = write_study(tmp_path / "study", MadeUp())
    (directory / "releases.parquet").write_bytes(b"PAR1 and nothing more")

    with pytest.raises(ScenarioError, match="tables cannot be read"):
        write_report(directory)
    assert not (directory / "report.html").exists()


def test_the_record_is_not_changed(tmp_path: Path) -> None:
    directory = write_study(tmp_path / "study", MadeUp())
    before = json.loads((directory / "run.json").read_text(encoding="utf-8"))

    write_report(directory)

    assert json.loads((directory / "run.json").read_text(encoding="utf-8")) == before


# Error bars.


def test_shares_have_wilsons_interval() -> None:
    # Wilson's interval of 95 of 100, from its formula by hand: centre 0.93335, half width 0.04515.
    alone = share_measure(0.95, None, 1, 100)

    assert (round(alone.low, 4), round(alone.high, 4)) == (0.8882, 0.9785)


def test_cells_that_go_wrong_together_count_for_less() -> None:
    binomial = math.sqrt(0.95 * 0.05 / 50)
    alone = share_measure(0.95, binomial, 40, 50)
    together = share_measure(0.95, 3 * binomial, 40, 50)

    assert (together.high - together.low) > 2.7 * (alone.high - alone.low)


def test_the_interval_of_a_coverage_holds_it_as_often_as_it_says() -> None:
    # 2,000 studies of 25 releases of 40 independent cells at 95 %: an interval that held it in fewer than 93 % or more
    # than 97 % of the studies would differ by 4 standard errors; seeded.
    generator = np.random.default_rng(7)
    shares = generator.binomial(40, 0.95, size=(2_000, 25)) / 40
    held = [
        measure.low <= 0.95 <= measure.high
        for row in shares
        for measure in [share_measure(float(row.mean()), float(row.std(ddof=1)), 25, 40)]
    ]

    assert 0.93 < np.mean(held) < 0.975


def test_the_documentation_names_every_figure() -> None:
    page = (Path(__file__).parents[3] / "docs" / "simulating-report.md").read_text(encoding="utf-8")

    assert [name for name in FIGURES if f"| `{name}` |" not in page] == []


def test_the_introduction_names_faults_repetition_and_the_schedule_of_the_scenario(tmp_path: Path) -> None:
    directory = write_study(tmp_path / "study", MadeUp())
    scenario = '[question]\ncells = "none"\n[faults]\nloss = 0.1\n[epochs]\ncount = 3\n[schedule]\ncoin = "day"\n'
    with Tables(directory) as tables:
        study = read_study(directory, tables)

    said = introduction(replace(study, record={**study.record, "scenario": scenario}))

    sure = introduction(replace(study, cases=[replace(case, level=0.9999) for case in study.cases]))
    assert " asking for 99.99 % intervals." in " ".join(sure)
    assert said[-3:] == [
        "What went wrong on purpose: loss 0.1.",
        "Asked repeatedly: count 3.",
        "Asked as one question: coin day.",
    ]
