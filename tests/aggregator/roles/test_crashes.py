"""A simulated crash at every named point of a window: the same set and release afterwards, or one public abort."""

import asyncio
from pathlib import Path

import pytest
from fleetcount_aggregator.storage.rows import read_ledger, read_rejections
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.release.record import decode_record
from fleetcount_protocol.window.window import Window
from fleetcount_transport.failpoints import AGGREGATOR_FAILPOINTS

from tests.support.aggregators import Network, SimulatedCrashError, answer_all
from tests.support.postgres import Cluster, own_cluster

COINS = [(0, 1), (2, 2), (0, 3), (0, 0), (0, 4)]
DIFFERENCE = [1, 0, 1, 1]
LEADER_ONLY = [name for name in AGGREGATOR_FAILPOINTS if name.startswith("leader.")]
HELPER_ONLY = [name for name in AGGREGATOR_FAILPOINTS if name.startswith("helper.")]
EITHER = [name for name in AGGREGATOR_FAILPOINTS if name.partition(".")[0] in ("intake", "verification", "release")]
CRASHES = [
    *((name, 0) for name in LEADER_ONLY),
    *((name, 1) for name in HELPER_ONLY + EITHER),
    *(pytest.param(name, 0, marks=pytest.mark.nightly) for name in EITHER),
]


async def outcome(network: Network, window: Window) -> list[int]:
    """Return the released difference after checking that everybody has the same, with one debit and one set each."""
    answers = [await network.core(p).service.release(window.window_id) for p in range(len(network.seats))]
    assert {answer.state for answer in answers} == {WindowState.RELEASED}, answers
    assert len({(answer.record, answer.signatures) for answer in answers}) == 1
    digests = {(await network.core(p).helper.status(window.window_id)).set_digest for p in range(len(network.seats))}
    assert len(digests) == 1
    ledgers = [len(await network.core(p).context.store.read(read_ledger)) for p in range(len(network.seats))]
    assert ledgers == [1] * len(network.seats)
    return [cell.raw for cell in decode_record(answers[0].record).cells]


@pytest.mark.parametrize(("failpoint", "side"), CRASHES)
async def test_a_crash_resumes_to_the_same_release(tmp_path: Path, failpoint: str, side: int) -> None:
    network = Network(2, directory=tmp_path)
    await network.start_all()
    window = await network.ask(values=4)
    await network.stop(side)
    await network.start(side, failpoint)

    await answer_all(network, window, COINS)
    await network.run_to_the_end(window)

    assert await outcome(network, window) == DIFFERENCE
    assert not list(tmp_path.glob("*.data-key*")), "an ended window keeps no key"
    await network.stop_all()


async def test_a_test_of_a_crash_that_never_came_fails() -> None:
    network = Network(2)
    await network.start(0, "leader.after_seal")

    with pytest.raises(AssertionError, match=r"alpha never came to leader\.after_seal"):
        await network.stop_all()


@pytest.mark.parametrize(
    ("leader_point", "helper_point"),
    [
        ("leader.after_proposals", "helper.after_propose_store"),
        pytest.param("leader.after_finish", "helper.before_finish_store", marks=pytest.mark.nightly),
        pytest.param("leader.after_seal", "helper.after_seal_store", marks=pytest.mark.nightly),
        ("release.after_draw_store", "release.after_draw"),
        pytest.param("leader.after_open", "helper.after_sign_store", marks=pytest.mark.nightly),
        ("leader.after_release", "helper.before_deliver_store"),
    ],
)
async def test_crashes_on_both_sides_resume_to_the_same_release(
    tmp_path: Path, leader_point: str, helper_point: str
) -> None:
    network = Network(3, directory=tmp_path)
    await network.start_all()
    window = await network.ask(values=4)
    for position, name in ((0, leader_point), (2, helper_point)):
        await network.stop(position)
        await network.start(position, name)

    await answer_all(network, window, COINS)
    await network.run_to_the_end(window)

    assert await outcome(network, window) == DIFFERENCE
    await network.stop_all()


@pytest.mark.processes
async def test_a_server_killed_under_both_and_crashes_on_both_sides_resume_to_the_same_release(tmp_path: Path) -> None:
    with own_cluster() as cluster:
        network = Network(2, directory=tmp_path)
        for seat in network.seats:
            cluster.run(f"CREATE DATABASE {seat.aggregator_id}")
            seat.url = cluster.url(seat.aggregator_id)
        await network.start_all()
        window = await network.ask(values=4)
        for position, name in ((0, "release.after_draw_store"), (1, "helper.after_propose_store")):
            await network.stop(position)
            await network.start(position, name)

        await answer_all(network, window, COINS)
        await asyncio.to_thread(cluster.kill)
        await asyncio.to_thread(cluster.start)
        await network.run_to_the_end(window)

        assert await outcome(network, window) == DIFFERENCE
        await network.stop_all()
        assert not list(tmp_path.glob("*.db")), "its rows are not in SQLite"


BATCH_POINTS = [
    ("verification.before_store", 0),
    ("leader.after_proposals", 0),
    ("leader.after_combine", 0),
    ("leader.after_finish", 0),
    ("leader.after_batch", 0),
    ("verification.before_store", 1),
    ("helper.before_propose_store", 1),
    ("helper.after_propose_store", 1),
    ("helper.before_finish_store", 1),
    ("helper.after_finish_store", 1),
]


@pytest.mark.parametrize(("failpoint", "side"), BATCH_POINTS, ids=[f"{name}-{side}" for name, side in BATCH_POINTS])
@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.nightly)])
async def test_a_crash_between_batches_under_way_resumes_to_the_same_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failpoint: str, side: int, size: int
) -> None:
    """All batches are under way at once; the leader goes on with those it has not decided, under their numbers."""
    monkeypatch.setattr("fleetcount_aggregator.agreement.leader_batches.batch_size", lambda _: size)
    network = Network(2, directory=tmp_path)
    await network.start_all()
    window = await network.ask(values=4)
    await network.stop(side)
    await network.start(side, failpoint)
    await answer_all(network, window, COINS)
    await network.stop(1 - side)
    await network.start(1 - side)

    await network.run_to_the_end(window)

    assert await outcome(network, window) == DIFFERENCE
    assert [await network.core(p).context.store.read(read_rejections, window.window_id) for p in range(2)] == [{}, {}]
    await network.stop_all()


async def test_batches_of_another_size_after_a_restart_are_the_same_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new version may choose another size: a window goes on with the one it began with."""
    monkeypatch.setattr("fleetcount_aggregator.agreement.leader_batches.batch_size", lambda _: 2)
    # One after the other: the leader dies with the first, and the rest is still to be cut into batches.
    monkeypatch.setattr("fleetcount_aggregator.agreement.leader_batches._IN_FLIGHT", 1)
    network = Network(2, directory=tmp_path)
    await network.start_all()
    window = await network.ask(values=4)
    await network.stop(0)
    await network.start(0, "leader.after_batch")
    await answer_all(network, window, COINS)
    await network.advance_to(window.round_two_closes)
    await network.look_after_all()
    monkeypatch.setattr("fleetcount_aggregator.agreement.leader_batches.batch_size", lambda _: 3)

    await network.run_to_the_end(window)

    assert await outcome(network, window) == DIFFERENCE
    await network.stop_all()


async def test_a_leader_that_dies_once_its_helpers_have_signed_resumes_to_that_record(tmp_path: Path) -> None:
    """A record bears a time: built anew after the restart it would be another one, which no helper may sign."""
    network = Network(2, directory=tmp_path)
    await network.start_all()
    window = await network.ask(values=4)
    await answer_all(network, window, COINS)
    deaths: list[str] = []

    def die(caller: str, other: str, name: str) -> None:
        del caller, other
        if name == "sign_record" and not deaths:
            deaths.append(name)
            network.core(0).context.host.failpoints.tripped = True
            raise SimulatedCrashError(name)

    network.after = die
    await network.run_to_the_end(window)

    assert deaths
    assert await outcome(network, window) == DIFFERENCE
    await network.stop_all()


async def test_a_leader_that_died_with_the_record_gives_it_to_its_helpers_after_its_start(tmp_path: Path) -> None:
    """Helpers would ask for it themselves, but only once their leader has been silent for long."""
    network = Network(2, directory=tmp_path)
    network.supervised = False
    await network.start_all()
    window = await network.ask(values=4)
    await network.stop(0)
    await network.start(0, "leader.after_release")
    await answer_all(network, window, COINS)
    await network.advance_to(window.round_two_closes)
    await network.look_after_all()
    network.crashed.clear()
    assert network.seats[0].core is None, "it must really crash"
    helper = network.core(1).context
    assert helper.windows.states[window.window_id] is WindowState.RELEASING

    leader = await network.start(0)
    for one in leader.scheduler.pending():
        await leader.scheduler.look_after(one)

    assert helper.windows.states[window.window_id] is WindowState.RELEASED
    assert await outcome(network, window) == DIFFERENCE
    await network.stop_all()


async def test_a_share_damaged_in_a_server_is_out_on_both_sides_and_the_others_count(
    tmp_path: Path, postgres_cluster: Cluster
) -> None:
    """One bit of a sealed part in the table of frames (F42): no wrong number comes of it."""
    network, database = Network(2, directory=tmp_path), "flipped"
    postgres_cluster.run(f"CREATE DATABASE {database}")
    network.seats[0].url = postgres_cluster.url(database)
    await network.start_all()
    window = await network.ask(values=4)
    devices = await answer_all(network, window, COINS)
    [(table,)] = postgres_cluster.run("SELECT tablename FROM pg_tables WHERE tablename LIKE 'frames_%'", database)
    whose = f"substring(cols FOR 16) = '\\x{devices[2].report_id.hex()}'"
    postgres_cluster.run(
        f"UPDATE {table} SET parts = set_byte(parts, 5, get_byte(parts, 5) # 1) WHERE {whose}", database
    )

    await network.run_to_the_end(window)

    assert await outcome(network, window) == [1, 0, 0, 1], "that of the third device alone is missing"
    for seat in (0, 1):
        assert sum((await network.core(seat).context.store.read(read_rejections, window.window_id)).values()) == 1
    await network.stop_all()
