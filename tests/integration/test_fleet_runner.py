"""The runner of fleets: whatever connections and transports devices use, each of them is counted once.

Every test starts aggregators, a broker and fleet processes on free ports.
"""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.question.fields import DrillDown
from fleetcount_protocol.window.domain import Categories, Prefixes
from fleetcount_protocol.window.fields import Mode, Release, ReleaseKind
from fleetcount_simulator.errors import ProcessError
from fleetcount_simulator.network.parties import running
from fleetcount_simulator.network.plan import FleetPlan, faultless_plan
from fleetcount_simulator.network.question import NetworkQuestion
from fleetcount_simulator.network.run import Ask, WindowAsked, ask_question
from fleetcount_simulator.network.windows import Windows, doubled

# A fresh copy compiles the verification first, and a loaded machine gets windows that are long.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(400), pytest.mark.usefixtures("plain_verification")]
COLOURS = ("red", "green", "blue")
DEVICES = 24
ALLOWED: Mapping[str, Fraction] = {
    name: Fraction(100) for name in ("largest_epsilon", "largest_local_epsilon", "total_epsilon")
}


def question(*, noise: Fraction | None = None) -> NetworkQuestion:
    kind = ReleaseKind.EXACT if noise is None else ReleaseKind.GEOMETRIC
    return NetworkQuestion(
        domain=Categories(names=COLOURS),
        signal="Vehicle.Category",
        mode=Mode.SAMPLING,
        mechanism=SamplingDie.uniform(Fraction(2, 5), len(COLOURS)),
        release=Release(kind=kind, noise_epsilon=noise, level=Fraction(19, 20)),
        min_batch_size=2,
    )


def roomy(windows: Windows, start_s: float) -> Windows:
    """Return windows four times as long as the estimate: who asks once cannot ask again, as a study does."""
    del start_s
    return doubled(windows, 2)


def asked_of(connections: str, *transports: str, noise: Fraction | None = None, exactly: bool = False) -> Ask:
    return Ask(
        name="colours",
        question=question(noise=noise),
        transports=transports,
        connections=connections,
        limits=None if exactly else ALLOWED,
        shape=roomy,
        progress=lambda stage, done, total: None,
    )


def plan_of(asked: Ask, windows: int = 1) -> FleetPlan:
    """Return the plan of devices whose colours change from window to window; every fourth has none."""
    readings = [[(None, *COLOURS)[(number + window) % 4] for number in range(DEVICES)] for window in range(windows)]
    return faultless_plan(asked.question.domain, readings)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("transports", "broker"),
    [pytest.param(("grpc", "mqtt"), "auto", id="both"), pytest.param(("mqtt",), "embedded", id="in turns")],
)
async def test_every_window_of_a_question_has_its_record_and_all_devices(
    tmp_path: Path, transports: tuple[str, ...], broker: str
) -> None:
    asked = asked_of("own", *transports, noise=Fraction(8), exactly=True)

    async with running(tmp_path, 2, broker=broker) as parties:
        answer = await ask_question(parties, asked, plan_of(asked, 2), tmp_path)

    assert [(one.account.counted.tolist(), one.reasons) for one in answer.windows] == [([6, 6, 6, 6], {})] * 2
    first, second = (one.record for one in answer.windows)
    assert first is not None
    assert second is not None
    assert second.chain is not None
    assert (second.chain.previous, second.chain.missing) == (first.digest, ())


@pytest.mark.nightly
async def test_a_walk_is_followed_from_record_to_record_to_the_places_of_all_devices(tmp_path: Path) -> None:
    places = [None, *[0xABC00000] * 11, *[0xABD00000] * 11, 0x12300000]
    one = question(noise=Fraction(8))
    first = Prefixes(bits=4, cells=tuple(range(16)))
    asked = asked_of("own", "grpc", "mqtt", exactly=True)
    walk = DrillDown(levels=(4, 12), threshold=5, most_survivors=2)
    plan = faultless_plan(first, [places] * 2, walk)
    asked = replace(
        asked,
        question=replace(one, domain=first, signal="Vehicle.CurrentLocation", mode=Mode.DIRECT, mechanism=None),
    )

    async with running(tmp_path, 2, broker="auto") as parties:
        answer = await ask_question(parties, asked, plan, tmp_path)

    records = [one.record for one in answer.windows]
    assert [record and [cell.label for cell in record.cells if cell.raw >= 5] for record in records] == [
        [f"{0xA0000000}/4"],
        [f"{0xABC00000}/12", f"{0xABD00000}/12"],
    ]
    # Who is in no cell of a step says so: all are counted in every step.
    assert [one.account.counted.tolist()[0] for one in answer.windows] == [1, 2]
    assert [int(one.account.counted.sum()) for one in answer.windows] == [DEVICES] * 2
    assert [one.reasons for one in answer.windows] == [{}] * 2


async def answered(root: Path, asked: Ask, broker: str = "") -> WindowAsked:
    async with running(root, 2, broker=broker, limits={"allow_exact_release": "true"}) as parties:
        return (await ask_question(parties, asked, plan_of(asked), root)).windows[0]


@pytest.mark.nightly
@pytest.mark.parametrize("connections", ["own", "shared"])
async def test_every_device_is_counted_once_over_both_transports(tmp_path: Path, connections: str) -> None:
    answer = await answered(tmp_path, asked_of(connections, "grpc", "mqtt"), "auto")

    assert answer.record is not None
    assert answer.account.counted.tolist() == [6, 6, 6, 6]
    assert (answer.account.missing, answer.account.tallies["counted_twice"], answer.reasons) == (0, 0, {})
    assert answer.broker in {"mosquitto", "embedded"}
    # Connections and sessions were there before: the windows carried reports alone.
    window = answer.window
    assert answer.stages["round_one"] <= window.round_one_closes - window.round_one_opens
    assert answer.stages["ready"] > 0


@pytest.mark.nightly
async def test_devices_that_may_not_stay_connected_take_turns_and_lose_nothing(tmp_path: Path) -> None:
    """The embedded broker takes sixteen of the twenty-four devices at once."""
    answer = await answered(tmp_path, asked_of("own", "mqtt"), "embedded")

    assert answer.account.counted.tolist() == [6, 6, 6, 6]


@pytest.mark.nightly
async def test_owners_who_allow_exactly_what_is_asked_answer_it(tmp_path: Path) -> None:
    """The loss of the release is no short fraction: rounded the wrong way it would be refused."""
    answer = await answered(tmp_path, asked_of("own", "grpc", noise=Fraction(1, 3), exactly=True))

    assert int(answer.account.counted.sum()) == DEVICES


async def test_an_aggregator_that_ends_while_devices_enrol_ends_the_run_with_its_last_words(tmp_path: Path) -> None:
    async with running(tmp_path, 2, limits={"allow_exact_release": "true"}) as parties:

        def kill(stage: str, done: int, total: int) -> None:
            if (stage, done) == ("starting", total):
                parties.kill(1)

        asked = replace(asked_of("own", "grpc"), progress=kill)
        with pytest.raises(ProcessError, match="beta ended with code -9"):
            await ask_question(parties, asked, plan_of(asked), tmp_path)


@pytest.mark.nightly
async def test_a_release_without_noise_is_allowed_by_no_owner_who_allows_exactly_what_is_asked(tmp_path: Path) -> None:
    asked = asked_of("own", "grpc", exactly=True)
    async with running(tmp_path, 2, limits={"allow_exact_release": "true"}) as parties:
        with pytest.raises(ProcessError, match="without noise"):
            await ask_question(parties, asked, plan_of(asked), tmp_path)
