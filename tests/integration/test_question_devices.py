"""The devices that owners run take part in a question over real processes: they join, answer every window, and
leave.
"""

import asyncio
import contextlib
import json
import random
import re
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount.keys.deployment import write_device
from fleetcount_client.config import DeliverySettings
from fleetcount_client.contact import TrustStore
from fleetcount_client.device import Device
from fleetcount_client.policy import JoinRule, OwnerPolicy
from fleetcount_client.private_places import PrivatePlaces, PrivateSignal
from fleetcount_client.question_rows import QuestionState
from fleetcount_client.signals import constant
from fleetcount_client.spool import SpoolFile
from fleetcount_protocol.question.fields import Schedule
from fleetcount_protocol.window.signing import TrustedAggregator

from tests.integration.test_question import MOST_NOISE, check_chain, finished, standing_question
from tests.support.deployment import Deployed
from tests.support.fleet import identity_of, transport_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

SIGNAL = "Vehicle.TestOfDevices"
"""Devices that join by themselves answer whatever is asked of their signal, by other tests of the deployment too."""
TRUTHS = (1, 1, 1, 2, 2, 3, 3, 3)
HIDDEN = 3
"""Whoever is there keeps it private and answers "none"; of more devices than the noise takes away."""


def owned_device(
    deployment: Deployed,
    directory: Path,
    number: int,
    truth: int,
    *,
    signal: str,
    place: int | None = None,
    way: str = "grpc",
) -> Device:
    """Return a device that joins by itself whatever is asked of its signal, which no other test may ask for."""
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
            signals=frozenset({signal}),
            largest_epsilon=Fraction(20),
            total_epsilon=Fraction(100),
            smallest_min_batch_size=2,
            fresh_ledger_wait_s=0,
            allow_direct=True,
        ),
        spool=SpoolFile(directory / f"{number}.db").device(),
        transport=transport_of(deployment, identity, way, timeout_s=5.0),
        signals={signal: constant(names[truth - 1] if place is None else place)},
        settings=DeliverySettings(spread=Fraction(1, 3), poll_interval_s=1.0),
        join=JoinRule.AUTO,
        private=PrivatePlaces({signal: PrivateSignal(values=frozenset({names[HIDDEN - 1]}))}),
    )


def standing_names(deployment: Deployed) -> tuple[str, ...]:
    domain = deployment.question(3).domain
    return tuple(domain.label(value) for value in range(1, 4))


class Restless:
    """One device as an owner's own process, killed with SIGKILL twice a window, before it opens or while it is open."""

    def __init__(self, deployment: Deployed, number: int, truth: int) -> None:
        config = write_device(deployment.written, number, transport="grpc")
        text = config.read_text().replace('largest_epsilon = "1" ', 'largest_epsilon = "20"').replace('"10"', '"100"')
        text = text.replace("[policy]", '[questions]\njoin = "auto"\n\n[policy]\nallow_direct = true', 1)
        # The policy of `keys init` takes signals that other tests of the deployment ask for.
        text = re.sub(r"(?m)^signals = .*$", f'signals = ["{SIGNAL}"]', text).replace("Vehicle.CurrentLocation", SIGNAL)
        config.write_text(text)
        (config.parent / "currentlocation.json").write_text(json.dumps(standing_names(deployment)[truth - 1]))
        self._command = [sys.executable, "-m", "fleetcount", "device", "run", "--config", str(config)]
        self.spool, self.log = SpoolFile(config.parent / "device.db"), config.parent / "device.log"

    async def live(self, schedule: Schedule) -> None:
        """Run and die; after the last kill run on until cancelled."""
        half = (schedule.round_one_s - 1) / 2
        opens = [schedule.opens(index) for index in range(schedule.windows)]
        deaths = sorted(at + random.uniform(*span) for at in opens for span in ((-2, 1), (1, half)))
        for death in (*deaths, None):
            with self.log.open("ab") as log:
                process = await asyncio.create_subprocess_exec(*self._command, stdout=log, stderr=log)
            try:
                async with asyncio.timeout(None if death is None else max(0.0, death - time.time())):
                    await process.wait()
                raise AssertionError(f"a device ended by itself: {self.log.read_text()[-2000:]}")
            except TimeoutError:
                pass
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


async def test_devices_answer_every_window_of_a_question_and_what_is_private_counts_nowhere(
    pair: Deployed, tmp_path: Path
) -> None:
    question = standing_question(pair, 2, signal=SIGNAL)
    devices = [owned_device(pair, tmp_path, number, truth, signal=SIGNAL) for number, truth in enumerate(TRUTHS)]
    restless = [Restless(pair, number, truth) for number, truth in ((1, 1), (2, 2))]
    lives = [asyncio.create_task(one.live(question.schedule)) for one in restless]
    serving = [asyncio.create_task(device.serve()) for device in devices]
    try:
        records = await finished(pair, question)
        assert not any(one.done() for one in lives)
    finally:
        for task in (*serving, *lives):
            task.cancel()
        await asyncio.wait((*serving, *lives))
        for device in devices:
            await device.close()

    assert TRUTHS.count(HIDDEN) > 2 * MOST_NOISE, "one that is shown would pass for noise"
    check_chain(records)
    for record in records:
        assert all(abs(cell.raw - count) <= MOST_NOISE for cell, count in zip(record.cells, [4, 3, 0], strict=True))
        assert record.participants is not None
        assert abs(record.participants.raw - len(TRUTHS) - len(restless)) <= MOST_NOISE
    for spool in (*(device.spool for device in devices), *(one.spool.device() for one in restless)):
        assert [charge.sent for charge in spool.charges()] == [True] * len(records)
    for device in devices:  # Who shares the deployment asks as well, and is refused.
        [row] = [row for row in device.questions.rows() if row.question_id == question.question_id]
        assert row.state in (QuestionState.JOINED, QuestionState.ENDED)
