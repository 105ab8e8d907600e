"""Two trials of the campaign, always; `python -m tests.campaign` has the rest, and its page is docs/reliability.md."""

import json
import re
from pathlib import Path

import pytest

from tests.campaign.faults import FAULTS, fits
from tests.campaign.page import Run, page, read_lists, read_soak, with_part
from tests.campaign.trials import Lane, Trial
from tests.support.broker import RunningBroker
from tests.support.deployment import Deployed
from tests.support.live_relay import LiveRelay

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


@pytest.mark.processes
@pytest.mark.timeout(240)
async def test_windows_through_killed_devices_have_one_exact_end_each(
    pair: Deployed, broker: RunningBroker, tmp_path: Path
) -> None:
    """At a deployment that others go on to use: what needs a new start of it is the campaign's, and test_crashes'."""
    relay = LiveRelay(pair, tmp_path)
    await relay.start()
    one = Lane(tmp_path, pair, broker, relay, fleets=tmp_path, seed=1)
    name = "kill -9 of all devices"
    assert fits(name, one)

    try:
        trials = await one.episode(name, FAULTS[name], windows=2, lead_s=4.0, windows_s=(5.0, 5.0))
        second, ended = await one.second_releases(), one.ended_by_itself()
    finally:
        relay.child.reap()

    assert [trial.wrong for trial in trials] == [[], []]
    assert {trial.end for trial in trials} == {"released"}
    assert sum(trial.delivered for trial in trials) > 0
    assert (second, ended) == (0, [])


def test_the_page_counts_what_was_wrong() -> None:
    held = Trial(fault="nothing", store="SQLite", end="released", delivered=8, ended_s=1.0)
    broken = Trial(fault="full disk", store="SQLite", end="stuck", lost=2, doubled=1, stuck=True, wrong=["two"])
    run = Run(seed=1, lanes=1, took_s=90, second=3, missing=["a relay", "full disk (no lane here could)"])
    run.trials = [held, broken]

    text = page([run])

    assert "2 trials in 1.5 minutes, 1 of them under a fault and 0 under a kill: 2 lost, 1 doubled, 1 wrong," in text
    assert "3 second releases, 1 stuck, of 8 reports receipted in full." in text
    assert "| what fails | trials: SQLite | ended |" in text
    assert "| full disk | 1 | stuck 1; 2 lost; 1 doubled; 1 wrong; 1 stuck | – | – |" in text
    assert "| nothing | 1 | released 1 | – | 1.0 s |" in text
    assert "Not tried: a relay." in text
    assert "Not tried: full disk" not in text


def test_runs_from_files_make_one_page(tmp_path: Path) -> None:
    for number in (1, 2):
        run = Run(seed=number, lanes=1, took_s=60, missing=["a relay"])
        run.trials = [Trial(fault="kill -9 of both", store="SQLite", end="released", ready_s=[float(number)])]
        run.write(tmp_path / f"{number}.json")
    (tmp_path / "lists.json").write_text(
        json.dumps({"lists": 10000, "seconds": 600, "failed": 0, "ends": {"aborted": 2000, "released": 8000}})
    )

    text = page([Run.read(tmp_path / f"{number}.json") for number in (1, 2)], read_lists(tmp_path / "lists.json"))

    assert "2 trials in 2.0 minutes of 2 runs, 2 of them under a fault and 2 under a kill: 0 lost" in text
    assert "10,000 lists of failures on virtual time in 10 minutes, nine to each course of" in text
    assert "none of them broke a promise. They ended:" in text
    assert "released 8,000, aborted 2,000" in text


def test_a_part_of_the_page_is_written_anew_and_the_rest_stays(tmp_path: Path) -> None:
    run = Run(seed=1, lanes=1, took_s=60, build="0123abc", day="2026-11-08")
    run.trials = [Trial(fault="kill -9 of both", store="SQLite", end="released")]
    (tmp_path / "lists.json").write_text(
        json.dumps(
            {
                "build": "4567def",
                "day": "2026-10-31",
                "lists": 10,
                "seconds": 600,
                "failed": 0,
                "ends": {"released": 10},
            }
        )
    )
    whole = page([run], read_lists(tmp_path / "lists.json"))

    once = with_part(whole, "Far clocks", [run])
    run.trials *= 2
    twice = with_part(once, "Far clocks", [run])

    assert "1 trials in 1.0 minutes on 8 November 2026 at commit 0123abc, 1 of them" in whole
    assert "10 lists of failures on virtual time on 31 October 2026 at commit 4567def in" in whole
    assert once.startswith(whole)
    assert "\n\n## Far clocks\n\n1 trials in" in once
    assert twice.startswith(whole)
    assert twice.count("## Far clocks") == 1
    assert "\n\n## Far clocks\n\n2 trials in" in twice


def test_the_page_that_is_shipped_says_of_which_day_its_figures_are() -> None:
    shipped = PAGE.read_text(encoding="utf-8")
    head = page([Run(seed=1, lanes=1)]).partition("0 trials in")[0]
    figures = re.findall(r"^.*(?: trials in | lists of failures on |Of a soak of ).*$", shipped, re.MULTILINE)

    assert shipped.startswith(head)
    assert len(figures) == 4
    assert [one for one in figures if not re.search(r" on \d{1,2} [A-Z][a-z]+ 20\d\d\b", one)] == []


def test_the_soak_stands_on_the_page_with_what_was_held_at_its_start_and_end(tmp_path: Path) -> None:
    first = {"own_mib": 200.4, "descriptors": 61, "files": 20, "state_bytes": 500_000, "ended": 48}
    last = {"own_mib": 203.6, "descriptors": 62, "files": 22, "state_bytes": 2_500_000, "ended": 240}
    row = {"soak_s": 600.0, "every_s": 2.5, "windows": 240, "released": 239, "failed": []}
    path = tmp_path / "soak.json"

    path.write_text(json.dumps(row | {"settled": {"alpha": first}, "end": {"alpha": last}}))
    text = page([Run(seed=1, lanes=1)], read_soak(path))

    assert text.endswith(
        "Of a soak of 10 minutes, a window every 2.5 s, 239 of 240 windows were released. What an aggregator and its"
        " workers held once it had settled and in the end: alpha: 200 MiB, 61 descriptors and 20 files of 500,000"
        " bytes after 48 windows, then 204 MiB, 62 descriptors and 22 files of 2,500,000 bytes after 240 windows.\n"
    )
    path.write_text(json.dumps(row | {"settled": {}, "end": {}, "failed": ["alpha: files grew by 90.0, allowed 52"]}))
    assert read_soak(path).endswith("It failed: alpha: files grew by 90.0, allowed 52.")
