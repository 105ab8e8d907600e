#!/usr/bin/env python3
"""Writes tests/vectors/wire/*.json: bytes of every layout, good and bad, for implementers in other languages.

Run once when a layout is added; the files are data, replayed by tests/protocol/wire/test_wire_vectors.py, and a change
of one is a change of the protocol. Keys in them protect nothing.
"""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fleetcount_protocol import release  # noqa: E402 - path
from fleetcount_protocol.channel import certificates, deny_list, receipts, session  # noqa: E402 - path
from fleetcount_protocol.errors import PeerError, TaskError  # noqa: E402 - path
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, TaskId  # noqa: E402 - path
from fleetcount_protocol.release import set_digest  # noqa: E402 - path
from fleetcount_protocol.series import derive, key_list, orders, series_json  # noqa: E402 - path
from fleetcount_protocol.series import signed_file as signed_series_file  # noqa: E402 - path
from fleetcount_protocol.series.series import decode_series  # noqa: E402 - path
from fleetcount_protocol.task import signed_file, task_json  # noqa: E402 - path
from fleetcount_protocol.task.task import decode_task  # noqa: E402 - path

from tests.support import protocol_samples as samples  # noqa: E402 - path
from tests.support import series_samples, wire_messages  # noqa: E402 - path

TARGET = ROOT / "tests" / "vectors" / "wire"


def cut_and_flipped(data: bytes, places: int = 12) -> Iterator[dict[str, str]]:
    """Yield a few ways to spoil bytes: cut, appended, and one bit flipped at places spread over the whole."""
    yield {"why": "empty", "data": ""}
    yield {"why": "last byte cut", "data": data[:-1].hex()}
    yield {"why": "one byte appended", "data": (data + b"\0").hex()}
    for place in range(places):
        index = place * (len(data) - 1) // (places - 1)
        changed = bytearray(data)
        changed[index] ^= 0x80
        yield {"why": f"highest bit of byte {index} flipped", "data": changed.hex()}


def refused_only(decode: Any, candidates: Iterator[dict[str, str]]) -> list[dict[str, str]]:
    """Return the candidates that decode to nothing; another valid message is no bad vector."""
    bad = []
    for candidate in candidates:
        try:
            decode(bytes.fromhex(candidate["data"]))
        except PeerError:
            bad.append(candidate)
    return bad


def tasks() -> list[dict[str, Any]]:
    """Return tasks of every kind with their ids and signatures."""
    return [
        {
            "name": name,
            "canonical": task.canonical.hex(),
            "task_id": task.task_id.hex(),
            "task": task_json.task_to_json(task),
            "signing_keys": [samples.seed_bytes(f"signing {place}").hex() for place in range(len(task.aggregators))],
            "signatures": [signature.hex() for signature in samples.sign_all(task).signatures],
            "file": signed_file.encode_signed_task(samples.sign_all(task)).hex(),
            "bad": refused_only(decode_task, cut_and_flipped(task.canonical)),
        }
        for name, task in samples.every_task().items()
    ]


def series() -> list[dict[str, Any]]:
    """Return series of every kind with the tasks and verify keys of some of their windows."""
    found = []
    for name, made in series_samples.every_series().items():
        signed = series_samples.sign_everywhere(made)
        last = made.schedule.windows - 1
        survivors = {1: (1, 5), last: (4, 23)} if made.drill_down else {}
        tasks = [derive.window_task(made, index, survivors.get(index, ())) for index in sorted({0, min(1, last), last})]
        found.append(
            {
                "name": name,
                "canonical": made.canonical.hex(),
                "series_id": made.series_id.hex(),
                "series": series_json.series_to_json(made),
                "seed": series_samples.SEED.hex(),
                "signatures": [signature.hex() for signature in signed.signatures],
                "file": signed_series_file.encode_signed_series(signed).hex(),
                "windows": [
                    {
                        "index": task.series.index,
                        **({"survivors": survivors[task.series.index]} if task.series.index in survivors else {}),
                        "canonical": task.canonical.hex(),
                        "task_id": task.task_id.hex(),
                        "verify_key": derive.window_verify_key(series_samples.SEED, task.task_id).hex(),
                        "file": signed_file.encode_signed_task(samples.sign_all(task)).hex(),
                        "bad": refused_only(decode_task, cut_and_flipped(task.canonical)),
                    }
                    for task in tasks
                    if task.series
                ],
                "bad": refused_only(decode_series, cut_and_flipped(made.canonical)),
            }
        )
    return found


def key_lists() -> list[dict[str, Any]]:
    """Return key lists with the key they give for some windows, null where there is none."""
    found = []
    for place in range(2):
        signed = key_list.sign_key_list(series_samples.key_list(place), samples.signing_key(place))
        data = key_list.encode_signed_key_list(signed)
        early, late = signed.key_list.keys
        at = (early.not_before, late.not_before - 60, late.not_before, late.not_after - 600, late.not_after)
        found.append(
            {
                "name": str(signed.key_list.aggregator_id),
                "canonical": signed.key_list.canonical.hex(),
                "signing_key": samples.seed_bytes(f"signing {place}").hex(),
                "signature": signed.signature.hex(),
                "file": data.hex(),
                "keys": [{"opens": one, "closes": one + 600, "key_id": _key_id(signed.key_list, one)} for one in at],
                "bad": refused_only(key_list.decode_signed_key_list, cut_and_flipped(data)),
            }
        )
    return found


def _key_id(listed: key_list.KeyList, opens: int) -> int | None:
    try:
        return key_list.key_for(listed, opens, opens + 600).key_id
    except TaskError:
        return None


def order_files() -> list[dict[str, Any]]:
    """Return orders about one series, given one after the other, with the windows skipped after each."""
    made = series_samples.sampling_series()
    steps = (
        ("pause", 1, orders.OrderAction.PAUSE, 10, 0),
        ("resume", 2, orders.OrderAction.RESUME, 24, 0),
        ("pause_again", 3, orders.OrderAction.PAUSE, 300, 0),
        ("resume_before", 4, orders.OrderAction.RESUME, 290, 0),
        ("stop", 1, orders.OrderAction.STOP, 500, 1),
        ("pause_last", 9, orders.OrderAction.PAUSE, 490, 0),
    )
    given, found = [], []
    for name, number, action, window, place in steps:
        order = series_samples.order(made, number, action, window, place)
        signed = orders.sign_order(order, samples.signing_key(place))
        data = orders.encode_signed_order(signed)
        given.append(order)
        found.append(
            {
                "name": name,
                "series": made.canonical.hex(),
                "canonical": order.canonical.hex(),
                "signature": signed.signature.hex(),
                "file": data.hex(),
                "skipped": [[one.start, one.stop] for one in orders.skipped_windows(made, given)],
                "bad": refused_only(orders.decode_signed_order, cut_and_flipped(data)),
            }
        )
    return found


def sessions() -> list[dict[str, Any]]:
    """Return session requests whose seal can be opened with the private key given."""
    from fleetcount_mechanisms.randomness import SeededRandom

    now = datetime(2027, 1, 15, tzinfo=UTC)
    authority = certificates.CertificateAuthority.create("Vectors", now)
    credential = authority.issue_device("d-vector", now)
    device = session.DeviceIdentity(certificate=credential.certificate, private_key=credential.private_key)
    task = samples.every_task()["sampling_post_quantum"]
    privates = [samples.seed_bytes("sealing 0"), samples.seed_bytes("hybrid", 96)]
    found = []
    for aggregator, private in zip(task.aggregators, privates, strict=True):
        expiry = int(now.timestamp()) + 86_400
        request, secret = session.new_session(aggregator, aggregator.hpke_keys[0], device, expiry, SeededRandom(1))
        found.append(
            {
                "aggregator_id": str(aggregator.aggregator_id),
                "key_id": request.key_id,
                "private_key": private.hex(),
                "authority": certificates.certificate_der(authority.certificate).hex(),
                "certificate": request.certificate.hex(),
                "device_key_digest": certificates.key_digest(device.certificate).hex(),
                "expiry": expiry,
                "sealed_secret": request.sealed_secret.hex(),
                "signed_bytes": request.signed_bytes.hex(),
                "signature": request.signature.hex(),
                "session_id": request.session_id.hex(),
                "secret": secret.secret.hex(),
            }
        )
    return found


def deny_lists() -> list[dict[str, Any]]:
    """Return signed deny lists, an empty one too, with their authority."""
    now = datetime(2027, 1, 15, tzinfo=UTC)
    authority = certificates.CertificateAuthority.create("Vectors", now)
    issued_at = int(now.timestamp())
    found = []
    for name, count in (("nobody", 0), ("one", 1), ("three", 3)):
        keys = [Digest(samples.seed_bytes(f"denied {number}")) for number in range(count)]
        signed = deny_list.sign_deny_list(
            authority, keys, number=issued_at + count, issued_at=issued_at, expires=issued_at + 7 * 86_400
        )
        listed = signed.deny_list
        found.append(
            {
                "name": name,
                "authority": certificates.certificate_der(authority.certificate).hex(),
                "number": listed.number,
                "issued_at": listed.issued_at,
                "expires": listed.expires,
                "keys": [key.hex() for key in listed.keys],
                "canonical": listed.canonical.hex(),
                "signature": signed.signature.hex(),
                "file": signed.encode().hex(),
                "bad": refused_only(deny_list.decode_signed_deny_list, cut_and_flipped(signed.encode())),
            }
        )
    return found


def reports() -> list[dict[str, Any]]:
    """Return sealed report parts with every intermediate value, their digests and receipts."""
    found = []
    for round_number, share, part in ((1, 0, 32), (2, 64, 64), (0, 64, 96), (0, 160, 1)):
        secret = samples.session_secret()
        task_id, report_id = TaskId(samples.seed_bytes("task")), ReportId(samples.seed_bytes("report", 16))
        public_share, plaintext = samples.seed_bytes("public share", share), samples.seed_bytes("part", part)
        sealed = session.seal_instalment(secret, task_id, report_id, round_number, 1, public_share, plaintext)
        receipt = receipts.make_receipt(secret, sealed)
        found.append(
            {
                "secret": secret.secret.hex(),
                "session_id": secret.session_id.hex(),
                "task_id": task_id.hex(),
                "report_id": report_id.hex(),
                "round": round_number,
                "position": 1,
                "public_share": public_share.hex(),
                "plaintext": plaintext.hex(),
                "report_key": session.report_key(secret, task_id, report_id, round_number).hex(),
                "ciphertext": sealed.ciphertext.hex(),
                "instalment_digest": sealed.digest.hex(),
                "receipt_key": secret.receipt_key.hex(),
                "receipt_mac": receipt.mac.hex(),
            }
        )
    return found


def digests() -> dict[str, Any]:
    """Return a set digest and a commitment with their inputs."""
    items = [
        (
            ReportId(samples.seed_bytes(f"id {n}", 16)),
            set_digest.public_share_digest(samples.seed_bytes(f"share {n}", 64)),
        )
        for n in range(5)
    ]
    vector, blind = bytes(range(24)), samples.seed_bytes("blind")
    digest = set_digest.set_digest(items)
    made = release.commitment(
        vector, blind, task_id=wire_messages.TASK, aggregator_id=AggregatorId("alpha"), set_digest=digest
    )
    return {
        "set": [{"report_id": one.hex(), "public_share_digest": share.hex()} for one, share in items],
        "set_digest": digest.hex(),
        "empty_set_digest": set_digest.set_digest([]).hex(),
        "commitment": {
            "task_id": wire_messages.TASK.hex(),
            "aggregator_id": "alpha",
            "set_digest": digest.hex(),
            "blind": blind.hex(),
            "vector": vector.hex(),
            "commitment": made.hex(),
        },
    }


def records() -> list[dict[str, Any]]:
    """Return records of several kinds of task, windows of series too, with signatures and their JSON form."""
    found = []
    names = ("sampling_grid", "mangat", "one_sided", "sampling_exact")
    every = {name: samples.record(samples.every_task()[name]) for name in names}
    direct = series_samples.every_series()["direct"]
    every["window"] = series_samples.window_record(series_samples.every_series()["response"], 5)
    every["window_first"] = series_samples.window_record(direct, 0)
    before = release.ChainLink(previous=every["window_first"].digest, previous_index=0, missing=())
    every["window_second"] = series_samples.window_record(direct, 1, chain=before)
    for name, made in every.items():
        keys = [samples.signing_key(place) for place in range(len(made.task.aggregators))]
        signatures = [release.sign_record(made, key) for key in keys]
        found.append(
            {
                "name": name,
                "canonical": made.canonical.hex(),
                "signatures": [signature.hex() for signature in signatures],
                "json": release.record_to_json(made, signatures),
                "bad": refused_only(release.decode_record, cut_and_flipped(made.canonical, 24)),
            }
        )
    return found


def messages() -> list[dict[str, Any]]:
    """Return every protobuf message in its canonical form, and spoilt forms of it."""
    found = []
    for name, (message, value) in wire_messages.MESSAGES.items():
        data = message.encode(value)
        unknown = {"why": "unknown field 31", "data": (data + b"\xf8\x01\x01").hex()}
        spoilt = [unknown, *cut_and_flipped(data)] if data else [unknown]
        found.append(
            {
                "name": name,
                "type": message.pb_type.DESCRIPTOR.full_name,
                "data": data.hex(),
                "bad": refused_only(message.decode, iter(spoilt)),
            }
        )
    return found


def main() -> None:
    """Write every file, one value a line so that a change can be read."""
    TARGET.mkdir(parents=True, exist_ok=True)
    files = {
        "tasks": tasks(),
        "series": series(),
        "key_lists": key_lists(),
        "orders": order_files(),
        "sessions": sessions(),
        "deny_lists": deny_lists(),
        "reports": reports(),
        "digests": digests(),
        "records": records(),
        "messages": messages(),
    }
    for name, content in files.items():
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        (TARGET / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
