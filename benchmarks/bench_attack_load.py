"""Honest devices while somebody calls ten times as often: how long from nothing to receipts, and how many get them.

Two aggregators and a broker run as an operator's would; devices come at a steady rate, each with its own connection,
open a session at both aggregators and hand in a report. The hostile load comes from another process (hostile.py): of
devices that ask for sessions under bad signatures, of holders of other certificates, of strangers without one, and of
publishers at the broker, from one identity to a thousand. Ours is under load, the peer the same devices without it.
Stores lie in memory where the machine has such a directory: a disk that now and then syncs for a second would decide.
The hostile process has the lowest priority: what it takes of the cores itself is no attack on an aggregator. What a
hostile call costs there is told by bench_hostile.py.
"""

import asyncio
import itertools
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount_client.transport import Transport, Unreachable
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.certificates import Credential, Purpose, key_digest, key_pem
from fleetcount_protocol.channel.chain import WindowKey
from fleetcount_protocol.channel.session import DeviceIdentity, new_session, seal_instalment
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import UserName, new_report_id
from fleetcount_protocol.limits import SESSION_EXPIRY_STEP_S
from fleetcount_protocol.messages import Receipt, SessionAccepted
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.vdaf.prio3 import second_instalments
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.fields import Aggregator, Release, ReleaseKind
from fleetcount_protocol.window.window import Window, prio3_of
from fleetcount_protocol.wire.device import SESSION_REQUEST
from fleetcount_protocol.wire.device_stream import DEVICE_MESSAGE, DeviceMessage
from fleetcount_protocol.wire.topics import session_topic
from fleetcount_simulator.network.children import Child
from fleetcount_simulator.network.connections import own_transport
from fleetcount_simulator.network.parties import Parties, running
from one_window import draft, once
from rows import Row, quick, report, smoke

TIMES: Final = 10
"""Hostile calls for each honest device."""
BAD_REQUESTS: Final = 16
"""Session requests under bad signatures in a hostile call."""
VALUES: Final = 4
RATE: Final = 4.0 if smoke() else 20.0
STAGE_S: Final = 2.0 if smoke() else 6.0 if quick() else 20.0
PATIENCE_S: Final = 5.0 if smoke() else 30.0
"""How long a device tries before its report counts as kept out."""
SETTLED_S: Final = 1.0
"""A device that needs no longer finds an aggregator that has nothing else to do."""
IDENTITIES: Final = (16,) if smoke() else (1, 16, 1000)
ROLES: Final = {"device": "grpc", "certificate": "grpc", "stranger": "grpc", "mqtt": "mqtt"}
"""Who is hostile, and over what the honest devices come meanwhile."""
SHARED: Final = () if smoke() else ("device", "certificate")
"""Who is also tried from the address of the honest devices, as behind one address translation: nothing before TLS tells
them apart, so what holds there is what the machine can shake hands for."""
MUST_RATIO: Final = 3.0
AIM_RATIO: Final = 10.0
"""From the honest devices' own address."""
MUST_IN: Final = 0.995
MUST_MIB: Final = 512.0
MEMORY: Final = Path("/dev/shm")


@dataclass(frozen=True)
class Stage:
    """What became of the honest devices of one stage: seconds of those that got receipts, and how many came."""

    seconds: tuple[float, ...]
    devices: int

    @property
    def share_in(self) -> float:
        """Which part got its receipts."""
        return len(self.seconds) / self.devices

    @property
    def p99_ms(self) -> float:
        """Milliseconds that 99 of 100 stay below; those without receipts waited as long as they could."""
        waited = sorted((*self.seconds, *[PATIENCE_S] * (self.devices - len(self.seconds))))
        return 1000 * waited[math.ceil(0.99 * len(waited)) - 1]


def _descriptors(pid: int) -> float:
    """Return which part of a process's descriptors is in use."""
    row = next(one for one in Path(f"/proc/{pid}/limits").read_text().splitlines() if "open files" in one)
    return len(list(Path(f"/proc/{pid}/fd").iterdir())) / int(row.split()[3])


class Watched:
    """The largest memory (MiB) of an aggregator and the largest part of its descriptors that was in use."""

    def __init__(self, processes: Sequence[Child]) -> None:
        self._pids = [one.process.pid for one in processes]
        self.descriptors = 0.0
        self._task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while True:
            self.descriptors = max(self.descriptors, *map(_descriptors, self._pids))
            await asyncio.sleep(0.25)

    def peak_mib(self) -> float:
        """Return the peak resident memory so far of the larger one."""
        rows = [line for pid in self._pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        return max(int(row.split()[1]) for row in rows if row.startswith("VmHWM")) / 1024

    def stop(self) -> None:
        """Look no longer."""
        self._task.cancel()


def question(parties: Parties, round_one_s: int = 7_200) -> Window:
    """Ask a question whose round one is open for as long as this runs, or for so long; return the only window."""
    domain = Categories(names=tuple(f"place {number}" for number in range(1, VALUES + 1)))
    asked = draft(
        parties.deployment.aggregators,
        domain,
        once(math.ceil(time.time()) + 3, round_one_s, 7_260 - round_one_s, expiry_s=1_740),
        sampling_rate=Fraction(2, 5),
        deployment=parties.deployment.name,
        release=Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1, 2), level=Fraction(19, 20)),
    )
    signed = parties.submit(asked)
    return window_at(signed.question, 0)


@lru_cache
def rest_of(window: Window, position: int) -> tuple[bytes, bytes]:
    """Return a public share and an aggregator's part of round two: who takes a part in does not look into it."""
    prio3 = prio3_of(window.design)
    public, parts = second_instalments(prio3, b"", bytes(prio3.nonce_size), bytes(prio3.rand_size), 0, 0)
    return public, parts[position]


class Device:
    """One honest device: from nothing to a receipt of every aggregator."""

    def __init__(self, parties: Parties, window: Window, kind: str) -> None:
        deployment = parties.deployment
        self._window = window
        self._aggregators = deployment.aggregators
        self._identity = DeviceIdentity.generate(deployment.authorities.devices)
        self._transport: Transport = own_transport(
            kind,
            deployment.aggregators,
            self._identity,
            deployment=deployment.name,
            broker=deployment.mqtt_broker,
            authorities=(deployment.root / "ca" / "aggregators.crt").read_bytes(),
            call_timeout_s=5.0,
        )
        self._report = new_report_id(window.window_id, key_digest(self._identity.certificate), SystemRandom())
        self._keys: dict[int, WindowKey] = {}

    async def hand_in(self) -> float | None:
        """Return after how many seconds all receipts were there; nothing if they did not come in time."""
        return await self._everywhere(self._at)

    async def hand_in_rest(self) -> float | None:
        """Do the same in round two, over a new connection: between rounds a device closes its own."""
        return await self._everywhere(self._rest_at)

    async def _everywhere(self, at: Callable[[int, Aggregator], Awaitable[None]]) -> float | None:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(PATIENCE_S):
                parts = enumerate(self._aggregators)
                await asyncio.gather(*(at(position, aggregator) for position, aggregator in parts))
        except TimeoutError:
            return None
        finally:
            with suppress(Unreachable):
                await self._transport.close()
        return time.perf_counter() - began

    async def _at(self, position: int, aggregator: Aggregator) -> None:
        request, opening = new_session(
            aggregator, aggregator.hpke_keys[0], self._identity, on_the_hour(self._window.expiry), SystemRandom()
        )
        accepted = await self._until(SessionAccepted, lambda: self._transport.open_sessions(aggregator, [request]))
        self._keys[position] = opening.finish(accepted).window_key
        await self._deliver(position, 1, b"", bytes(8 * (VALUES + 1) if position == 0 else 32))

    async def _rest_at(self, position: int, aggregator: Aggregator) -> None:
        del aggregator
        public, part = rest_of(self._window, position)
        await self._deliver(position, 2, public, part)

    async def _deliver(self, position: int, number: int, public: bytes, part: bytes) -> None:
        """Seal a part of round one or two and send it until its receipt is there."""
        key, window = self._keys[position], self._window
        sealed = seal_instalment(key, window.window_id, self._report, number, position, public, part)
        await self._until(Receipt, lambda: self._transport.upload(window, position, [sealed]))

    async def _until(self, wanted: type[Any], ask: Any) -> Any:
        """Ask again, as a device does, until the answer is the one that is wanted."""
        while True:
            with suppress(Unreachable):
                [answer] = await ask()
                if isinstance(answer, wanted):
                    return answer
                if answer.reason not in (RejectReason.BUSY, RejectReason.TOO_EARLY, RejectReason.UNKNOWN_WINDOW):
                    raise AssertionError(f"an honest device is refused: {answer.reason.label}")
            await asyncio.sleep(0.2)


async def honest(parties: Parties, window: Window, kind: str) -> Stage:
    """Let devices come at their rate for one stage; return what became of them."""
    devices = [Device(parties, window, kind) for _ in range(int(RATE * STAGE_S))]
    loop = asyncio.get_running_loop()
    began, coming = loop.time(), list[asyncio.Task[float | None]]()
    for number, device in enumerate(devices):
        await asyncio.sleep(max(0.0, began + number / RATE - loop.time()))
        coming.append(asyncio.create_task(device.hand_in()))
    taken = await asyncio.gather(*coming)
    return Stage(tuple(one for one in taken if one is not None), len(devices))


async def settled(parties: Parties, window: Window, kind: str) -> None:
    """Wait until the window is open and nothing of the load before is left, or for long enough."""
    for _ in range(20):
        if (await Device(parties, window, kind).hand_in() or PATIENCE_S) < SETTLED_S:
            return


def identities(parties: Parties, role: str, count: int) -> list[tuple[str, str, str]]:
    """Return so many keys and certificates as a role has, and with each a message under bad signatures."""
    authorities = parties.deployment.authorities
    aggregator = parties.deployment.aggregators[0]
    found = []
    for number in range(count):
        if role == "certificate":  # Even ones read at the devices' port, odd ones call at the peers'.
            issued = (authorities.aggregators if number % 2 else authorities.devices).issue_new(
                Purpose.RELAY if number % 2 else Purpose.READER, f"other-{number}", ["127.0.0.1"]
            )
        else:
            issued = authorities.devices.issue_device()
        device = DeviceIdentity(certificate=issued.certificate, private_key=issued.private_key)
        request, _ = new_session(
            aggregator, aggregator.hpke_keys[0], device, on_the_hour(time.time() + 3_600), SystemRandom()
        )
        bad = replace(request, signature=device.private_key.sign(b"something else", _ecdsa()))
        # The message of a publisher holds one request, a call as many as are worth a worker's time.
        many = DeviceMessage(requests=_others(bad))
        data = SESSION_REQUEST.encode(bad) if role == "mqtt" else DEVICE_MESSAGE.encode(many)
        found.append((*pem_of(issued), data.hex()))
    return found


def _others(bad: Any) -> tuple[Any, ...]:
    """Return requests that differ, none of them signed."""
    return tuple(replace(bad, expiry=bad.expiry + number * SESSION_EXPIRY_STEP_S) for number in range(BAD_REQUESTS))


def on_the_hour(moment: float) -> int:
    """Return the first whole hour from a moment on, when a session may end."""
    return -(-int(moment) // SESSION_EXPIRY_STEP_S) * SESSION_EXPIRY_STEP_S


def _ecdsa() -> Any:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.ECDSA(hashes.SHA256())


def pem_of(issued: Credential | DeviceIdentity) -> tuple[str, str]:
    """Return the key and the certificate of an identity as PEM."""
    return key_pem(issued.private_key).decode(), issued.certificate.public_bytes(Encoding.PEM).decode()


@asynccontextmanager
async def hostile(
    parties: Parties, role: str, count: int, root: Path, *, own_addresses: bool = True
) -> AsyncIterator[dict[str, int]]:
    """Run the hostile load while the block does; fill in what became of its calls afterwards.

    Each identity comes from an address of its own, or all of them from that of the honest devices.
    """
    deployment = parties.deployment
    spec = {
        "role": role,
        "rate": TIMES * RATE * len(deployment.plans),
        "own_addresses": own_addresses,
        "broker": deployment.mqtt_broker,
        "places": [
            {
                "device": f"{plan.host}:{plan.device_port}",
                "peer": f"{plan.host}:{plan.peer_port}",
                "topics": [
                    session_topic(deployment.name, plan.aggregator_id, UserName(f"publisher-{who}"))
                    for who in range(count)
                ],
            }
            for plan in deployment.plans
        ],
        "identities": identities(parties, role, count),
    }
    path = root / "hostile.json"
    path.write_text(json.dumps(spec))
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("hostile.py")),
        str(path),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    if child.stdin is None or child.stdout is None:
        raise AssertionError("pipes were asked for")
    ended: dict[str, int] = {}
    try:
        if await child.stdout.readline() != b"ready\n":
            raise AssertionError("the hostile load did not begin")
        yield ended
        child.stdin.write(b"enough\n")
        ended |= json.loads(await child.stdout.readline())
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def measured(root: Path) -> None:
    """Report all rows."""
    async with running(root, 2, deployment="load", broker="auto") as parties:
        watched = Watched([await parties.ready(position) for position in range(2)])
        window = question(parties)
        for role, kind in ROLES.items():
            await settled(parties, window, kind)
            idle = await honest(parties, window, kind)
            for count, own in itertools.product(IDENTITIES, (True, False) if role in SHARED else (True,)):
                async with hostile(parties, role, count, root, own_addresses=own) as ended:
                    loaded = await honest(parties, window, kind)
                name = role if own else f"{role} at the devices' address"
                _rows(name, kind, count, idle, loaded, ended, AIM_RATIO if not own else None)
                await settled(parties, window, kind)
        watched.stop()
        limits(watched.peak_mib(), watched.descriptors)


def _rows(
    role: str, kind: str, count: int, idle: Stage, loaded: Stage, ended: dict[str, int], aim: float | None
) -> None:
    said = ", ".join(f"{number:,} {what}" for what, number in sorted(ended.items())) or "none"
    each = f" of {BAD_REQUESTS} session requests under bad signatures" if role.startswith("device") else ""
    note = (
        f"{loaded.devices} devices over {kind}, {RATE:.0f} a second; at each aggregator {TIMES} hostile calls{each} for"
        f" each of them; of those: {said}"
    )
    path = f"attack load: {count:,} x {role}"
    report(
        Row(
            path=f"{path}, honest p99 of session and receipt",
            ours=loaded.p99_ms,
            unit="ms",
            peer="without the load",
            peer_value=idle.p99_ms,
            ratio=loaded.p99_ms / idle.p99_ms,
            must=MUST_RATIO if aim is None else None,
            aim=aim,
            larger_is_better=False,
            note=note,
        )
    )
    report(
        Row(
            path=f"{path}, honest reports in",
            ours=100 * loaded.share_in,
            unit="%",
            peer="all of them",
            peer_value=100.0,
            ratio=loaded.share_in,
            must=MUST_IN,
            note=f"without the load {100 * idle.share_in:.1f} %; each device tries for {PATIENCE_S:.0f} s",
        )
    )


def limits(peak_mib: float, descriptors: float) -> None:
    """Report what the aggregators took at most over all stages."""
    for name, ours, unit, limit in (
        ("peak memory of an aggregator", peak_mib, "MiB", MUST_MIB),
        ("descriptors of an aggregator in use", 100 * descriptors, "%", 100.0),
    ):
        report(
            Row(
                path=f"attack load: {name}",
                ours=ours,
                unit="MiB" if unit == "MiB" else "%",
                peer="the project's own limit",
                peer_value=limit,
                ratio=ours / limit,
                must=1.0,
                larger_is_better=False,
                note="its main process, over all stages",
            )
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as directory:
        asyncio.run(measured(Path(directory)))
