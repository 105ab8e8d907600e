"""`fleetcount doctor` reads every signal of a device once and says what it is and whether it fits, never the value."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount.run.doctor import judge_offers
from fleetcount.run.doctor_checks import Finding, check_signal
from fleetcount_client.shapes import Shape, ShapedSource
from fleetcount_client.signals import Description, KnowingSource, Reading, SignalFault, SignalUnavailable
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.window.domain import Bins, Categories, ValueDomain
from fleetcount_protocol.window.signal import Kind

from tests.client.deployment import SIGNAL, Deployment

WORLD = Deployment()
KMH = Bins(edges=(Fraction(0), Fraction(50)), open_above=True, unit="km/h")
WORN = Categories(names=("worn",))


def asked(name: str, domain: ValueDomain) -> Question:
    return WORLD.question(name=name, domain=domain, mechanism=SamplingDie.uniform(Fraction(1, 4), domain.values))


QUESTIONS = (asked("fast", KMH), asked("worn", WORN))


class Source(KnowingSource):
    def __init__(self, said: object, known: Description) -> None:
        self.said, self.known, self.reads = said, known, 0

    def described(self) -> Description:
        return self.known

    def __call__(self) -> object:
        self.reads += 1
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


@pytest.mark.parametrize(
    ("said", "known", "severity", "text"),
    [
        (
            Reading(value=7391, unit="m/s", age_s=3.2),
            Description(),
            "FAILED",
            "found a number in m/s, 3 s old; never answers 'worn': it is a number, and none of the question's names is"
            " a whole number; fits 'fast'",
        ),
        (
            "worn",
            Description(),
            "FAILED",
            "found a text; never answers 'fast': it is a text, and the question asks for a number; fits 'worn'",
        ),
        (
            None,
            Description(kind=Kind.TRUTH_VALUE),
            "FAILED",
            "no value: there is no value now; never answers 'fast': it is a truth value, and the question asks for a"
            " number; never answers 'worn': it is a truth value, and none of the question's names is 'true' or 'false'",
        ),
        (SignalFault("it is a list or an object"), Description(), "FAILED", "no signal: it is a list or an object; "),
        (SignalUnavailable("the tank is away"), Description(), "note", "no value: the tank is away; fits 'fast'; fits"),
    ],
)
async def test_a_signal_is_found_or_not_of_a_kind_and_fits_or_not(
    said: object, known: Description, severity: str, text: str
) -> None:
    source = Source(said, known)

    finding = await check_signal({SIGNAL: source}, SIGNAL, QUESTIONS)  # type: ignore[dict-item]

    assert (finding.what, finding.severity) == (f"signal {SIGNAL}", severity)
    assert finding.text.startswith(text)
    assert "7391" not in finding.text
    assert source.reads == 1


@pytest.mark.parametrize(
    ("said", "severity", "text"),
    [
        (7391, "ok", "found a number in km/h"),
        (99999, "note", "no value: it is not within valid = [0, 9000]"),
        (frozenset({"a"}), "ok", "found a set of names"),
    ],
)
async def test_a_signal_that_nobody_asks_for_is_in_its_range_or_not(said: object, severity: str, text: str) -> None:
    source = ShapedSource(Source(said, Description()), Shape(unit="km/h", valid=(Fraction(0), Fraction(9000))))  # type: ignore[arg-type]

    finding = await check_signal({SIGNAL: source}, SIGNAL, ())

    assert finding == Finding(what=f"signal {SIGNAL}", severity=severity, text=text)


def test_a_question_on_offer_that_is_over_by_this_clock_says_that_the_clock_is_off() -> None:
    offer = WORLD.offer(QUESTIONS[0])
    end = QUESTIONS[0].schedule.end

    fine, ahead = (judge_offers([offer], end + late_s, WORLD.trust()) for late_s in (300, 3600))

    assert (fine.severity, fine.text) == ("ok", "1 questions on offer")
    assert ahead.severity == "FAILED"
    assert ahead.text == (
        "'fast' is on offer, and by this clock it was over about 60 min ago: this clock is ahead, or the aggregators"
        " have stopped"
    )


def test_doctor_of_a_device_says_which_questions_it_does_not_take_from_strangers() -> None:
    strangers = Deployment()
    offers = [strangers.offer(QUESTIONS[1]), WORLD.offer(QUESTIONS[0])]

    some, none = (judge_offers(offers[:count], QUESTIONS[0].schedule.end, WORLD.trust()) for count in (2, 1))

    assert (some.severity, none.severity) == ("note", "FAILED")
    assert none.text.startswith("1 of 1 questions on offer are not taken, 'worn': ")
    assert "signature of alpha" in none.text


def test_doctor_of_a_device_names_the_aggregator_that_does_not_answer_where_another_does(
    fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fleetcount("keys", "init", "--output", "dep", "--devices", "1", "--base-port", "0").code == 0

    class HalfReached:
        def __init__(self, _: object, heard: Callable[[str, str], None]) -> None:
            self._heard = heard

        async def list_questions(self) -> tuple[object, ...]:
            self._heard("alpha", "its certificate is not accepted here")
            self._heard("beta", "")
            return ()

        async def close(self) -> None:
            pass

    monkeypatch.setattr("fleetcount.run.doctor.transport_of", HalfReached)

    ran = fleetcount("doctor", "--config", "dep/devices/0001/device.toml")

    assert (ran.code, "ok      aggregators: 0 questions on offer" in ran.out) == (1, True)
    assert "FAILED  aggregator alpha: its certificate is not accepted here" in ran.out
    assert "aggregator beta" not in ran.out


def test_doctor_of_a_device_reads_its_files(
    fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fleetcount("keys", "init", "--output", "dep", "--devices", "1", "--base-port", "0").code == 0
    config = tmp_path / "dep" / "devices" / "0001" / "device.toml"

    before = fleetcount("doctor", "--config", config)
    (config.parent / "speed.json").write_text("7391.5")
    after = fleetcount("doctor", "--config", config)

    assert "signal Vehicle.Speed: no value: the file cannot be read (No such file or directory)" in before.out
    assert "ok      signal Vehicle.Speed: found a number\n" in after.out
    assert "7391" not in after.out
