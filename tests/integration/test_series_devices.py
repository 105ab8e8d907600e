"""The devices that owners run take part in a series over real processes: they join, answer every window, and leave."""

import asyncio
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_client.config import DeliverySettings
from fleetcount_client.device import Device
from fleetcount_client.policy import JoinRule, OwnerPolicy
from fleetcount_client.private_places import PrivatePlaces, PrivateSignal
from fleetcount_client.series_rows import SeriesState
from fleetcount_client.signals import constant
from fleetcount_client.spool import SpoolFile
from fleetcount_client.trust import TrustStore
from fleetcount_protocol.task.signing import TrustedAggregator

from tests.integration.test_series import MOST_NOISE, check_chain, finished, standing_question
from tests.support.deployment import LiveDeployment
from tests.support.fleet import identity_of, transport_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SIGNAL = "Vehicle.CurrentLocation"
TRUTHS = (1, 1, 1, 2, 2, 3)
HIDDEN = 3
"""Whoever is there keeps it private and answers "none"."""


def owned_device(
    deployment: LiveDeployment, directory: Path, number: int, truth: int, *, place: int | None = None, way: str = "grpc"
) -> Device:
    identity = identity_of(deployment)
    written = deployment.written.aggregators
    trusted = [
        TrustedAggregator(
            aggregator_id=one.aggregator_id, operator=one.operator, signing_public_key=one.signing_public_key
        )
        for one in written
    ]
    names = standing_names(deployment)
    return Device(
        identity=identity,
        trust=TrustStore(deployment.written.name, trusted),
        policy=OwnerPolicy(
            signals=frozenset({SIGNAL}),
            largest_epsilon=Fraction(20),
            total_epsilon=Fraction(100),
            smallest_min_batch_size=2,
            fresh_ledger_wait_s=0,
            allow_direct=True,
        ),
        spool=SpoolFile(directory / f"{number}.db").device(),
        transport=transport_of(deployment, identity, way, timeout_s=5.0),
        signals={SIGNAL: constant(names[truth - 1] if place is None else place)},
        settings=DeliverySettings(spread=Fraction(1, 3), poll_interval_s=1.0),
        join=JoinRule.AUTO,
        private=PrivatePlaces({SIGNAL: PrivateSignal(values=frozenset({names[HIDDEN - 1]}))}),
    )


def standing_names(deployment: LiveDeployment) -> tuple[str, ...]:
    domain = deployment.task(3)[0].domain
    return tuple(domain.label(value) for value in range(1, 4))


async def test_devices_answer_every_window_of_a_series_and_what_is_private_counts_nowhere(tmp_path: Path) -> None:
    deployment = LiveDeployment(tmp_path, 2, name="standing")
    for position in range(2):
        path = deployment.config(position)
        path.write_text(path.read_text().replace('largest_epsilon = "4"', 'largest_epsilon = "100"'))
    try:
        await asyncio.to_thread(deployment.start_all)
        series = standing_question(deployment, 3)
        devices = [owned_device(deployment, tmp_path, number, truth) for number, truth in enumerate(TRUTHS)]
        serving = [asyncio.create_task(device.serve()) for device in devices]
        records = await finished(deployment, series)
        for task in serving:
            task.cancel()
        await asyncio.wait(serving)
        for device in devices:
            await device.close()
    finally:
        await asyncio.to_thread(deployment.stop_all)

    check_chain(records)
    for record in records:
        assert all(abs(cell.raw - count) <= MOST_NOISE for cell, count in zip(record.cells, [3, 2, 0], strict=True))
        assert record.participants is not None
        assert abs(record.participants.raw - len(TRUTHS)) <= MOST_NOISE
    for device in devices:
        assert [charge.sent for charge in device.spool.charges()] == [True] * 3
        assert {row.state for row in device.series.rows()} <= {SeriesState.JOINED, SeriesState.ENDED}
    assert deployment.troubles() == []
