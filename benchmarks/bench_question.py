"""What standing questions cost an aggregator that nobody answers: CPU of two real ones with many open questions, idle.

Starts two aggregators, hands the leader the question, waits until the helper has all of them too, and reads the CPU of
both from /proc over some seconds. Decides nothing.
"""

import asyncio
import contextlib
import hashlib
import os
import tempfile
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from fleetcount_client.transport import Unreachable
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.question.fields import Coin, Participants, Schedule
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.fields import Mode, Release, ReleaseKind, UploadStyle
from fleetcount_simulator.network.connections import own_transport
from fleetcount_simulator.network.parties import Parties, running
from rows import Row, quick, report, smoke

OPEN = 10 if smoke() else 100 if quick() else 1000
WATCHED_S = 2 if smoke() else 10 if quick() else 60
MUST_PERCENT = 5.0
"""The project's own: of a core, for 1,000 question; the aim is a fifth of it."""
SPREAD_S = 600
FIRST_IN_S = 7200


def question(parties: Parties, number: int) -> Question:
    """Return a month of hourly windows about a signal of its own; the first opens long after this ends."""
    return Question(
        name=f"question {number}",
        deployment=parties.deployment.name,
        signal=f"Vehicle.Benchmark{number}",
        domain=Categories(names=("yes", "no")),
        mode=Mode.DIRECT,
        mechanism=None,
        schedule=Schedule(
            first=int(time.time()) // 60 * 60 + FIRST_IN_S,
            every_s=3600,
            windows=720,
            round_one_s=600,
            round_two_s=0,
            expiry_s=3600,
        ),
        coin=Coin.WINDOW,
        participants=Participants.HIDDEN,
        delta=Fraction(1, 10**9),
        release=Release(
            kind=ReleaseKind.GAUSSIAN, noise_epsilon=None, noise_variance=Fraction(662), level=Fraction(19, 20)
        ),
        upload_style=UploadStyle.TWO_INSTALMENTS,
        time_precision_s=60,
        min_batch_size=2,
        aggregators=tuple(replace(one, hpke_keys=()) for one in parties.deployment.aggregators),
        verify_seed_digest=Digest(hashlib.sha256(bytes(32)).digest()),
    )


async def offered_everywhere(parties: Parties, number: int) -> None:
    """Wait until the leader offers so many questions, which it does once the helper has them."""
    deployment = parties.deployment
    authorities = (deployment.root / "ca" / "aggregators.crt").read_bytes()
    identity = DeviceIdentity.generate(deployment.authorities.devices)
    transport = own_transport(
        "grpc",
        deployment.aggregators[:1],
        identity,
        deployment=deployment.name,
        broker="",
        authorities=authorities,
        call_timeout_s=60.0,
    )
    try:
        async with asyncio.timeout(SPREAD_S):
            while True:
                with contextlib.suppress(Unreachable):
                    if len(await transport.list_questions()) == number:
                        return
                await asyncio.sleep(1)
    finally:
        await transport.close()


def cpu_s(process: int) -> float:
    """Return the CPU seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def idle_percent(directory: Path) -> float:
    """Return the percentage of a core that the busier aggregator takes."""
    async with running(directory, 2) as parties:
        processes = [(await parties.ready(position)).process.pid for position in range(2)]
        for number in range(OPEN):
            parties.submit(question(parties, number))
        await offered_everywhere(parties, OPEN)
        before = [cpu_s(process) for process in processes]
        await asyncio.sleep(WATCHED_S)
        return max(100 * (cpu_s(process) - was) / WATCHED_S for process, was in zip(processes, before, strict=True))


def main() -> None:
    """Report the row."""
    with tempfile.TemporaryDirectory() as directory:
        ours = asyncio.run(idle_percent(Path(directory)))
    report(
        Row(
            path=f"aggregator: {OPEN:,} open questions, idle, of a core",
            ours=ours,
            unit="%",
            peer="the project's own limit",
            peer_value=MUST_PERCENT,
            ratio=ours / MUST_PERCENT,
            must=1,
            aim=0.2,
            larger_is_better=False,
            note=f"720 hourly windows each, of two aggregators the busier; {WATCHED_S} s",
        )
    )


if __name__ == "__main__":
    main()
