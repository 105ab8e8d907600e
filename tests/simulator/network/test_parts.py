"""The parts of a network run, each alone: readings, faults, accounts, windows, outages, files, and one device's way."""

import asyncio
import random
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleetcount_client.transport import Unreachable
from fleetcount_protocol.channel.certificates import CertificateAuthority
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.errors import RejectReason, UsageError
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SessionId, WindowId
from fleetcount_protocol.messages import Instalment, Receipt, Refusal
from fleetcount_protocol.release.commitments import set_digest
from fleetcount_protocol.window.domain import Bins, Categories, H3Cells, SquareGrid
from fleetcount_protocol.window.fields import Aggregator, HpkeKey, ReleaseKind
from fleetcount_protocol.window.window import Window
from fleetcount_simulator.errors import ProcessError, ScenarioError
from fleetcount_simulator.model import Case, Faults, Mechanism
from fleetcount_simulator.network.children import Children
from fleetcount_simulator.network.connections import Connections
from fleetcount_simulator.network.counted import account_of, explains
from fleetcount_simulator.network.device_faults import DeviceFault, draw_device_faults
from fleetcount_simulator.network.faulty_transport import FaultyUploads, Tally, Trace
from fleetcount_simulator.network.fleet_report import OUTCOMES, FleetReport
from fleetcount_simulator.network.fleet_spec import FleetPart, FleetSpec
from fleetcount_simulator.network.machine_speed import Speed
from fleetcount_simulator.network.outages import first_failpoints, outages_of
from fleetcount_simulator.network.parties import Parties
from fleetcount_simulator.network.ports import free_ports
from fleetcount_simulator.network.question import question_of, reading_of, readings_of
from fleetcount_simulator.network.windows import (
    COST_S,
    Enrolment,
    Windows,
    doubled,
    stretched,
    windows_for,
    with_outage,
)

from tests.simulator.network_cases import People, case_of
from tests.support.protocol_samples import crossed, sampling_window

SPEED = Speed(share_s=5e-4, verify_s=4e-4)


# The question.


def test_gaussian_noise_is_asked_as_it_is_whatever_the_coins_promise() -> None:
    """Devices' ledgers take a loss with a delta."""
    gaussian = Mechanism(name="g", kind="sampling", sampling_rate=Fraction(1, 4), noise_variance=Fraction(9))
    coins = Mechanism(name="c", kind="k-ary", epsilon_local=Fraction(1, 2), noise_variance=Fraction(9))

    for mechanism in (gaussian, coins):
        asked = question_of(case_of(mechanism=mechanism)).release
        assert (asked.kind, asked.noise_variance, asked.noise_epsilon) == (ReleaseKind.GAUSSIAN, Fraction(9), None)


# Readings.


@pytest.mark.parametrize(
    "domain",
    [
        Categories(names=("red", "green", "blue")),
        Bins(edges=(Fraction(-5), Fraction(0), Fraction(1, 3), Fraction(50)), open_above=True, unit="km/h"),
        Bins(edges=(Fraction(0), Fraction(1, 10**6)), open_above=False, unit=""),
        SquareGrid(x0=Fraction(-700), y0=Fraction(1, 7), size=Fraction(250), columns=4, rows=3),
        H3Cells(resolution=9, cells=(0x891F1D48177FFFF, 0x891F1D4817BFFFF)),
    ],
)
def test_a_reading_of_every_value_is_read_as_that_value(domain: Any) -> None:
    values = range(domain.values + 1)

    assert [domain.value_of(reading_of(domain, value)) for value in values] == list(values)


def test_a_cross_has_a_reading_for_each_signal() -> None:
    colours = Categories(names=("red", "green", "blue"))
    cross = crossed(Bins(edges=(Fraction(0), Fraction(50)), open_above=True, unit="km/h"), colours)

    found = [readings_of(cross, value) for value in range(cross.values + 1)]

    assert found[0] == (None, None)
    parts = [[part.domain.value_of(one) for part, one in zip(cross.parts, row, strict=True)] for row in found]  # type: ignore[union-attr]
    assert [cross.together(values) for values in parts] == list(range(cross.values + 1))
    assert [readings_of(colours, value) for value in (0, 3)] == [(None,), ("blue",)]


def test_a_value_no_signal_can_read_is_refused() -> None:
    place = Fraction(10**15) + Fraction(1, 10**6)
    tiny = Bins(edges=(place, place + Fraction(1, 10**6)), open_above=False, unit="")

    with pytest.raises(ScenarioError, match=r"value 1 .* is too narrow"):
        reading_of(tiny, 1)


# Faults of devices.


def faults_of(case: Case, seed: int = 5) -> list[int]:
    return [int(flag) for flag in draw_device_faults(case, 0, 2, np.random.SeedSequence(seed)).flags]


def test_faults_of_devices_follow_the_seed_and_one_fault_does_not_change_another() -> None:
    lossy = case_of(2000, faults=Faults(loss=Fraction(1, 4)))
    both = case_of(2000, faults=Faults(loss=Fraction(1, 4), duplicates=Fraction(1, 2)))

    assert faults_of(lossy) == faults_of(lossy) != faults_of(lossy, 6)
    assert [flag & DeviceFault.LOST for flag in faults_of(both)] == faults_of(lossy)
    # Binomial(2000, 1/4): five deviations to either side, outside once in 10^6; the seed is fixed.
    assert 400 < sum(map(bool, faults_of(lossy))) < 600


def test_nothing_befalls_anybody_without_faults() -> None:
    drawn = draw_device_faults(case_of(50), 0, 2, np.random.SeedSequence(1))

    assert drawn.unharmed.all()
    assert not drawn.flags.any()


def test_clocks_are_wrong_by_at_most_their_largest_error() -> None:
    drawn = draw_device_faults(case_of(500, faults=Faults(clock_skew_s=Fraction(30))), 0, 2, np.random.SeedSequence(1))

    assert 0.45 < np.abs(drawn.skews).max() <= 0.5
    assert not drawn.unharmed.any()


def test_ignition_and_an_empty_ledger_are_faults_of_devices() -> None:
    people = People(6, 2, off={1: (0,), 2: (0, 4)})
    noised = Mechanism(name="m", kind="sampling", sampling_rate=Fraction(1, 4), noise_epsilon=Fraction(1))
    broke = replace(case_of(mechanism=noised).epochs, device_epsilon=Fraction(1, 100))

    assert faults_of(case_of(population=people, faults=Faults(ignition=True))) == [
        DeviceFault.ABSENT,
        0,
        0,
        0,
        DeviceFault.DROPPED,
        0,
    ]
    assert faults_of(case_of(population=people)) == [0] * 6
    assert faults_of(case_of(population=people, mechanism=noised, epochs=broke)) == [DeviceFault.REFUSED] * 6


# Accounts.


def report(rows: Sequence[tuple[str, int]], reports: Sequence[tuple[int, bool]], start: int = 0) -> FleetReport:
    """Return the report of devices start, start+1, ... (outcome, flags) that named the reports (owner, complete)."""
    ids = np.array([[start + row] * 16 for row in range(len(reports))], dtype=np.uint8).reshape(-1, 16)
    return FleetReport(
        numbers=np.arange(start, start + len(rows), dtype=np.int64),
        outcomes=np.array([OUTCOMES.index(outcome) for outcome, _ in rows], dtype=np.uint8),
        flags=np.array([flags for _, flags in rows], dtype=np.uint8),
        owners=np.array([owner for owner, _ in reports], dtype=np.int64),
        report_ids=ids,
        share_digests=np.array([[200 - start - row] * 32 for row in range(len(reports))], np.uint8).reshape(-1, 32),
        complete=np.array([complete for _, complete in reports], dtype=np.bool_),
    )


def test_everybody_is_counted_or_has_one_reason_not_to_be() -> None:
    first, late, resent = FleetReport.FIRST, FleetReport.LATE, FleetReport.RESENT
    one = report(
        [
            ("delivered", first),
            ("given_up", first | resent),
            ("absent", 0),
            ("given_up", 0),
            ("rejected", first | late),
        ],
        [(0, True), (1, False), (4, False)],
    )
    other = report([("delivered", first), ("refused", 0)], [(5, True)], start=5)
    truths = np.array([1, 1, 1, 1, 1, 2, 2])
    unharmed = np.array([True, True, False, False, False, True, False])

    account = account_of([one, other], truths, unharmed, 2, 2)

    assert account.counted.tolist() == [0, 1, 1]
    assert account.missing == 1
    assert account.tallies == {
        "absent": 1, "refused": 1, "late": 1, "half_pairs": 1, "lost": 1, "counted_twice": 0, "resent": 1
    }  # fmt: skip


def test_a_device_with_two_complete_reports_is_seen() -> None:
    twice = report([("delivered", 1), ("delivered", 1)], [(0, True), (1, True), (1, True)])

    account = account_of([twice], np.array([1, 1]), np.array([True, True]), 1, 2)

    assert account.counted.tolist() == [0, 2]
    assert account.tallies["counted_twice"] == 1


def test_receipts_explain_the_agreed_set_or_do_not() -> None:
    reports = [
        report([("delivered", 1)] * 2, [(0, True), (1, False)]),
        report([("delivered", 1)], [(9, True)], start=9),
    ]
    items = [
        (ReportId(bytes([number]) * 16), Digest(bytes([200 - number]) * 32)) for number in (0, 9)
    ]  # as `report` names them

    window = WindowId(bytes(32))
    assert explains(window, reports, set_digest(window, items))
    assert not explains(window, reports, set_digest(window, items[:1]))
    assert not explains(WindowId(bytes([1]) * 32), reports, set_digest(window, items))


def test_what_a_process_reports_survives_its_private_file(tmp_path: Path) -> None:
    written = report([("delivered", 1), ("absent", 0)], [(0, True)])
    written.write(tmp_path / "r.npz")

    read = FleetReport.read(tmp_path / "r.npz")

    assert all(np.array_equal(getattr(read, name), getattr(written, name)) for name in read.__dataclass_fields__)
    assert [path.name for path in tmp_path.iterdir()] == ["r.npz"]
    assert stat.S_IMODE((tmp_path / "r.npz").stat().st_mode) == 0o600


def spec_of(**changes: Any) -> FleetSpec:
    """A process of a fleet, with some fields changed."""
    keys = (HpkeKey(key_id=1, public_key=bytes(range(32))), HpkeKey(key_id=2, public_key=bytes(32)))
    one = FleetSpec(
        name="fleet-0",
        transport="grpc",
        connections="own",
        at_once=3,
        deployment="study",
        question_name="run 0",
        signals=("Vehicle.CurrentLocation", "Vehicle.Paint"),
        aggregators=(
            Aggregator(
                aggregator_id=AggregatorId("a"),
                operator="A",
                grpc_endpoint="h:1",
                mqtt_broker="",
                hpke_keys=keys,
                signing_public_key=bytes(32),
            ),
        ),
        broker="",
        relay="127.0.0.1:1",
        authorities="ca",
        spool_file="s",
        report_file="r",
        limits={"largest_epsilon": "1"},
        call_timeout_s=20.0,
        spread="1/2",
        reorder=True,
        coin_seed=2**100 + 77,
        numbers=[0, 2, 3, 4],
        part=FleetPart(
            readings=[[((1.5, -2.0), None), (None, "dark red"), ((0.0, 3.25), "1"), (None, 3.25)]],
            faults=[[0, 4, 0, 0]],
            came=[0],
            gone=[1],
            skews=[0.0, 0.5, -0.25, 0.0],
            news_s=5.0,
        ),
    )
    return replace(one, **changes)


def test_what_a_process_is_told_survives_its_file_and_its_secrets_are_not_shown(tmp_path: Path) -> None:
    spec = spec_of()
    (tmp_path / "spec.json").write_text(spec.encode())

    assert FleetSpec.read(tmp_path / "spec.json") == spec
    assert "dark red" not in repr(spec)
    assert str(spec.coin_seed) not in repr(spec)


@pytest.mark.parametrize("relay", ["127.0.0.1:1", ""])
async def test_all_calls_of_a_fleet_with_a_relay_go_through_it_and_without_one_to_the_aggregators(
    tmp_path: Path, relay: str
) -> None:
    (tmp_path / "aggregators.crt").write_bytes(b"")
    authority = CertificateAuthority.create("devices")
    for connections in ("own", "shared"):
        spec = spec_of(connections=connections, relay=relay, authorities=str(tmp_path))
        fleet = Connections(spec, authority)
        for transport in (
            fleet.of(DeviceIdentity.generate(authority)),
            fleet.question_transport(),
            fleet.shared_grpc(),
        ):
            inner: Any = getattr(transport, "_inner", transport)
            assert inner._relay == relay


# Windows and outages.


def windows_of(
    rounds: int = 2, parties: int = 2, *, seconds: float = 2.5, load: float = 0.0, **devices: int
) -> Windows:
    """Return the windows of devices that share connections and enrolled in so many seconds."""
    shared = {("shared", way): count for way, count in devices.items()}
    return windows_for(Enrolment(devices=shared, processes=1, seconds=seconds, load=load), rounds, parties, SPEED)


def test_windows_grow_with_devices_and_with_the_time_they_took_to_enrol() -> None:
    base = windows_of(grpc=5000)

    assert windows_of(grpc=20_000, seconds=10.0).round_one_s > 2 * base.round_one_s
    assert windows_of(grpc=5000, seconds=5.0).round_one_s > base.round_one_s
    assert windows_of(grpc=5000, seconds=5.0).round_two_s > base.round_two_s
    assert windows_of(rounds=1, grpc=5000).round_two_s == 0
    # On a crowded machine also a handful of devices waits for its turn.
    assert windows_of(grpc=10, load=10.0).round_one_s >= 7 > windows_of(grpc=10, load=0.9).round_one_s
    assert windows_of(grpc=10, load=10.0).round_two_s >= 7
    assert windows_of(parties=5, grpc=5000).release_s > base.release_s


@pytest.mark.parametrize(("way", "most"), [(("own", "mosquitto"), 20), (("in turns", "embedded"), 45)])
def test_windows_of_a_demo_are_short_when_its_two_thousand_vehicles_enrolled_on_two_idle_cores(
    way: tuple[str, str], most: int
) -> None:
    devices = {("own", "grpc"): 1000, way: 1000}
    work = sum(1000 * COST_S[one][0] for one in devices)

    windows = windows_for(Enrolment(devices=devices, processes=2, seconds=work / 2), 2, 2, SPEED)

    assert work / 2 < windows.round_one_s + windows.round_two_s <= most


def test_windows_for_faults_of_time_open_later_and_are_of_one_length() -> None:
    windows = windows_of(grpc=100)

    longer = stretched(windows, 20)

    assert (longer.round_one_s, longer.round_two_s) == (20, 20)
    assert longer.lead_s > windows.lead_s == 0
    assert doubled(longer, 1).round_one_s == 40
    assert stretched(windows_of(rounds=1, grpc=100), 20).round_two_s == 0


def test_the_last_window_has_room_for_an_aggregator_that_starts_again_slowly() -> None:
    two, one = windows_of(grpc=100, seconds=0.1), windows_of(rounds=1, grpc=100, seconds=0.1)

    assert with_outage(two, 1.0).round_one_s == 15
    assert with_outage(two, 1.0).round_two_s == 30
    assert with_outage(two, 10.0).round_two_s / 2 > 3 * 10.0
    assert (with_outage(one, 1.0).round_one_s, with_outage(one, 1.0).round_two_s) == (30, 0)


def test_outages_are_told_in_the_time_of_the_runs_windows() -> None:
    faults = Faults(
        outage=(
            (0, "collecting", Fraction(30)),
            (1, "helper.after_seal_store", Fraction(0)),
            (1, "releasing", Fraction(6)),
            (0, "agreeing", Fraction(6)),
        )
    )

    one, two, three, four = outages_of(faults, 20.0)

    assert (one.down_s, one.in_window, one.failpoint) == (10.0, True, "")
    assert (two.down_s, two.in_window, two.failpoint) == (None, False, "helper.after_seal_store")
    assert (three.down_s, three.in_window, three.failpoint) == (2.0, False, "helper.after_seal_store")
    assert (four.down_s, four.in_window, four.failpoint) == (2.0, False, "leader.after_proposals")
    assert first_failpoints(faults) == {0: "leader.after_proposals", 1: "helper.after_seal_store"}


@pytest.mark.processes
def test_what_one_process_may_listen_on_no_other_is_given_while_it_lives() -> None:
    """Though nobody listens yet, or for a while nobody does any more."""
    program = (
        "from fleetcount_simulator.network.ports import free_ports; print(*free_ports('127.0.0.1', 2000)); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-u", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = set(map(int, other.stdout.readline().split()))
        own = set(free_ports("127.0.0.1", 2000))
        other.communicate("\n")

    assert (len(theirs), len(own)) == (2000, 2000)
    assert not theirs & own


def test_ports_to_listen_on_are_none_that_an_outgoing_connection_may_take() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_ports("127.0.0.1", 1)[0]))
        ports = free_ports("127.0.0.1", 200)

        assert taken.getsockname()[1] not in ports
    # Linux gives outgoing connections ports from 32768 on, other systems from 49152 on.
    assert max(ports) < 32_768
    assert len(set(ports)) == 200
    with pytest.raises(UsageError, match=r"no address of this machine"):
        free_ports("192.0.2.1", 1)


# One device's way.


class Far:
    """Two aggregators: notes what arrives, answers with a receipt, a refusal, or not at all."""

    def __init__(self) -> None:
        self.arrived: list[tuple[int, Instalment]] = []
        self.refusal: RejectReason | None = None
        self.silent = False

    async def upload(
        self, window: Window, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        self.arrived += [(position, one) for one in instalments]
        if self.silent:
            raise Unreachable("no answer")
        return tuple(self._answer(one) for one in instalments)

    def _answer(self, one: Instalment) -> Receipt | Refusal:
        names = {
            "window_id": one.window_id,
            "report_id": one.report_id,
            "round": one.round,
            "session_id": one.session_id,
        }
        if self.refusal is not None:
            return Refusal(**names, reason=self.refusal)  # type: ignore[arg-type] # the fields above, by name
        return Receipt(**names, digest=one.digest, mac=bytes(32))  # type: ignore[arg-type] # as above


def way(fate: int = 0) -> tuple[FaultyUploads, Far, Trace, Tally]:
    far, trace, tally = Far(), Trace(), Tally()
    shared: Any = far
    return (
        FaultyUploads(shared, DeviceFault(fate), trace, tally, reorder=False, chance=random.Random(1)),
        far,
        trace,
        tally,
    )


def window_now(closes_in: int = 100) -> Window:
    now = int(time.time())
    return replace(
        sampling_window(),
        round_one_opens=now - 1,
        round_one_closes=now + closes_in,
        round_two_closes=now + closes_in + 100,
        expiry=now + 10_000,
        time_precision_s=1,
    )


def instalment(window: Window, round_number: int = 1) -> Instalment:
    return Instalment(
        window_id=WindowId(window.window_id),
        report_id=ReportId(bytes(16)),
        session_id=SessionId(bytes(16)),
        key_number=1,
        round=round_number,
        public_share=b"" if round_number == 1 else bytes(64),
        ciphertext=bytes(40),
    )


async def test_a_message_is_uncertain_until_its_answer_comes() -> None:
    transport, far, trace, tally = way()
    window = window_now()
    far.silent = True
    with pytest.raises(Unreachable):
        await transport.upload(window, 0, [instalment(window)])
    assert list(trace.pending) == [(1, 0)]
    far.silent = False

    await transport.upload(window, 0, [instalment(window)])

    assert trace.pending == {}
    assert trace.receipted == {(1, 0)}
    assert (trace.resent, tally.receipts[1]) == (True, 1)


async def test_a_refusal_for_good_leaves_nothing_uncertain() -> None:
    transport, far, trace, _ = way()
    window = window_now()
    far.refusal = RejectReason.TOO_LATE

    await transport.upload(window, 1, [instalment(window)])

    assert (trace.late, trace.pending, trace.receipted) == (True, {}, set())


async def test_a_lost_message_never_leaves_and_fails_when_its_window_has_closed() -> None:
    transport, far, _, _ = way(DeviceFault.LOST)

    with pytest.raises(Unreachable, match="lost"):
        await transport.upload(window_now(1), 0, [instalment(window_now(1))])

    assert far.arrived == []


async def test_a_repeated_message_arrives_twice_with_the_same_bytes_and_counts_once() -> None:
    transport, far, trace, tally = way(DeviceFault.REPEATED)
    window = window_now()

    await transport.upload(window, 0, [instalment(window)])
    async with asyncio.timeout(60):
        while len(far.arrived) < 2:
            await asyncio.sleep(0.01)
    await transport.stop()

    assert far.arrived[0] == far.arrived[1]
    assert (trace.resent, tally.receipts[1]) == (True, 1)


async def test_a_device_that_is_switched_off_after_round_one_sends_nothing_more() -> None:
    transport, far, trace, _ = way(DeviceFault.DROPPED)
    window = replace(window_now(), round_one_opens=1, round_one_closes=2, round_two_closes=3, expiry=100)

    await transport.upload(window, 0, [instalment(window)])
    with pytest.raises(Unreachable, match="lost on the way"):
        await transport.upload(window, 0, [instalment(window, 2)])

    assert len(far.arrived) == 1
    assert trace.receipted == {(1, 0)}


async def test_a_broker_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETCOUNT_MOSQUITTO", str(tmp_path / "absent"))
    async with Children(tmp_path) as children:
        with pytest.raises(ProcessError, match="mosquitto is not installed"):
            await Parties(children, tmp_path).start_broker("mosquitto")
