"""A vehicle's own signals, from a databroker that speaks the published protocol: fresh, in a window's units, or
none.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount_client import kuksa
from fleetcount_client.config import load_settings
from fleetcount_client.kuksa import Databroker, DatabrokerSettings, KuksaSource, VehicleSignal
from fleetcount_client.policy import JoinRule
from fleetcount_client.private_places import UtmZone
from fleetcount_client.shapes import AnySource, Shape, ShapedSource
from fleetcount_client.signals import Reading, Said, SignalSource, SignalUnavailable, read_signal, unfit
from fleetcount_protocol.channel.certificates import CertificateAuthority
from fleetcount_protocol.window.domain import Bins, Categories, SquareGrid
from fleetcount_protocol.window.frame import Frame
from fleetcount_protocol.window.signal import Single, exact
from fleetcount_transport.toml_table import ConfigError

from tests.client.databroker import FakeDatabroker, databroker
from tests.client.deployment import SIGNAL, Deployment
from tests.client.shells import free_port, write_private
from tests.client.test_config import GOOD, write
from tests.support.manual_clock import ManualClock
from tests.support.pem import pem_pair
from tests.support.told_time import told_time, turns_until

__all__ = ["write"]

SPEED = "Vehicle.Speed"
PLACE = ("Vehicle.CurrentLocation.Longitude", "Vehicle.CurrentLocation.Latitude")
TOKEN = "eyJhbGciOiJSUzI1NiJ9.e30.c2ln"


def source_at(
    address: str, *paths: str, timeout_s: float = 20.0, token_file: Path | None = None, **how: object
) -> KuksaSource:
    settings = DatabrokerSettings(address=address, timeout_s=timeout_s, token_file=token_file)
    return KuksaSource(Databroker(settings), VehicleSignal(paths=paths, **{"fresh_s": 10.0, **how}))  # type: ignore[arg-type]


async def said(source: SignalSource) -> Reading:
    return await read_signal({SPEED: source}, SPEED)


async def read(source: SignalSource) -> Said:
    return (await said(source)).value


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return why questions were refused, as it happens."""
    reasons, reason_of = list[str](), kuksa._refusal

    def noted(*why: Any) -> str:
        reasons.append(reason_of(*why))
        return reasons[-1]

    monkeypatch.setattr(kuksa, "_refusal", noted)
    return reasons


async def read_until(happened: Callable[[], object], source: KuksaSource) -> Said:
    """Return what a source says whose time is over as soon as something has happened."""
    with told_time() as told:
        reading = asyncio.create_task(read(source))
        await turns_until(lambda: reading.done() or happened())
        told.passes(20.0)
        return await reading


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"float": 61.5}, 61.5),
        ({"double": -0.25}, -0.25),
        ({"int32": -7}, -7),
        ({"int64": -(2**40)}, -(2**40)),
        ({"uint32": 7}, 7),
        ({"uint64": 2**40}, 2**40),
        ({"bool": False}, False),
        ({"string": "B"}, "B"),
        ({"string_array": {"values": ["P0300", "P0301"]}}, frozenset({"P0300", "P0301"})),
        ({"float": math.nan}, None),
        ({"double": math.inf}, None),
        ({}, None),
    ],
)
async def test_a_value_of_the_published_protocol_reads_as_itself_or_as_nothing(
    value: dict[str, object], expected: object
) -> None:
    async with databroker(FakeDatabroker(values={SPEED: (value, 0.0)})) as address:
        source = source_at(address, SPEED)

        reading = await read(source)

    assert reading == expected
    assert type(reading) is type(expected) or (type(reading), type(expected)) == (Single, float)
    assert source.contact.trouble == ""
    assert source.contact.last_heard is not None


@pytest.mark.parametrize(("age_s", "expected"), [(9.0, 50.0), (11.0, None), (-9.0, 50.0), (-11.0, None)])
async def test_a_value_older_or_newer_than_its_limit_is_none(age_s: float, expected: float | None) -> None:
    async with databroker(FakeDatabroker(values={SPEED: ({"float": 50.0}, age_s)})) as address:
        assert await read(source_at(address, SPEED)) == expected


async def test_freshness_is_by_the_devices_clock() -> None:
    async with databroker(FakeDatabroker(values={SPEED: ({"float": 50.0}, 0.0)})) as address:
        broker = Databroker(DatabrokerSettings(address=address), clock=ManualClock(1e9))

        assert await read(KuksaSource(broker, VehicleSignal(paths=(SPEED,), fresh_s=60))) is None


async def test_units_are_those_that_were_configured() -> None:
    async with databroker(FakeDatabroker(values={SPEED: ({"double": 10.0}, 0.0)})) as address:
        shape = Shape(factor=Fraction("3.6"), offset=Fraction(-1))
        reading = await read(ShapedSource(source_at(address, SPEED), shape))

    assert reading == 35


@pytest.mark.parametrize(
    ("value", "trouble"),
    [
        ({"int32_array": {"values": [1]}}, "the databroker has no value"),
        ({}, "the databroker has no value"),
        ({"string": "x" * 4097}, "a text has more than 4096 bytes"),
    ],
)
async def test_what_is_no_signal_says_so(value: dict[str, object], trouble: str) -> None:
    async with databroker(FakeDatabroker(values={SPEED: (value, 0.0)})) as address:
        reading = await said(source_at(address, SPEED))

    assert trouble in (reading.fault, reading.why_none)


KILOMETRES = {SPEED: {"data_type": 11, "entry_type": 2, "unit": "km"}}
METRES = {SPEED: {"data_type": 9, "entry_type": 2, "unit": "m", "min": {"uint32": 0}, "max": {"uint32": 900_000}}}


@pytest.mark.parametrize(
    ("metadata", "value", "expected"),
    [
        (KILOMETRES, {"float": 12.5}, Fraction("12.5")),
        (METRES, {"uint32": 12_500}, Fraction("12.5")),
        ({}, {"float": 12.5}, Fraction("12.5")),
        (None, {"float": 12.5}, Fraction("12.5")),
    ],
)
async def test_a_distance_is_the_same_in_the_catalogue_before_and_after_it_went_to_metres(
    metadata: dict[str, dict[str, object]] | None, value: dict[str, object], expected: Fraction
) -> None:
    fake = FakeDatabroker(values={SPEED: (value, 0.0)}, metadata=metadata)
    async with databroker(fake) as address:
        source = ShapedSource(source_at(address, SPEED), Shape(unit="km"))
        readings = [await said(source), await said(source)]

    assert [exact(one.value) for one in readings] == [expected] * 2
    assert {one.unit for one in readings} == {"km"}
    assert len(fake.described) == (2 if metadata is None else 1)


async def test_a_unit_that_measures_something_else_is_a_fault_and_known_when_a_question_is_judged() -> None:
    bins = Bins(edges=(Fraction(0), Fraction(100)), open_above=True, unit="km")
    fake = FakeDatabroker(values={SPEED: ({"float": 12.5}, 0.0)}, metadata={SPEED: {"data_type": 11, "unit": "kWh"}})
    async with databroker(fake) as address:
        plain, declared = source_at(address, SPEED), ShapedSource(source_at(address, SPEED), Shape(unit="km"))
        for source in (plain, declared):
            assert unfit({SPEED: source}, SPEED, bins) == ""
            await source.learn()

        assert "its unit is 'kWh', and the question's 'km'" in unfit({SPEED: plain}, SPEED, bins)
        assert "its source says 'kWh', which is never 'km'" in unfit({SPEED: declared}, SPEED, bins)
        assert (await said(declared)).fault == unfit({SPEED: declared}, SPEED, bins)


@pytest.mark.parametrize(
    ("data_type", "fits"),
    [
        (1, "names"),
        (2, "truth"),
        (3, "bins"),
        (10, "bins"),
        (11, "bins"),
        (12, "bins"),
        (20, "names"),
        (26, ""),
        (99, ""),
    ],
)
async def test_what_a_databroker_says_of_a_type_decides_which_questions_it_answers(data_type: int, fits: str) -> None:
    domains = {
        "bins": Bins(edges=(Fraction(0),), open_above=True, unit=""),
        "truth": Categories(names=("true", "false")),
        "names": Categories(names=("A", "B")),
    }
    fake = FakeDatabroker(values={SPEED: ({"bool": True}, 0.0)}, metadata={SPEED: {"data_type": data_type}})
    async with databroker(fake) as address:
        source = source_at(address, SPEED)
        await source.learn()

    fitting = {name for name, domain in domains.items() if not unfit({SPEED: source}, SPEED, domain)}
    assert fitting == ({fits} | ({"truth"} if fits == "names" else set())) - {""}


async def test_an_attribute_is_of_any_age_and_a_sensor_is_not() -> None:
    """P1 of the readings: a time does not move while a value stays, not even when it is published again."""
    start, attribute, sensor = time.time() - 100_000, "Vehicle.Powertrain.Type", SPEED
    fake = FakeDatabroker(metadata={attribute: {"data_type": 1, "entry_type": 1}, sensor: {"entry_type": 2}})
    for now in (start, start + 50_000, start + 99_990):
        fake.publish(attribute, {"string": "ELECTRIC"}, now)
        fake.publish(sensor, {"float": 0.0}, now)
    async with databroker(fake) as address:
        readings = [await said(source_at(address, path, fresh_s=None)) for path in (attribute, sensor)]
        anyhow = await said(source_at(address, sensor, fresh_s=math.inf))
        limited = await said(source_at(address, attribute, fresh_s=60.0))
        fake.publish(sensor, {"float": 1.0}, time.time())
        moving = await said(source_at(address, sensor, fresh_s=None))

    assert [one.value for one in readings] == ["ELECTRIC", None]
    assert [one.age_s for one in readings] == [pytest.approx(100_000, abs=60)] * 2
    assert readings[1].why_none == limited.why_none == "it is not of the last 60 s"
    assert (anyhow.value, moving.value) == (0.0, 1.0)


async def test_a_databroker_that_restarts_or_is_cut_off_is_read_as_it_then_is() -> None:
    fake = FakeDatabroker(metadata={SPEED: {"data_type": 2, "entry_type": 1}})
    fake.publish(SPEED, {"bool": True}, time.time() - 7200)
    port = free_port()
    source = source_at(f"127.0.0.1:{port}", SPEED, fresh_s=None, timeout_s=1.0)
    async with databroker(fake, port=port):
        before = await said(source)
    away = await said(source)
    fake.published.clear()  # It keeps nothing over a restart.
    fake.values[SPEED] = ({}, 0.0)
    async with databroker(fake, port=port):
        empty = await said(source)
        fake.publish(SPEED, {"bool": False}, time.time())
        after = await said(source)

    assert (before.value, away.value, empty.value, after.value) == (True, None, None, False)
    assert "unavailable" in away.why_none or "in time" in away.why_none
    assert empty.why_none == "the databroker has no value"


async def test_any_of_four_wheels_is_one_truth_value() -> None:
    wheels = [
        f"Vehicle.Chassis.Axle.{row}.Wheel.{side}.Brake.IsBrakesWorn" for row in ("Row1", "Row2") for side in "LR"
    ]
    fake = FakeDatabroker(metadata={path: {"data_type": 2, "entry_type": 2} for path in wheels})
    for path in wheels:
        fake.publish(path, {"bool": False}, time.time() - 90_000)
    async with databroker(fake) as address:
        source = AnySource([source_at(address, path, fresh_s=math.inf) for path in wheels])
        whole = await read(source)
        fake.publish(wheels[2], {"bool": True}, time.time())
        worn = await read(source)
        fake.published[wheels[2]] = ({}, 0.0)
        unknown = await read(source)

    assert (whole, worn, unknown) == (False, True, None)
    assert unfit({SPEED: source}, SPEED, Categories(names=("true",))) == ""


@pytest.mark.parametrize("variable", ["http_proxy", "https_proxy", "grpc_proxy"])
async def test_the_databroker_of_this_machine_is_asked_past_every_proxy(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, f"http://127.0.0.1:{free_port()}")
    async with databroker(FakeDatabroker(values={SPEED: ({"float": 63.0}, 0.0)})) as address:
        assert await read(source_at(address, SPEED)) == 63


async def test_a_path_that_the_databroker_does_not_know_is_a_fault() -> None:
    async with databroker(FakeDatabroker()) as address:
        reading = await said(source_at(address, SPEED))

    assert "it does not know Vehicle.Speed" in reading.fault


async def test_longitude_and_latitude_become_metres_of_the_grid_in_one_question() -> None:
    fake = FakeDatabroker(values={PLACE[0]: ({"double": 11.3426}, 1.0), PLACE[1]: ({"double": 44.4949}, 1.0)})
    frame = {"zone": UtmZone(number=32), "offset_x": Fraction("-683195.58"), "offset_y": Fraction("-4928877.56")}
    async with databroker(fake) as address:
        position = await read(source_at(address, *PLACE, **frame))
        degrees = await read(source_at(address, *PLACE))
        fake.values[PLACE[1]] = ({"double": 44.4949}, 99.0)
        half_fresh = await read(source_at(address, *PLACE))

    # EPSG 32632 of that point by PROJ: 686248.6552, 4929511.9015.
    assert position == pytest.approx((3053.0752, 634.3415), abs=0.001)
    assert degrees == (11.3426, 44.4949)
    assert half_fresh is None
    assert fake.asked[0] == list(PLACE)


async def test_a_databroker_that_starts_is_asked_again_and_one_that_refuses_is_not() -> None:
    starting = FakeDatabroker(values={SPEED: ({"float": 1.0}, 0.0)}, refuse_first=2)
    async with databroker(starting) as address:
        assert await read(source_at(address, SPEED)) == 1.0
    knows_nothing = FakeDatabroker()
    async with databroker(knows_nothing) as address:
        source = source_at(address, SPEED)
        assert await read(source) is None

    assert (len(starting.asked), len(knows_nothing.asked)) == (3, 1)
    assert source.contact.trouble == "it does not know Vehicle.Speed"


async def test_a_databroker_that_is_away_or_hangs_holds_neither_the_loop_nor_the_answer(
    caplog: pytest.LogCaptureFixture, refused: list[str]
) -> None:
    away = source_at(f"127.0.0.1:{free_port()}", SPEED)
    fake = FakeDatabroker(values={SPEED: ({"float": 1.0}, 0.0)}, delay_s=60)

    async with databroker(fake) as address:
        hangs = source_at(address, SPEED)
        with caplog.at_level(logging.WARNING, logger="fleetcount_client"):
            readings = [await read_until(lambda: refused, away)]
            readings.append(await read_until(lambda: fake.asked, hangs))
            readings.append(await read_until(lambda: len(fake.asked) == 2, hangs))

    assert readings == [None, None, None]
    assert "refused: nothing listens there" in away.contact.trouble
    assert hangs.contact.trouble == "no answer in time"
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("answer", [b"", b"\xff\xff", b"\x0a\x00\x0a\x00"])
async def test_an_answer_to_another_question_is_none(answer: bytes) -> None:
    async with databroker(FakeDatabroker(values={SPEED: ({}, 0.0)}, raw_answer=answer)) as address:
        source = source_at(address, SPEED)

        assert await read(source) is None

    assert source.contact.trouble


async def test_an_answer_too_long_to_be_one_is_none(refused: list[str]) -> None:
    values = {SPEED: ({"string_array": {"values": ["x" * 1000] * 70}}, 0.0)}
    async with databroker(FakeDatabroker(values=values)) as address:
        assert await read_until(lambda: refused, source_at(address, SPEED)) is None
    assert refused


async def test_over_tls_a_token_is_shown_to_the_right_databroker_and_to_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, refused: list[str]
) -> None:
    authority, other = CertificateAuthority.create("databroker"), CertificateAuthority.create("other")
    credentials = grpc.ssl_server_credentials([pem_pair(authority.issue_aggregator("databroker", ["127.0.0.1"]))])
    # As a system's bundle may be: longer than any file of our own, and with what others have to say.
    words = "# Autorität; its PRIVATE KEY lies elsewhere\n" * 10_000
    (tmp_path / "ca.pem").write_bytes(words.encode() + authority.certificate.public_bytes(Encoding.PEM))
    (tmp_path / "other.pem").write_bytes(other.certificate.public_bytes(Encoding.PEM))
    token = write_private(tmp_path / "token", TOKEN.encode() + b"\n")
    fake = FakeDatabroker(values={SPEED: ({"float": 61.0}, 0.0)}, token=TOKEN)

    async def asked(ca_file: str, token_file: Path | None, name: str = "") -> tuple[Said, str]:
        settings = DatabrokerSettings(
            address=address, ca_file=tmp_path / ca_file, token_file=token_file, server_name=name, timeout_s=20
        )
        source = KuksaSource(Databroker(settings), VehicleSignal(paths=(SPEED,), fresh_s=10))
        refused.clear()
        return await read_until(lambda: refused, source), source.contact.trouble

    with caplog.at_level(logging.DEBUG):
        async with databroker(fake, credentials) as address:
            good = await asked("ca.pem", token, "databroker")
            by_address = await asked("ca.pem", token)
            calls = len(fake.asked)
            stranger = await asked("other.pem", token)
            misnamed = await asked("ca.pem", token, "other")
            reached = len(fake.asked)
            none = await asked("ca.pem", None)
            wrong = await asked("ca.pem", write_private(tmp_path / "wrong", b"abc"))
            broken = await asked("ca.pem", write_private(tmp_path / "broken", b"two words of it\n"))
            gone = await asked("ca.pem", tmp_path / "gone")

    assert good == by_address == (61.0, "")
    assert reached == calls
    assert {stranger, misnamed} == {(None, "unavailable (TLS failed: its certificate is not accepted here)")}
    assert none == wrong == (None, "unauthenticated (not authorised)")
    assert "holds no token" in broken[1]
    assert "is not a file" in gone[1]
    said = f"{caplog.text} {none} {wrong} {broken} {gone}"
    assert not any(secret in said for secret in (TOKEN, "s3cret", "two words", "61.0"))


async def test_a_device_answers_with_what_its_databroker_says_and_its_status_says_how_that_is(tmp_path: Path) -> None:
    world = Deployment()
    window = world.ask()
    fake = FakeDatabroker(values={SPEED: ({"string": "B"}, 0.0)}, token=TOKEN)
    async with databroker(fake) as address:
        source = source_at(address, SPEED, token_file=write_private(tmp_path / "token", TOKEN.encode()))
        device = world.device(tmp_path / "device.db", world.transport())
        device._signals = {window.signal: source}
        before = device.status().sources
        (outcome,) = await device.answer()

    assert outcome.kind.value == "delivered"
    assert fake.asked == [[SPEED]]  # Once, when the report was made, and not before.
    (then,), (now,) = before, device.status().sources
    assert (then.last_heard, then.trouble) == (None, "")
    assert now.last_heard is not None
    assert "'B'" not in repr(device.status())
    assert TOKEN not in repr(device.status())


GRID = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(100), columns=3, rows=1)
UTM_32 = {"zone": UtmZone(number=32), "offset_x": Fraction("-683195.58"), "offset_y": Fraction("-4928877.56")}


def grid_in(epsg: int, offset_x: str = "-683195.58", offset_y: str = "-4928877.56") -> SquareGrid:
    return replace(GRID, frame=Frame(epsg=epsg, offset_x=offset_x, offset_y=offset_y))


@pytest.mark.parametrize(
    ("domain", "how", "said"),
    [
        (GRID, UTM_32, ""),
        (grid_in(32632), UTM_32, ""),
        (grid_in(25832), UTM_32, ""),
        (grid_in(4326, "0", "0"), {}, ""),
        (grid_in(32733, "0", "0"), {"zone": UtmZone(number=33, south=True)}, ""),
        (grid_in(32633), UTM_32, "metres of UTM 32N with offset (-683195.58, -4928877.56), but"),
        (grid_in(32732), UTM_32, "is in EPSG 32732 with"),
        (grid_in(25845, "0", "0"), {"zone": UtmZone(number=45)}, "is in EPSG 25845 with"),
        (grid_in(32632, "-683195.5"), UTM_32, "is in EPSG 32632 with offset (-683195.5, -4928877.56)"),
        (grid_in(32632, offset_y="0"), UTM_32, "offset (-683195.58, 0)"),
        (grid_in(32632), {}, "its positions are degrees"),
    ],
)
def test_positions_of_another_frame_than_the_grids_are_known_as_such(
    domain: SquareGrid, how: dict[str, object], said: str
) -> None:
    why = source_at("127.0.0.1:1", *PLACE, **how).misplaced(domain)

    assert said in why
    assert bool(why) is bool(said)


@pytest.mark.parametrize(("epsg", "kind", "asked"), [(32632, "delivered", 5), (32633, "refused", 0)])
async def test_a_device_whose_zone_is_not_the_grids_answers_nothing_and_its_owner_reads_why(
    tmp_path: Path, epsg: int, kind: str, asked: int
) -> None:
    world = Deployment()
    once, question = (world.offer(make(domain=grid_in(epsg))) for make in (world.once, world.question))
    fake = FakeDatabroker(values={PLACE[0]: ({"double": 11.3}, 0.0), PLACE[1]: ({"double": 44.5}, 0.0)})
    async with databroker(fake) as address:
        device = world.device(tmp_path / "device.db", world.transport(), join=JoinRule.AUTO)
        device._signals = {SIGNAL: source_at(address, *PLACE, **UTM_32)}
        judged = device.would_refuse(once)
        # One after the other: the manual clock does not wait for a databroker while another answer sleeps by it.
        outcomes = [*await device.answer_question(once), *await device.answer_question(question)]

    assert {one.kind.value for one in outcomes} == {kind}
    assert len(fake.asked) == asked
    refusals = device.spool.refusals()
    assert (judged is None) is bool(asked)
    assert len(refusals) == (0 if asked else 2)
    assert all("is in EPSG 32633" in one.message and one.rule == "signals" for one in refusals)
    assert sum(one.sent for one in device.spool.charges()) == asked


async def test_a_coroutine_that_takes_too_long_has_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetcount_client.signals._LONGEST_READ_S", 0.05)

    async def late() -> Said:
        await asyncio.Event().wait()
        return "late"

    async with asyncio.timeout(30):
        assert await read_signal({SPEED: late}, SPEED) == Reading(why_none="it did not answer in time")


async def test_a_source_without_a_value_raises_for_who_asks_it_directly() -> None:
    async with databroker(FakeDatabroker()) as address:
        with pytest.raises(SignalUnavailable):
            await source_at(address, SPEED)()


KUKSA = """
[kuksa]
address = "databroker.vehicle:55555"
ca_file = "aggregators.crt"
server_name = "Server"
token_file = "device.key"
timeout_s = 3

[signals."Vehicle.Speed"]
kuksa = "Vehicle.Speed"
fresh_s = 5
factor = "3.6"

[signals."Vehicle.CurrentLocation"]
kuksa = ["Vehicle.CurrentLocation.Longitude", "Vehicle.CurrentLocation.Latitude"]
utm = "32N"
offset_x = "-683195.58"
"""
CONFIG = GOOD[: GOOD.index("[signals.")] + KUKSA


def test_the_configuration_says_where_a_databroker_is_and_what_its_signals_mean(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    settings = load_settings(write(CONFIG))

    speed, place = settings.signals[SPEED], settings.signals["Vehicle.CurrentLocation"]
    assert isinstance(speed, ShapedSource)
    assert isinstance(place, ShapedSource)
    assert speed._shape == Shape(factor=Fraction("3.6"))
    speed, place = speed._source, place._source
    assert isinstance(speed, KuksaSource)
    assert isinstance(place, KuksaSource)
    assert speed._signal == VehicleSignal(paths=(SPEED,), fresh_s=5.0)
    assert place._signal == VehicleSignal(paths=PLACE, zone=UtmZone(number=32), offset_x=Fraction("-683195.58"))
    assert speed._databroker is place._databroker
    assert speed._databroker._settings == DatabrokerSettings(
        address="databroker.vehicle:55555",
        ca_file=tmp_path / "aggregators.crt",
        server_name="Server",
        token_file=tmp_path / "device.key",
        timeout_s=3.0,
    )


def test_authorities_of_a_databroker_that_are_none_are_refused_before_it_is_asked(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    file = write(CONFIG)
    (tmp_path / "aggregators.crt").write_text("pem")

    with pytest.raises(ConfigError, match=r"aggregators\.crt holds no readable certificate"):
        load_settings(file)


def test_a_databroker_of_this_machine_needs_its_address_alone(write) -> None:  # type: ignore[no-untyped-def]
    rows = '[kuksa]\naddress = "127.0.0.1:55555"\n[signals."Vehicle.Speed"]\nkuksa = "Vehicle.Speed"\n'

    speed = load_settings(write(GOOD[: GOOD.index("[signals.")] + rows)).signals[SPEED]

    assert isinstance(speed, ShapedSource)
    speed = speed._source
    assert isinstance(speed, KuksaSource)
    assert speed._databroker._settings == DatabrokerSettings(address="127.0.0.1:55555")
    assert speed._signal == VehicleSignal(paths=(SPEED,))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('ca_file = "aggregators.crt"\nserver', "server", r"kuksa\.address is 'databroker\.vehicle:55555'.*loopback"),
        ('ca_file = "aggregators.crt"\nserver', "insecure = true\nserver", r"kuksa\.token_file.*together with ca_file"),
        ("timeout_s = 3", "timeout_s = 3\ninsecure = true", r"kuksa\.insecure is true.*only without ca_file"),
        ('address = "databroker.vehicle:55555"', "", r"kuksa\.address is missing"),
        ('address = "databroker.vehicle:55555"', 'address = "databroker"', r"kuksa\.address is 'databroker'"),
        ('token_file = "device.key"', 'token_file = "aggregators.crt"', r"kuksa\.token_file.*0600"),
        ('token_file = "device.key"', 'token = "abc"', r"kuksa\.token is unknown"),
        ("timeout_s = 3", "timeout_s = 60", r"kuksa\.timeout_s is 60.*0\.1 to 20"),
        ("fresh_s = 5", "fresh_s = 0", r"fresh_s is 0.*0\.1 to 86400"),
        ("fresh_s = 5", "fresh = 5", r"fresh is unknown.*'fresh_s'"),
        ('factor = "3.6"', 'factor = "fast"', r"factor is 'fast'"),
        ('factor = "3.6"', 'utm = "32N"', r"utm.*goes with \[longitude, latitude\]"),
        ('utm = "32N"', 'factor = "2"', r"factor goes with one value, and there are two: a position"),
        ('utm = "32N"', 'utm = "61N"', r"utm is '61N'"),
        ('kuksa = "Vehicle.Speed"', 'kuksa = "Vehicle.*"', r"kuksa is 'Vehicle\.\*'"),
        ('kuksa = "Vehicle.Speed"', 'kuksa = ["Vehicle.Speed"]', "two: "),
        ('kuksa = "Vehicle.Speed"', 'kuksa = ["A.B", "A.C", "A.D"]', "with any = true 2 to 64"),
        ('kuksa = "Vehicle.Speed"', 'kuksa = "Vehicle.Speed"\nany = true', "any joins 2 or more sources"),
        ("[kuksa]", "[private]\n[kusa]", r"kusa is unknown.*'kuksa'"),
    ],
)
def test_a_wrong_line_about_a_databroker_is_refused(write, old: str, new: str, said: str) -> None:  # type: ignore[no-untyped-def]
    assert old in CONFIG

    with pytest.raises(ConfigError, match=said):
        load_settings(write(CONFIG.replace(old, new, 1)))


def test_without_grpc_the_extra_is_named(write, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("fleetcount_client.kuksa_config.find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r"install fleetcount-client\[kuksa\] or fleetcount\[kuksa\]"):
        load_settings(write(CONFIG))


def test_a_signal_of_a_databroker_needs_one_and_one_source_only(write) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=r"reads from kuksa; give the section \[kuksa\]"):
        load_settings(write(GOOD.replace('file = "speed.txt"', 'kuksa = "Vehicle.Speed"')))
    with pytest.raises(ConfigError, match=r"has file and kuksa; allowed is exactly one of"):
        load_settings(write(CONFIG.replace("fresh_s = 5", 'file = "speed.txt"')))


@pytest.mark.parametrize("signals", ["", '[signals."Vehicle.Speed"]\nfile = "speed.txt"\n'])
def test_a_databroker_that_no_signal_asks_is_refused(write, signals: str) -> None:  # type: ignore[no-untyped-def]
    rows = '[kuksa]\naddress = "127.0.0.1:55555"\n'

    with pytest.raises(ConfigError, match=r"line \d+: kuksa is asked by no signal"):
        load_settings(write(GOOD[: GOOD.index("[signals.")] + rows + signals))


@pytest.mark.parametrize(
    ("zone", "longitude", "latitude", "expected"),
    [
        # By PROJ, EPSG 32632.
        (UtmZone(number=32), 11.3426, 44.4949, (686248.6552, 4929511.9015)),
        (UtmZone(number=1), 179.9, 10.0, (160097.0061, 1107010.3951)),  # Across the date line; EPSG 32601.
        (UtmZone(number=32), 40.0, 10.0, None),
        (UtmZone(number=32), 9.0, 85.0, None),
        (UtmZone(number=32), math.nan, 10.0, None),
        (UtmZone(number=32), 369.0, 10.0, None),
    ],
)
def test_metres_of_a_zone(
    zone: UtmZone, longitude: float, latitude: float, expected: tuple[float, float] | None
) -> None:
    reached = zone.metres(longitude, latitude)

    assert reached == (expected if expected is None else pytest.approx(expected, abs=0.001))


def test_metres_of_a_zone_are_those_of_proj() -> None:
    pyproj = pytest.importorskip("pyproj")
    for code, zone in (
        (32632, UtmZone(number=32)),
        (25833, UtmZone(number=33)),
        (32701, UtmZone(number=1, south=True)),
    ):
        theirs = pyproj.Transformer.from_crs(4326, code, always_xy=True)
        meridian = 6 * zone.number - 183
        for east in range(-12, 13, 3):
            for latitude in range(-83, 84, 16):
                longitude = (meridian + east + 180) % 360 - 180
                assert zone.metres(longitude, latitude) == pytest.approx(
                    theirs.transform(longitude, latitude), abs=0.001
                )
