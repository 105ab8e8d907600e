"""Many windows from a specification to the leader's directory: signed once, plain words first; bad ones are refused."""

import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from fleetcount.question.files import read_question
from fleetcount.question.spec import read_spec
from fleetcount_mechanisms.accounting.solving import sd_of_cell
from fleetcount_mechanisms.noise import GaussianNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.window.domain import SquareGrid
from fleetcount_protocol.window.frame import Frame

from tests.support.cases import case

SPEC = """
[question]
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
[schedule]
opens = "in 10 min"
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
PROMISE = 'epsilon = "10"\ndelta = "1e-9"\n'
SAMPLED = SPEC.replace('mode = "direct"', 'mode = "sampling"').replace(
    "[release]", '[mechanism]\nsampling_rate = "1/2"\n[release]'
)
CREATE = ("question", "create", "--spec", "spec.toml", "--output", "q.question")


@pytest.fixture
def deployed(deployed: Path) -> Path:
    (deployed / "spec.toml").write_text(SPEC)
    return deployed


@pytest.mark.parametrize(
    ("name", "windows"), [("window", 1), ("brakes", 1), ("month", 720), ("drill-down", 3), ("fault-codes", 2)]
)
def test_a_sample_is_created_beside_its_descriptors_and_counted_from_submission(
    fleetcount: Callable, deployed: Path, name: str, windows: int
) -> None:
    create = ("question", "create", "--sample", name, "--output")

    assert fleetcount(*create, "dep/asked.question").code == 0
    schedule = read_question(deployed / "dep" / "asked.question").question.schedule
    assert (schedule.first, schedule.windows) == (None, windows)
    # What is written beside it is what was read, to be changed and asked again.
    assert fleetcount("question", "create", "--spec", "dep/asked.toml", "--output", "dep/again.question").code == 0
    assert "exists already" in fleetcount(*create, "dep/asked.question").error_line
    assert (deployed / "dep" / "asked.toml").exists()
    refused = fleetcount(*create, "asked.question")
    assert (refused.code, "alpha.descriptor.toml" in refused.error_line) == (2, True)
    assert not (deployed / "asked.toml").exists()


@pytest.mark.parametrize("given", [(), ("--spec", "spec.toml", "--sample", "month")])
def test_a_question_is_of_a_specification_or_of_a_sample(
    fleetcount: Callable, deployed: Path, given: tuple[str, ...]
) -> None:
    ran = fleetcount("question", "create", *given, "--output", "q.question")

    assert (ran.code, "give --spec SPEC.toml or --sample NAME, one of them" in ran.error_line) == (2, True)
    assert not list(deployed.glob("q.*"))


def test_a_question_is_created_signed_once_by_each_and_submitted(fleetcount: Callable, deployed: Path) -> None:
    def operator(name: str) -> list[str | Path]:
        return ["--config", deployed / "dep" / name / "aggregator.toml", "q.question"]

    assert fleetcount(*CREATE).code == 0
    assert (deployed / "q.seed").stat().st_mode & 0o777 == 0o600
    assert fleetcount("question", "sign", *operator("alpha")).code == 0
    early = fleetcount("question", "submit", *operator("alpha"))
    assert (early.code, "not signed by beta" in early.error_line) == (2, True)
    assert fleetcount("question", "sign", *operator("beta")).code == 0
    assert read_question(deployed / "q.question").complete
    assert "led by 'alpha'" in fleetcount("question", "submit", *operator("beta")).error_line
    assert fleetcount("question", "submit", *operator("alpha")).code == 0

    windows = deployed / "dep" / "alpha" / "questions"
    assert sorted(path.name for path in windows.iterdir()) == ["q.question", "q.seed"]
    again = fleetcount("question", "submit", *operator("alpha"))
    assert (again.code, "q.question is the same question; it is submitted once" in again.error_line) == (3, True)
    for suffix in ("question", "seed"):
        (deployed / f"other.{suffix}").write_bytes((deployed / f"q.{suffix}").read_bytes())
    again = fleetcount("question", "submit", *operator("alpha")[:-1], "other.question")
    assert (again.code, "q.question is the same question; it is submitted once" in again.error_line) == (3, True)
    for name, said in (("a", "no question"), ("q", "a helper was out of reach")):
        (windows / f"{name}.refused").write_text(f"{said}\n")
    (windows / "a.question").write_text("no question")
    again = fleetcount("question", "submit", *operator("alpha"))
    assert (again.code, "was refused: a helper was out of reach (" in again.error_line) == (3, True)
    assert fleetcount("question", "submit", *operator("alpha")[:-1], "other.question").code == 0
    assert "exists already" in fleetcount(*CREATE).error_line


def test_a_statement_of_one_window_is_not_asked_of_many(fleetcount: Callable, deployed: Path) -> None:
    assert fleetcount(*CREATE).code == 0
    asked = ("question", "release", "--question", "q.question", "--config", "dep/analyst/analyst.toml", "--output", "r")

    ran = fleetcount(*asked, "--explain")

    assert ran.code == 2
    assert "--explain is of one window; of many 'fleetcount question show --explain'" in ran.error_line
    assert not (deployed / "r").exists()


@pytest.mark.parametrize("there", [False, True])
def test_records_of_aggregators_that_do_not_answer_leave_nothing(
    fleetcount: Callable, deployed: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    assert fleetcount(*CREATE).code == 0
    later = read_question(deployed / "q.question").question.schedule.closes(1)
    monkeypatch.setattr("fleetcount.read.release.time", SimpleNamespace(time=lambda: later))
    for name in ("alpha", "beta"):
        fleetcount("question", "sign", "--config", f"dep/{name}/aggregator.toml", "q.question")
    if there:
        (deployed / "records").mkdir()

    ran = fleetcount(
        *(
            "question",
            "release",
            "--question",
            "q.question",
            "--config",
            "dep/analyst/analyst.toml",
            "--output",
            "records",
        )
    )

    assert (ran.code, ran.out) == (4, "")
    assert "nothing listens there" in ran.error_line
    assert (deployed / "records").exists() is there
    assert not list(deployed.glob("records/*"))


def test_the_noise_of_a_month_is_solved_for_its_promise(fleetcount: Callable, deployed: Path) -> None:
    assert fleetcount(*CREATE).code == 0

    noise = read_question(deployed / "q.question").question.design.noise

    assert isinstance(noise, GaussianNoise)
    assert (2 * noise.draw_variance) ** 0.5 <= 36.4


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("windows = 720", "windows = 720", "takes all of it, and all of another one after it without a pause."),
        ("windows = 720", "windows = 168", "takes all of it, and all of another one after it without a pause."),
        (
            "[release]",
            "[release]\nfollowed = false",
            "takes all of it, and all of another one after it without a pause.",
        ),
        ("windows = 720", "windows = 6", "takes all of it, and all of another one after it without a pause."),
        (
            'windows = 720\nwindow = "10 min"\n[release]',
            'windows = 6\nwindow = "10 min"\n[release]\nfollowed = false',
            "refuses it (largest_epsilon)",
        ),
        ("[release]", '[release]\nkind = "geometric"', "refuses it (total_epsilon)"),
    ],
)
def test_who_asks_is_told_whether_a_device_with_default_limits_takes_part(
    fleetcount: Callable, deployed: Path, old: str, new: str, said: str
) -> None:
    (deployed / "spec.toml").write_text(SPEC.replace(old, new))

    made = fleetcount(*CREATE)

    assert said in " ".join(made.out.split())


@pytest.mark.parametrize(
    ("rate", "coin", "followed", "alone"),
    [("1/4", "day", 42.2, 41.8), ("1/4", "question", 112.9, 90.8), ("1/2", "question", 66.9, 49.7)],
)
def test_what_a_successor_costs_is_said_and_a_month_alone_refuses_it_with_the_date_from_which_it_fits(
    fleetcount: Callable, deployed: Path, rate: str, coin: str, followed: float, alone: float
) -> None:
    spec = SAMPLED.replace('"1/2"', f'"{rate}"').replace("windows = 720", f'windows = 720\ncoin = "{coin}"')
    spec = spec.replace(
        'opens = "in 10 min"', f"opens = {time.strftime('%Y', time.gmtime(time.time() + 366 * 86400))}-01-01T00:00:00Z"
    )
    errors = []
    for name, change in (("a", ""), ("b", "followed = false\n")):
        (deployed / "spec.toml").write_text(spec.replace("[release]\n", f"[release]\n{change}"))
        made = fleetcount(*CREATE[:-1], f"{name}.question")
        assert made.code == 0
        said = " ".join(made.out.split())
        errors.append(sd_of_cell(read_question(deployed / f"{name}.question").question.design))
        assert "error of an empty cell as released: " in said  # Plans of many windows read it with the total.
        if coin == "day":
            # One answer of a day is not amplified, and the noise of this promise is too weak for it.
            assert "refuses it (largest_epsilon)" in said
            continue
        assert ("and all of another one after it without a pause." in said) is (not change)
        assert ("refuses another one right after it (total_epsilon)" in said) is bool(change)
        assert ("the same would fit if it began" in said) is bool(change)

    assert followed - 0.15 < errors[0] <= followed
    assert alone - 0.15 < errors[1] <= alone


@pytest.mark.parametrize(
    ("epsilon", "windows", "keys"),
    [
        ("1", 720, 'kind = "unary", epsilon_local = "1"; [schedule] one_in = 720; [release] kind = "geometric"'),
        ("10", 720, 'kind = "k-ary", epsilon_local = "10"; [schedule] one_in = 720; [release] kind = "geometric"'),
        ("10", 1440, 'kind = "k-ary", epsilon_local = "5"; [schedule] one_in = 720; [release] kind = "geometric"'),
        ("1", 3, 'kind = "k-ary", epsilon_local = "0.3333"'),
        ("2", 1, 'kind = "k-ary", epsilon_local = "2"'),
    ],
)
def test_the_answer_that_plan_recommends_where_nobody_is_trusted_is_asked_with_the_noise_of_the_plan(
    fleetcount: Callable, deployed: Path, epsilon: str, windows: int, keys: str
) -> None:
    asked = ("plan", "--devices", "100000", "--values", "72", "--epsilon", epsilon, "--windows", windows)
    # In 30 days of questions of three windows 720 answers would share epsilon.
    asked, alone = (*asked, *["--alone"] * (windows == 3)), "followed = false\n" * (windows == 3)
    said = " ".join(fleetcount(*asked, "--threat", "none-trusted").out.split())
    assert f'In a question file: mode = "response"; [mechanism] {keys}.' in said
    best = min(json.loads(fleetcount(*asked, "--threat", "none-trusted", "--json").out), key=lambda row: row["sd_0"])
    tables = {"mechanism": "", "schedule": "", "release": ""}
    for part in f"[mechanism] {keys}".split("; "):
        table, _, values = part.removeprefix("[").partition("] ")
        tables[table] = values.replace(", ", "\n") + "\n"
    spec = SPEC.replace('mode = "direct"', 'mode = "response"')
    spec = spec.replace("windows = 720", f"windows = {windows}\n{tables['schedule']}" * (windows > 1))
    spec = spec.replace('every = "1 h"\n', 'every = "1 h"\n' * (windows > 1))
    spec = spec.replace("[release]\n", f"[mechanism]\n{tables['mechanism']}[release]\n{tables['release']}")
    (deployed / "spec.toml").write_text(spec.replace(PROMISE, f'epsilon = "{epsilon}"\n{alone}'))

    made = fleetcount(*CREATE)

    assert made.code == 0, made
    assert windows != 720 or f"factor of e^{epsilon}.00" in " ".join(made.out.split())
    noise = read_question(deployed / "q.question").question.design.noise
    assert {f"noise_{name}": str(value) for name, value in noise.parameters.items()}.items() <= best.items()


@pytest.mark.parametrize(("one_in", "answers"), [(720, True), (1, False)])
def test_a_device_of_one_window_in_several_is_charged_for_that_window_alone(
    fleetcount: Callable, deployed: Path, one_in: int, answers: bool
) -> None:
    spec = SPEC.replace('mode = "direct"', 'mode = "response"').replace(
        "windows = 720", f"windows = 720\none_in = {one_in}"
    )
    spec = spec.replace("[release]", '[mechanism]\nkind = "unary"\nepsilon_local = "1"\n[release]')
    (deployed / "spec.toml").write_text(spec.replace(PROMISE, 'kind = "geometric"\nnoise_epsilon = "1"\n'))

    said = " ".join(fleetcount(*CREATE).out.split())

    takes = "allows such questions takes all of it, and all of another one after it without a pause."
    assert (takes in said) is answers
    assert ("refuses it (total_epsilon)" in said) is not answers


def test_one_window_of_several_says_what_a_one_way_answer_hides(fleetcount: Callable, deployed: Path) -> None:
    spec = SPEC.replace('mode = "direct"', 'mode = "response"').replace("windows = 720", "windows = 720\none_in = 720")
    spec = spec.replace("[release]", '[mechanism]\nkind = "mangat-vector"\nepsilon_local = "1"\n[release]')
    (deployed / "spec.toml").write_text(spec.replace(PROMISE, 'kind = "geometric"\nnoise_epsilon = "10"\n'))

    made = fleetcount(*CREATE)

    assert made.code == 0, made
    said = " ".join(made.out.split())
    assert "the odds of a value against none by at most a factor of e^1.00 for each of its values, if all" in said
    assert "read it; the odds of any other change have no bound. In which window it answered is seen" in said
    assert "the truth with a chance" not in said


def test_one_window_of_several_is_asked_with_all_of_epsilon_and_says_so(fleetcount: Callable, deployed: Path) -> None:
    spec = SPEC.replace('mode = "direct"', 'mode = "response"').replace("windows = 720", "windows = 720\none_in = 720")
    spec = spec.replace("[release]", '[mechanism]\nkind = "k-ary"\nepsilon_local = "10"\n[release]')
    spec = spec.replace(PROMISE, 'kind = "geometric"\nnoise_epsilon = "10"\n')
    (deployed / "spec.toml").write_text(spec)

    made = fleetcount(*CREATE)

    assert made.code == 0, made
    said = " ".join(made.out.split())
    assert "each device answers in one window of 720, the same in every cycle" in said
    assert "moves the odds of what it had to say by at most a factor of e^10.00" in said
    assert "it is the truth with a chance of 0.9968. In which window it answered is seen" in said
    assert read_question(deployed / "q.question").question.one_in == 720
    for wrong, words in (
        (spec.replace("one_in = 720", "one_in = 719"), "one_in is 719, allowed: 720 or more"),
        (spec.replace("one_in = 720", "one_in = 0"), "schedule.one_in"),
        (
            SPEC.replace("windows = 720", "windows = 720\none_in = 720").replace('delta = "1e-9"\n', ""),
            "one_in is 720 in direct mode, allowed: response",
        ),
        (
            SPEC.replace("windows = 720", "windows = 720\none_in = 720").replace('"10"', '"10"\nkind = "geometric"'),
            "schedule.one_in is 720: one_in is 720 in direct mode, allowed: response",
        ),
    ):
        (deployed / "spec.toml").write_text(wrong)
        refused = fleetcount(*CREATE[:-1], "wrong.question")
        assert refused.code == 2
        assert words in refused.error_line


@pytest.mark.parametrize(
    ("bins", "values", "of_a_full_battery"),
    [('edges = ["0", "90", "100"]', 2, 0), ('edges = ["0", "90"]\nopen_above = true', 2, 2)],
)
def test_who_asks_in_bins_is_told_that_the_last_edge_is_in_none(
    fleetcount: Callable, deployed: Path, bins: str, values: int, of_a_full_battery: int
) -> None:
    domain = f'[domain]\nkind = "bins"\nunit = "percent"\n{bins}\n'
    grid = SPEC[SPEC.index("[domain]") : SPEC.index("[schedule]")]
    (deployed / "spec.toml").write_text(SPEC.replace(grid, domain).replace("windows = 720", "windows = 2"))
    ran = fleetcount(*CREATE)
    assert ran.code == 0, ran.err

    made = read_question(deployed / "q.question").question.domain

    assert (made.values, made.value_of(100)) == (values, of_a_full_battery)
    assert ("a reading of 100 percent or more is in no bin; to count it" in ran.out) is not bool(of_a_full_battery)


def test_geometric_noise_is_solved_too(fleetcount: Callable, deployed: Path) -> None:
    (deployed / "spec.toml").write_text(SPEC.replace("[release]", '[release]\nkind = "geometric"'))
    assert fleetcount(*CREATE).code == 0

    noise = read_question(deployed / "q.question").question.design.noise

    assert isinstance(noise, TwoSidedNoise)
    assert (2 * noise.draw_variance) ** 0.5 <= 49.22


def test_a_one_sided_question_has_its_share_of_the_sum_and_says_what_it_protects(
    fleetcount: Callable, deployed: Path
) -> None:
    thresholds = f"thresholds = {[5] * 72}"
    spec = SPEC.replace("[release]", f'[release]\nkind = "one-sided"\n{thresholds}')
    (deployed / "spec.toml").write_text(spec)
    created = fleetcount(*CREATE)
    assert created.code == 0
    release = read_question(deployed / "q.question").question.release
    assert release.noise == OneSidedNoise(Fraction(13_888, 10**6))
    assert release.thresholds == (5,) * 72
    shown = " ".join(created.out.split())
    assert "The odds of any other change have no bound." in shown

    down = spec.replace(thresholds, f'{thresholds}\ndirection = "down"')
    (deployed / "spec.toml").write_text(down)
    created = fleetcount(*CREATE[:-1], "down.question")
    assert created.code == 0
    assert read_question(deployed / "down.question").question.release.noise == OneSidedNoise(
        Fraction(13_888, 10**6), "down"
    )
    assert "moves the odds of none against a value by" in " ".join(created.out.split())

    for wrong, words in (
        (down.replace('"down"', '"sideways"'), "release.direction is 'sideways'"),
        (down.replace('kind = "one-sided"\n', "").replace(thresholds, ""), "direction is 'down' of gaussian noise"),
        (spec.replace(thresholds, ""), "release.thresholds is missing; allowed is a list of 72, one for each cell"),
        (spec.replace("[5, ", "["), "release.thresholds has 71 numbers; allowed is a list of 72, one for each cell"),
        (spec.replace("one-sided", "gaussian"), "release.thresholds is given for gaussian counts, allowed: with kind"),
        (spec.replace('epsilon = "10"', 'sd = "10"'), "'one-sided' is asked, whose noise is given by noise_epsilon"),
        (
            spec.replace('mode = "direct"', 'mode = "sampling"'),
            "release one-sided is not for sampling mode, allowed there: geometric or gaussian or exact",
        ),
    ):
        (deployed / "spec.toml").write_text(wrong)
        refused = fleetcount(*CREATE[:-1], "other.question")
        assert (refused.code, words in refused.error_line) == (2, True), refused.error_line
        assert not (deployed / "other.question").exists()


def test_plain_words_come_first_and_the_table_on_request(fleetcount: Callable, deployed: Path) -> None:
    (deployed / "spec.toml").write_text(SAMPLED)

    made = fleetcount(*CREATE)
    shown = fleetcount("question", "show", "--explain", "q.question")

    words = " ".join(made.out.split())
    assert "If both operators collude, they see 1 answer in 2 on average" in words
    assert "one-day" not in made.out
    assert "whole-question" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 100
    statement = json.loads((deployed / "q.json").read_text())["statement"]
    assert {view["neighbours"] for view in statement} == {"one-answer", "one-day", "whole-question"}


def test_nobody_signs_what_was_changed_after_another_had_signed(fleetcount: Callable, deployed: Path) -> None:
    fleetcount(*CREATE)
    fleetcount("question", "sign", "--config", "dep/alpha/aggregator.toml", "q.question")
    changed = (deployed / "q.question").read_bytes().replace(b"Where are you now?", b"Where are you how?")
    (deployed / "q.question").write_bytes(changed)

    ran = fleetcount("question", "sign", "--config", "dep/beta/aggregator.toml", "q.question")

    assert (ran.code, ran.out) == (3, "")
    assert "q.question was changed after it was signed: the signature of alpha does not verify" in ran.error_line
    assert (deployed / "q.question").read_bytes() == changed


def test_nobody_signs_what_its_own_aggregator_would_refuse_for_its_loss_alone(
    fleetcount: Callable, deployed: Path
) -> None:
    spec = SAMPLED.replace('every = "1 h"\nwindows = 720\n', "").replace(PROMISE, 'epsilon = "9"\n')
    sign = ("question", "sign", "--config", "dep/alpha/aggregator.toml", "q.question")
    summed = "sum to 9.00000, allowed: at most 4, by"
    counted = spec.replace('"in 10 min"', '"10 min after submission"\nsubmit_by = "in 1 d"')
    month = SAMPLED.replace(PROMISE, 'epsilon = "45"\nfollowed = false\n'), "allowed: at most 40, by"
    for text, said in ((spec, summed), (counted, summed), month):
        (deployed / "spec.toml").write_text(text)
        assert fleetcount(*CREATE).code == 0

        refused = fleetcount(*sign)

        assert refused.code == 3
        assert f"{said} [limits] of this aggregator" in refused.error_line
        assert not any(read_question(deployed / "q.question").signatures)
        for suffix in ("question", "json", "seed"):
            (deployed / f"q.{suffix}").unlink()


def test_a_question_that_was_refused_has_its_reason_where_one_asks_for_its_state(
    fleetcount: Callable, deployed: Path
) -> None:
    (deployed / "spec.toml").write_text(SPEC.replace('"in 10 min"', '"10 min after submission"\nsubmit_by = "in 1 d"'))
    assert fleetcount(*CREATE).code == 0
    for name in ("alpha", "beta"):
        fleetcount("question", "sign", "--config", f"dep/{name}/aggregator.toml", "q.question")
    asked = ("--config", "dep/alpha/aggregator.toml", "--question", "q.question")
    assert fleetcount("question", "submit", *asked[:2], "q.question").code == 0
    assert "is not installed at this aggregator" in fleetcount("question", "status", *asked).error_line
    (deployed / "dep/alpha/questions/q.refused").write_text("beta does not take the question; its log says why\n")

    refused = fleetcount("question", "status", *asked)

    assert refused.code == 3
    assert "was refused: beta does not take the question; its log says why" in refused.error_line
    assert "q.refused" in refused.error_line


def test_a_question_changed_after_signing_is_not_submitted(fleetcount: Callable, deployed: Path) -> None:
    fleetcount(*CREATE)
    for name in ("alpha", "beta"):
        fleetcount("question", "sign", "--config", f"dep/{name}/aggregator.toml", "q.question")
    data = (deployed / "q.question").read_bytes()
    (deployed / "q.question").write_bytes(data.replace(b"Where are you now?", b"Where are you how?"))

    ran = fleetcount("question", "submit", "--config", "dep/alpha/aggregator.toml", "q.question")

    assert ran.code == 3
    assert re.search(r"question: q\.question: signature of alpha .* does not verify", ran.error_line)
    assert list((deployed / "dep" / "alpha" / "questions").iterdir()) == []


def test_another_seed_is_not_submitted(fleetcount: Callable, deployed: Path) -> None:
    fleetcount(*CREATE)
    for name in ("alpha", "beta"):
        fleetcount("question", "sign", "--config", f"dep/{name}/aggregator.toml", "q.question")
    (deployed / "q.seed").write_bytes(bytes(32))

    ran = fleetcount("question", "submit", "--config", "dep/alpha/aggregator.toml", "q.question")

    assert ran.code == 2
    assert "question: q.seed: the seed of verify keys is not the one the question commits to" in ran.error_line


WRONG = [
    (
        'opens = "in 10 min"',
        "opens = 2026-12-01T00:00:00",
        "schedule.opens is 2026-12-01T00:00:00; allowed is a",
    ),
    ('opens = "in 10 min"', "opens = 2026-12-01T00:00:00+01:00", "UTC"),
    ('opens = "in 10 min"', 'opens = "2026-12-01T00:00+01:00"', "UTC"),
    ("windows = 720", "until = 2026-12-22T00:00:00-05:00", "UTC"),
    ("windows = 720", "windows = 720\nuntil = 2029-12-22T00:00:00Z", "exactly one of windows"),
    ("windows = 720", "until = 2019-12-22T00:00:00Z", "or later: the first window, from schedule.opens 20"),
    ("windows = 720", 'until = "in 19 min"', "or later: the first window, from schedule.opens 20"),
    (
        "windows = 720",
        "until = 2099-12-22T00:00:00Z",
        "a time by which 1 to 65536 windows end; there",
    ),
    ('opens = "in 10 min"', "opens = 2026-05-01T08:00:00Z", "allowed is a time from now on, 20"),
    ('opens = "in 10 min"', "opens = 0", "schedule.opens is 0; allowed is a time from now on, 20"),
    ("windows = 720", "windows = 0", "from 1 to 65536"),
    ('every = "1 h"', 'every = "5 min"', "every is '5 min'; allowed is the window's 600 s or more"),
    ('every = "1 h"', 'every = "3601 s"', "a length of at most 400 d, a multiple of question.time_precision_s = 60 s"),
    ('every = "1 h"', 'every = "401 d"', "schedule.every is '401 d'; allowed is a length of at most 400 d"),
    ('window = "10 min"', 'window = "601 s"', "schedule.window is '601 s'; allowed is a length of at most 31 d, a"),
    ("windows = 720", 'windows = 720\nexpires_after = "101 d"', "a length of at most 100 d"),
    ("windows = 720", 'windows = 720\nround_one = "5 min"', "a window of one message has no second round"),
    ('window = "10 min"', 'window = "10 minutes"', "a length of time"),
    ('window = "10 min"', 'window = "0 s"', "a length of time"),
    (
        'epsilon = "10"',
        'epsilon = "0.001"',
        "epsilon is '0.001': the promise needs noise of a standard deviation of",
    ),
    ('epsilon = "10"', 'epsilon = "10"\nsd = "20"', "exactly one of epsilon"),
    ('epsilon = "10"', 'noise_epsilon = "1"', "whose noise is given by sd or variance"),
    ('delta = "1e-9"', 'delta = "0.5"', "delta"),
    ('delta = "1e-9"', 'delta = "1e-9"\nkind = "exact"', "geometric"),
    ("Vehicle.CurrentLocation", "Vehicle.CurrentLocatiоn", "allowed: at most 200 of A-Z"),
    ("windows = 720", 'windows = 720\ncoin = "day"', "allowed in direct mode: window"),
    ("windows = 720", 'windows = 720\ncoin = "week"', "'day'"),
    ("windows = 720", "windows = 20001", "schedule.windows is 20001; allowed is so many windows that there are at"),
    ("windows = 720", "windows = 20000", "schedule.windows is 20000: the last window expires"),
    ('epsilon = "10"', 'epsilon = "1e-400"', "release.epsilon is '1e-400': the promise needs more noise"),
    ('delta = "1e-9"', 'delta = "1e-30"', "release.delta is '1e-30': delta has a term"),
    ("columns = 8", "columns = 4095", "domain.columns is 4095: grid gives 36855 values"),
    ('opens = "in 10 min"', "opens = 9999-12-31T23:00:00Z", "schedule.opens is 9999-12-31T23:00:00+00:00: expiry is"),
    (
        SPEC[SPEC.index("opens =") : SPEC.index("[[aggregators]]")],
        'opens = 9999-12-31T23:59:59-12:00\nwindow = "10 min"\n[release]\nepsilon = "1"\n',
        "schedule.opens is 9999-12-31T23:59:59-12:00: first is 253402344000",
    ),
    (
        'epsilon = "10"',
        f'epsilon = "10"\nkind = "one-sided"\nthresholds = [{"-1, " * 72}]',
        "threshold is -1, allowed: a whole number from 0 to 4294967295",
    ),
    (
        'descriptor = "dep/beta',
        'descriptor = "dep/gamma',
        "aggregators[1].descriptor is 'dep/gamma.descriptor.toml'",
    ),
    ('descriptor = "dep/beta', 'descriptor = "dep/alpha', "aggregators do not fit: aggregator id alpha is given"),
]


def test_no_window_ends_after_an_end_that_counts_from_now(deployed: Path) -> None:
    asked = SPEC.replace('"1 h"', '"10 min"').replace("in 10 min", "in 1 h")
    (deployed / "spec.toml").write_text(asked.replace("windows = 720", 'until = "in 2 h"'))
    # 41 seconds after a minute, the grid of its times.
    now = 4_000_000_001

    schedule = read_spec(deployed / "spec.toml", now, Digest(bytes(32))).schedule

    assert (schedule.windows, schedule.opens(0)) == (5, now + 3600 + 19)
    assert schedule.end <= now + 7200


def test_a_wrong_schedule_or_promise_is_refused_by_key_and_writes_nothing(fleetcount: Callable, deployed: Path) -> None:
    for old, new, said in WRONG:
        with case(new):
            assert old in SPEC
            (deployed / "spec.toml").write_text(SPEC.replace(old, new))

            ran = fleetcount(*CREATE)

            assert (ran.code, ran.out) == (2, "")
            assert said in ran.error_line
            assert re.match(r"fleetcount question: spec\.toml line [0-9]+: [a-z_.\[\]0-9]+ ", ran.error_line), (
                ran.error_line
            )
            assert sorted(path.name for path in deployed.iterdir()) == ["dep", "spec.toml"]


@pytest.mark.parametrize("given", ["windows = 31", 'until = "in 61 h"'])
def test_walks_of_a_drill_down_are_whole(fleetcount: Callable, deployed: Path, given: str) -> None:
    before, _, after = SPEC.partition("[domain]")
    walk = (
        "[drill_down]\nlevels = [8, 14, 20]\nthreshold = 20\n[schedule]\ndomain = 'drill-down'"
        + after.partition("[schedule]")[2]
    )
    (deployed / "spec.toml").write_text((before + walk).replace("windows = 720", given))

    ran = fleetcount(*CREATE)

    key = given.partition(" ")[0]
    assert ran.code == 2
    assert f"spec.toml line 16: schedule.{key} is " in ran.error_line
    assert "allowed is a multiple of the 3 levels of [drill_down]" in ran.error_line


@pytest.mark.parametrize(
    ("until", "windows"),
    [
        ("2030-12-31T00:00:00Z", 720),  # A month of hours: its end is the end of no window, but of the last hour.
        ("2030-12-01T01:09:59Z", 1),
        ("2030-12-01T01:10:00Z", 2),
        ("2030-12-01T01:10:59Z", 2),
        ("2030-12-01T00:10:00Z", 1),
        ("2030-12-01T00:09:59Z", None),
        ("2030-12-01T00:00:01Z", None),
    ],
)
def test_windows_are_those_that_end_by_until(
    fleetcount: Callable, deployed: Path, until: str, windows: int | None
) -> None:
    spec = SPEC.replace('opens = "in 10 min"', "opens = 2030-12-01T00:00:00Z")
    (deployed / "spec.toml").write_text(
        spec.replace("windows = 720", f"until = {until}").replace('delta = "1e-9"\n', "")
    )

    ran = fleetcount(*CREATE)

    if windows is None:
        assert ran.code == 2
        assert "schedule.until is 2030-12-01T00:0" in ran.error_line
        assert "; allowed is 2030-12-01T00:10:00Z or later: the first window" in ran.error_line
        return
    assert ran.code == 0, ran.err
    schedule = read_question(deployed / "q.question").question.schedule
    assert schedule.windows == windows
    assert schedule.closes(windows - 1) <= datetime.fromisoformat(until).timestamp()


ONE = SPEC.replace('every = "1 h"\nwindows = 720\n', "").replace('delta = "1e-9"\n', "")
"""One window, with geometric noise."""
UNUSED = [
    (ONE, "delta = '1e-9'", "which the geometric release of one answer of a device does not use; allowed: with kind ="),
    (ONE, "delta = '1e-9'\nkind = 'one-sided'", "which the one-sided release of one answer of a device does not use;"),
    (
        SPEC.replace("windows = 720", "windows = 1").replace(PROMISE, ""),
        "delta = '1e-9'\nepsilon = '10'",
        "which the geometric release of one answer of a device does not use; allowed: with kind =",
    ),
    (
        ONE,
        "followed = true",
        "is true of one window, allowed: with epsilon, for which the noise of many windows is solved",
    ),
    (SPEC.replace(PROMISE, "sd = '10'\n"), "followed = false", "is false beside noise of a given size, allowed: with"),
]


def test_what_a_release_does_not_use_is_refused_with_what_would_use_it(fleetcount: Callable, deployed: Path) -> None:
    for spec, unused, said in UNUSED:
        with case(unused):
            (deployed / "spec.toml").write_text(spec.replace("[release]\n", f"[release]\n{unused}\n"))

            ran = fleetcount(*CREATE)

            assert (ran.code, ran.out) == (2, "")
            assert re.search(rf"spec\.toml line [0-9]+: release\.{unused.partition(' ')[0]} ", ran.error_line)
            assert said in ran.error_line


@pytest.mark.parametrize("kind", ["gaussian", "geometric"])
def test_a_delta_is_taken_where_it_is_used(fleetcount: Callable, deployed: Path, kind: str) -> None:
    spec = ONE if kind == "gaussian" else SPEC.replace("windows = 720", "windows = 2").replace('delta = "1e-9"\n', "")
    (deployed / "spec.toml").write_text(spec.replace("[release]\n", f"[release]\nkind = '{kind}'\ndelta = '1e-6'\n"))

    assert fleetcount(*CREATE).code == 0

    assert read_question(deployed / "q.question").question.delta == Fraction(1, 10**6)


def test_a_loss_at_the_command_line_is_in_place_of_that_of_the_file_alone(fleetcount: Callable, deployed: Path) -> None:
    (deployed / "spec.toml").write_text(SPEC.replace('epsilon = "10"', 'sd = "20"'))

    ran = fleetcount(*CREATE, "--epsilon", "1")

    assert (ran.code, ran.out) == (2, "")
    assert "release.sd is '20' beside --epsilon, allowed: one of both" in ran.error_line


def test_a_time_in_quotes_is_the_time(fleetcount: Callable, deployed: Path) -> None:
    (deployed / "spec.toml").write_text(SPEC.replace('opens = "in 10 min"', 'opens = "2030-12-01T00:00Z"'))

    assert fleetcount(*CREATE).code == 0

    assert read_question(deployed / "q.question").question.schedule.first == 1_922_313_600


FRAME = 'frame = {epsg = 25832, offset_x = "-683195.58", offset_y = "-4928877.56"}\n[schedule]'


def test_a_specification_says_where_on_earth_its_grid_lies(fleetcount: Callable, deployed: Path) -> None:
    (deployed / "spec.toml").write_text(SPEC.replace("[schedule]", FRAME))

    assert fleetcount(*CREATE).code == 0

    frame = {"epsg": 25832, "offset_x": "-683195.58", "offset_y": "-4928877.56"}
    assert json.loads((deployed / "q.json").read_text())["frame"] == frame
    domain = read_question(deployed / "q.question").question.domain
    assert isinstance(domain, SquareGrid)
    assert domain.frame == Frame(**frame)  # type: ignore[arg-type]  # The values are of both types.


WRONG_FRAMES = [
    ("25832", "1023", "domain.frame.epsg is 1023; allowed is a whole number from 1024 to 32767"),
    ("25832", '"25832"', "domain.frame.epsg is '25832'"),
    ('"-683195.58"', "-683195.58", "domain.frame.offset_x is .*as text"),
    ('"-683195.58"', '"-683195.580"', "domain.frame.offset_x is '-683195.580'.*without needless zeros"),
    ('"-4928877.56"', '"+1"', "domain.frame.offset_y is"),
    ("offset_y", "offset_z", "domain.frame.offset_z"),
    ("epsg = 25832, ", "", "domain.frame.epsg"),
    ('25832, offset_x = "-683195.58"', '4326, offset_x = "-179.9"', "domain.columns is 8: grid from x 179.9 to 2179.9"),
    ('25832, offset_x = "-683195.58"', '3857, offset_x = "-20037000"', "allowed: -20037508.34279 to 20037508.34279"),
    ("frame = {", "frame = [{", "."),
]


def test_a_wrong_frame_is_refused_by_its_key(fleetcount: Callable, deployed: Path) -> None:
    for old, new, said in WRONG_FRAMES:
        with case(new):
            (deployed / "spec.toml").write_text(SPEC.replace("[schedule]", FRAME.replace(old, new)))

            refused = fleetcount(*CREATE)

            assert refused.code == 2
            assert re.search(said, refused.err), refused.err
            assert not (deployed / "q.question").exists()


def test_hexagons_have_no_frame(fleetcount: Callable, deployed: Path) -> None:
    spec = SPEC.replace("[schedule]", FRAME).replace(
        'kind = "grid"', 'kind = "h3"\nresolution = 9\ncells = ["891ea6d6533ffff"]'
    )
    for key in ("x0 = 0", "y0 = 0", "size = 250", "columns = 8", "rows = 9"):
        spec = spec.replace(f"\n{key}\n", "\n")
    (deployed / "spec.toml").write_text(spec)

    refused = fleetcount(*CREATE)

    assert refused.code == 2
    assert "domain.frame" in refused.err


COUNTED = SPEC.replace('opens = "in 10 min"', 'opens = "20 s after submission"\nsubmit_by = "in 2 h"')


def test_a_question_may_be_counted_from_its_submission(fleetcount: Callable, deployed: Path) -> None:
    (deployed / "spec.toml").write_text(COUNTED)
    made = fleetcount(*CREATE)

    assert "720 windows, one every 1 h, the first 20 s after it is submitted, by" in made.out
    schedule = read_question(deployed / "q.question").question.schedule
    signed = schedule.submission
    assert (schedule.first, signed is not None and signed.delay_s) == (None, 20)
    assert signed is not None
    assert 7_200 - 60 <= signed.latest - signed.earliest <= 7_200 + 60
    shown = json.loads((deployed / "q.json").read_text())["schedule"]
    assert (shown["delay_s"], shown["latest_start"]) == (20, signed.latest)
    assert "first" not in shown


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('submit_by = "in 2 h"', "", "schedule.submit_by is missing"),
        ('submit_by = "in 2 h"', "submit_by = 2020-01-01T00:00:00Z", "allowed is a time from now on"),
        ('"20 s after submission"', '"in 20 s"', "submit_by is given without schedule.opens"),
        ('"20 s after submission"', '"20 after submission"', "submit_by is given without"),
        ("windows = 720", 'until = "in 9 h"', "schedule.until is a time, and opens is counted from submission"),
        (
            "windows = 720",
            'windows = 720\ncoin = "day"',
            "coin is 'day'; allowed is 'window' or 'question's where opens",
        ),
        ('"20 s after submission"', '"401 d after submission"', "allowed is at most 400 d after submission"),
    ],
)
def test_a_schedule_counted_from_submission_is_refused_by_key(
    fleetcount: Callable, deployed: Path, old: str, new: str, why: str
) -> None:
    (deployed / "spec.toml").write_text(COUNTED.replace(old, new))

    refused = fleetcount(*CREATE)

    assert (refused.code, why in refused.error_line) == (2, True), refused


def test_a_question_that_had_to_be_submitted_before_is_refused_and_its_seed_stays(
    fleetcount: Callable, deployed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (deployed / "spec.toml").write_text(COUNTED)
    assert fleetcount(*CREATE).code == 0
    for name in ("alpha", "beta"):
        assert fleetcount("question", "sign", "--config", f"dep/{name}/aggregator.toml", "q.question").code == 0
    signed = read_question(deployed / "q.question").question.schedule.submission
    assert signed is not None
    late = SimpleNamespace(time=lambda: float(signed.latest - 19))
    monkeypatch.setattr("fleetcount.question.create.time", late)

    refused = fleetcount("question", "submit", "--config", "dep/alpha/aggregator.toml", "q.question")

    assert (refused.code, "the question had to be submitted by" in refused.error_line) == (2, True)
    assert (deployed / "q.seed").is_file()
    assert list((deployed / "dep" / "alpha" / "questions").iterdir()) == []
