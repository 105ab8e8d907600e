"""A series from its specification to the leader's directory: signed once, plain words first; bad ones are refused."""

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount.series_files import read_series
from fleetcount_mechanisms.noise import GaussianNoise, OneSidedNoise, TwoSidedNoise

SPEC = """
[task]
name = "Where are you now?"
deployment = "test"
signal = "Vehicle.CurrentLocation"
mode = "direct"
min_batch_size = 10
time_precision_s = 60
[domain]
kind = "grid"
x0 = 0
y0 = 0
size = 250
columns = 8
rows = 9
[series]
first = "in 10 min"
every = "1 h"
windows = 720
window = "10 min"
[release]
epsilon = "10"
delta = "1e-9"
[[aggregators]]
descriptor = "dep/alpha.descriptor.toml"
[[aggregators]]
descriptor = "dep/beta.descriptor.toml"
"""
SAMPLED = SPEC.replace('mode = "direct"', 'mode = "sampling"').replace(
    "[release]", '[mechanism]\nsampling_rate = "1/2"\n[release]'
)
CREATE = ("series", "create", "--spec", "spec.toml", "--output", "q.series")


@pytest.fixture
def deployed(fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert fleetcount("keys", "init", "--output", "dep", "--base-port", "0").code == 0
    (tmp_path / "spec.toml").write_text(SPEC)
    return tmp_path


def test_a_series_is_created_signed_once_by_each_and_submitted(fleetcount: Callable, deployed: Path) -> None:
    def operator(name: str) -> list[str | Path]:
        return ["--config", deployed / "dep" / name / "aggregator.toml", "q.series"]

    assert fleetcount(*CREATE).code == 0
    assert (deployed / "q.verify-seed").stat().st_mode & 0o777 == 0o600
    assert fleetcount("series", "sign", *operator("alpha")).code == 0
    early = fleetcount("series", "submit", *operator("alpha"))
    assert (early.code, "not signed by beta" in early.error_line) == (2, True)
    assert fleetcount("series", "sign", *operator("beta")).code == 0
    assert read_series(deployed / "q.series").complete
    assert "led by 'alpha'" in fleetcount("series", "submit", *operator("beta")).error_line
    assert fleetcount("series", "submit", *operator("alpha")).code == 0

    tasks = deployed / "dep" / "alpha" / "tasks"
    assert sorted(path.name for path in tasks.iterdir()) == ["q.series", "q.verify-seed"]
    assert "exists already" in fleetcount("series", "submit", *operator("alpha")).error_line
    assert "exists already" in fleetcount(*CREATE).error_line


def test_the_noise_of_a_month_is_solved_for_its_promise(fleetcount: Callable, deployed: Path) -> None:
    assert fleetcount(*CREATE).code == 0

    noise = read_series(deployed / "q.series").series.design.noise

    assert isinstance(noise, GaussianNoise)
    assert (2 * noise.draw_variance) ** 0.5 <= 36.4


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("windows = 720", "windows = 720", "takes all of it"),
        ("windows = 720", "windows = 168", "takes all of it"),
        ("windows = 720", "windows = 6", "refuses it (largest_epsilon)"),
        ("[release]", '[release]\nkind = "geometric"', "refuses it (total_epsilon)"),
    ],
)
def test_who_asks_is_told_whether_a_device_with_default_limits_takes_part(
    fleetcount: Callable, deployed: Path, old: str, new: str, said: str
) -> None:
    (deployed / "spec.toml").write_text(SPEC.replace(old, new))

    made = fleetcount(*CREATE)

    assert said in " ".join(made.out.split())


def test_geometric_noise_is_solved_too(fleetcount: Callable, deployed: Path) -> None:
    (deployed / "spec.toml").write_text(SPEC.replace("[release]", '[release]\nkind = "geometric"'))
    assert fleetcount(*CREATE).code == 0

    noise = read_series(deployed / "q.series").series.design.noise

    assert isinstance(noise, TwoSidedNoise)
    assert (2 * noise.draw_variance) ** 0.5 <= 49.22


def test_a_one_sided_series_has_its_share_of_the_sum_and_says_what_it_protects(
    fleetcount: Callable, deployed: Path
) -> None:
    thresholds = f"thresholds = {[5] * 72}"
    spec = SPEC.replace("[release]", f'[release]\nkind = "one-sided"\n{thresholds}')
    (deployed / "spec.toml").write_text(spec)
    created = fleetcount(*CREATE)
    assert created.code == 0
    release = read_series(deployed / "q.series").series.release
    assert release.noise == OneSidedNoise(Fraction(13_888, 10**6))
    assert release.thresholds == (5,) * 72
    shown = " ".join(created.out.split())
    assert "The odds of any other change have no bound." in shown

    for wrong, words in (
        (spec.replace(thresholds, ""), "release has 0 thresholds, not 72"),
        (spec.replace('epsilon = "10"', 'sd = "10"'), "kind is 'one-sided', whose noise is given by noise_epsilon"),
        (spec.replace('mode = "direct"', 'mode = "sampling"'), "one-sided noise is on answers by"),
    ):
        (deployed / "spec.toml").write_text(wrong)
        refused = fleetcount(*CREATE[:-1], "other.series")
        assert (refused.code, words in refused.error_line) == (2, True), refused.error_line
        assert not (deployed / "other.series").exists()


def test_plain_words_come_first_and_the_table_on_request(fleetcount: Callable, deployed: Path) -> None:
    (deployed / "spec.toml").write_text(SAMPLED)

    made = fleetcount(*CREATE)
    shown = fleetcount("series", "show", "--explain", "q.series")

    words = " ".join(made.out.split())
    assert "If both operators collude, they see 1 answer in 2 on average" in words
    assert "one-day" not in made.out
    assert "whole-series" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 100
    statement = json.loads((deployed / "q.json").read_text())["statement"]
    assert {view["change"] for view in statement} == {"one-answer", "one-day", "whole-series"}


def test_a_series_changed_after_signing_is_not_submitted(fleetcount: Callable, deployed: Path) -> None:
    fleetcount(*CREATE)
    for name in ("alpha", "beta"):
        fleetcount("series", "sign", "--config", f"dep/{name}/aggregator.toml", "q.series")
    data = (deployed / "q.series").read_bytes()
    (deployed / "q.series").write_bytes(data.replace(b"Where are you now?", b"Where are you how?"))

    ran = fleetcount("series", "submit", "--config", "dep/alpha/aggregator.toml", "q.series")

    assert ran.code != 0
    assert "does not verify" in ran.error_line
    assert list((deployed / "dep" / "alpha" / "tasks").iterdir()) == []


def test_another_seed_is_not_submitted(fleetcount: Callable, deployed: Path) -> None:
    fleetcount(*CREATE)
    for name in ("alpha", "beta"):
        fleetcount("series", "sign", "--config", f"dep/{name}/aggregator.toml", "q.series")
    (deployed / "q.verify-seed").write_bytes(bytes(32))

    ran = fleetcount("series", "submit", "--config", "dep/alpha/aggregator.toml", "q.series")

    assert "not the one the series commits to" in ran.error_line


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('first = "in 10 min"', "first = 2026-12-01T00:00:00", "UTC"),
        ('first = "in 10 min"', "first = 2026-12-01T00:00:00+01:00", "UTC"),
        ("windows = 720", "until = 2026-12-22T00:00:00-05:00", "UTC"),
        ("windows = 720", "windows = 720\nuntil = 2029-12-22T00:00:00Z", "exactly one of windows"),
        ("windows = 720", "until = 2019-12-22T00:00:00Z", "allowed: 1 to 65536"),
        ("windows = 720", "windows = 0", "from 1 to 65536"),
        ('every = "1 h"', 'every = "5 min"', "windows would overlap"),
        ('every = "1 h"', 'every = "61 s"', "series.every"),
        ('window = "10 min"', 'window = "10 minutes"', "a length of time"),
        ('window = "10 min"', 'window = "0 s"', "a length of time"),
        ('epsilon = "10"', 'epsilon = "0.001"', "needs noise of a standard deviation of"),
        ('epsilon = "10"', 'epsilon = "10"\nsd = "20"', "exactly one of epsilon"),
        ('epsilon = "10"', 'noise_epsilon = "1"', "whose noise is given by sd or variance"),
        ('delta = "1e-9"', 'delta = "0.5"', "delta"),
        ('delta = "1e-9"', 'delta = "1e-9"\nkind = "exact"', "geometric"),
        ("Vehicle.CurrentLocation", "Vehicle.CurrentLocatiоn", "allowed: at most 200 of A-Z"),
        ("windows = 720", 'windows = 720\ncoin = "day"', "allowed in direct mode: window"),
        ("windows = 720", 'windows = 720\ncoin = "week"', "'day'"),
        ("windows = 720", "windows = 65536", "allowed: at most"),
    ],
)
def test_a_wrong_schedule_or_promise_is_refused_by_key_and_writes_nothing(
    fleetcount: Callable, deployed: Path, old: str, new: str, said: str
) -> None:
    assert old in SPEC
    (deployed / "spec.toml").write_text(SPEC.replace(old, new))

    ran = fleetcount(*CREATE)

    assert (ran.code, ran.out) == (2, "")
    assert said in ran.error_line
    assert sorted(path.name for path in deployed.iterdir()) == ["dep", "spec.toml"]
