"""What is published is the same for ever and checkable by strangers; what is secret is in nothing anybody can read."""

import asyncio
import base64
import json
import logging
import os
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import aiomqtt
import pytest
from cryptography.exceptions import InvalidSignature
from fleetcount.run.health import ask_page
from fleetcount_protocol.channel.certificates import key_digest
from fleetcount_protocol.limits import VERIFY_KEY_BYTES
from fleetcount_protocol.question.question import window_at, window_verify_key
from fleetcount_protocol.window.domain import Bins
from fleetcount_protocol.window.fields import Release, ReleaseKind
from fleetcount_protocol.wire.device_columns import UPLOAD
from fleetcount_protocol.wire.topics import parse_topic

from tests.support.broker import RunningBroker
from tests.support.deployment import Deployed
from tests.support.fleet import Fleet, LiveDevice, offer_of
from tests.support.oracle import accepted_reports
from tests.support.processes import wait_until
from tests.support.wire_reader import verify_record

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

VALUES = 20
FRACTION_OF_A_READING = 0.7351902
"""Every truth is N - 1 + this: a number that has no other reason to appear anywhere."""


@asynccontextmanager
async def overheard(broker: RunningBroker) -> AsyncIterator[list[tuple[str, bytes]]]:
    """Everything a curious broker sees, as (topic, payload)."""
    seen: list[tuple[str, bytes]] = []
    async with aiomqtt.Client("127.0.0.1", broker.port, identifier="curious") as client:
        await client.subscribe("fleetcount/#", qos=1)

        async def listen() -> None:
            async for message in client.messages:
                seen.append((str(message.topic), bytes(message.payload)))

        listener = asyncio.create_task(listen())
        try:
            yield seen
        finally:
            listener.cancel()
            with suppress(asyncio.CancelledError):
                await listener


def canaries(pair: Deployed, fleet: Fleet, seed: bytes, verify_key: bytes) -> dict[str, bytes]:
    """Return every secret of this run under a name: as bytes, in hexadecimal, in base64, and readings as text."""
    secrets = {"seed of verify keys": seed, "verify key": verify_key}
    for live in fleet.devices:
        drawn = [one for one in live.coins.draws if len(one) not in (8, 16)]
        assert len(drawn) == 2 * pair.count + 1, "a secret and an ephemeral key a session, and the report's seed"
        secrets |= {f"secret {live.truth}/{number}": one for number, one in enumerate(drawn)}
        secrets[f"coin {live.truth}"] = live.coins.number.to_bytes(8, "big")
    found = {f"{name} {form}": code(one) for name, one in secrets.items() for form, code in FORMS.items()}
    found |= {f"coin {live.truth} in words": str(live.coins.number).encode() for live in fleet.devices}
    found |= {f"reading {live.truth}": repr(reading_of(live.truth)).encode() for live in fleet.devices}
    for key in sorted(pair.written.root.rglob("*.key")):
        lines = key.read_bytes().splitlines()
        body = b"".join(lines[1:-1] or lines)  # Some key files are one line of base64, without a frame.
        found[f"key {key}"] = body[-44:]
    return found


def devices_of(fleet: Fleet) -> dict[str, bytes]:
    """Return what names each device and its report, in every form."""
    named = {f"report of {live.truth}": bytes(live.report_id) for live in fleet.devices}
    named |= {f"key of {live.truth}": bytes(key_digest(live.device._identity.certificate)) for live in fleet.devices}
    return {f"{name} {form}": code(one) for name, one in named.items() for form, code in FORMS.items()}


FORMS = {
    "raw": bytes,
    "hex": lambda one: one.hex().encode(),
    "base64": lambda one: base64.b64encode(one).rstrip(b"=")[:-1],
}


def says_ready(page: str) -> dict[str, Any] | None:
    """Return what /readyz says, once it says yes."""
    found = ask_page(page, "/readyz", "checks")
    return found if found is not None and found["ready"] else None


def reading_of(number: int) -> float:
    return number - 1 + FRACTION_OF_A_READING


def leaks(secrets: Mapping[str, bytes], artefacts: Mapping[str, bytes]) -> list[str]:
    return [f"{name} in {place}" for place, data in artefacts.items() for name, one in secrets.items() if one in data]


def files(paths: Iterable[Path]) -> dict[str, bytes]:
    """Return what lies in files; one may go meanwhile, since others ask the same aggregators."""
    found: dict[str, bytes] = {}
    for path in paths:
        with suppress(FileNotFoundError):
            found |= {str(path): path.read_bytes()} if path.is_file() else {}
    return found


async def test_a_release_is_one_for_ever_signed_for_strangers_and_nothing_secret_is_anywhere(
    pair: Deployed, broker: RunningBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    noise = Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1, 2), level=Fraction(19, 20))
    domain = Bins(edges=tuple(map(Fraction, range(VALUES + 1))), open_above=False, unit="")
    seed = os.urandom(VERIFY_KEY_BYTES)
    async with overheard(broker) as seen:
        window = window_at(pair.submit(pair.question(VALUES, release=noise, domain=domain), seed), 0)
        fleet = Fleet(pair, tmp_path, window.mechanism, ["mqtt", "mqtt", "mqtt", "grpc"], reading=reading_of)
        await fleet.answer(await offer_of(pair, window))
        statuses = await pair.ended(window)
        answers = [await pair.release(window, position) for position in (0, 1, 0, 1)]
    assert fleet.failures == []
    for child in pair.children:
        page = f"127.0.0.1:{child.ready()['metrics_port']}"
        ready = await asyncio.to_thread(wait_until, lambda page=page: says_ready(page), f"{child.name} is ready")
        assert {one["name"] for one in ready["checks"]} >= {"store", "keys", "peers", "broker", "clock"}
        os.kill(child.pid, signal.SIGHUP)
        await asyncio.to_thread(wait_until, lambda log=child.log: "log_level_changed" in log.read_text(), "the level")

    assert answers == [answers[0]] * 4
    record, signatures = answers[0].record, answers[0].signatures
    read = verify_record(record, signatures)
    assert read.window_id == window.window_id
    assert read.public_keys == tuple(one.signing_public_key for one in window.aggregators)
    assert len(read.cells) == VALUES
    assert len(read.sentences) == 6
    with pytest.raises(InvalidSignature):
        verify_record(record[:-1] + bytes([record[-1] ^ 1]), signatures)
    with pytest.raises(InvalidSignature):
        verify_record(record, signatures[::-1])

    secrets = canaries(pair, fleet, seed, window_verify_key(seed, window.window_id))
    metrics = [pair.children[position].ready()["metrics_port"] for position in range(2)]
    assert len(set(metrics)) == 2
    artefacts = files(pair.root.glob("*.log"))
    artefacts |= {f"{one.name}'s output": one.said() + repr(one.ready()).encode() for one in pair.children}
    artefacts |= {"broker's output": broker.child.said()}
    artefacts |= files(one for position in range(2) for one in pair.state_directory(position).iterdir())
    artefacts |= files(broker.child.log.parent.iterdir())
    artefacts |= {f"message {n} on {topic}": topic.encode() + b"\n" + data for n, (topic, data) in enumerate(seen)}
    artefacts |= {"record": record, "statuses": repr(statuses).encode(), "devices": caplog.text.encode()}
    artefacts |= {"reprs": repr([(live.device, live.outcome, live.device.spool) for live in fleet.devices]).encode()}
    assert any("/report/" in topic for topic, _ in seen)
    assert len(caplog.text) > 0
    assert leaks(secrets, artefacts) == []
    logs = files(pair.root.glob("*.log"))
    assert {json.loads(line)["party"] for log in logs.values() for line in log.splitlines()} == {"alpha", "beta"}
    followed = [
        name for name, log in logs.items() if b"window_released" in log and str(window.window_id).encode() in log
    ]
    assert len(followed) == 2
    assert leaks(devices_of(fleet), logs) == []
    # The scan finds what is there: a secret beside other text, in each of its forms.
    assert all(leaks({name: one}, {"planted": b"x" + one + b"y"}) for name, one in secrets.items())
    # Nobody learns the exact number of reports from a log either.
    assert len(await accepted_reports(pair.store_place(0), window.window_id)) == VALUES

    assert_sizes_say_nothing(seen, {bytes(live.report_id): live for live in fleet.devices}, window.window_id.hex())


def assert_sizes_say_nothing(seen: list[tuple[str, bytes]], devices: dict[bytes, LiveDevice], window: str) -> None:
    """A curious broker sees one size an aggregator and round, whatever the coins said, and nothing it saw twice."""
    sizes: dict[tuple[str, int], dict[bool, set[int]]] = defaultdict(lambda: {True: set(), False: set()})
    ciphertexts: dict[tuple[str, int, bytes], set[bytes]] = defaultdict(set)
    for topic, payload in seen:
        if "/report/" in topic and topic.endswith(window):
            [instalment], aggregator = UPLOAD.decode(payload).instalments(), parse_topic(topic).aggregator_id
            sampled = devices[bytes(instalment.report_id)].coins.sampled
            sizes[aggregator, instalment.round][sampled].add(len(payload))
            ciphertexts[aggregator, instalment.round, bytes(instalment.report_id)].add(instalment.ciphertext)
    assert len(sizes) == 4
    for place, by_coin in sizes.items():
        assert by_coin[True] == by_coin[False], place
        assert len(by_coin[True]) == 1, place
    every = [one for versions in ciphertexts.values() for one in versions]
    assert len(every) == len(set(every)) == len(ciphertexts)
