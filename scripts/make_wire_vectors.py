#!/usr/bin/env python3
"""Writes tests/vectors/wire/*.json: bytes of every layout, good and bad, for implementers in other languages.

Run once when a layout is added; the files are data, replayed by tests/protocol/wire/test_wire_vectors.py, and a change
of one is a change of the protocol. Keys in them protect nothing.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # noqa: E402 - path
from fleetcount_mechanisms.randomness import SeededRandom  # noqa: E402 - path
from fleetcount_protocol.channel import certificates, deny_list, greetings, session  # noqa: E402 - path
from fleetcount_protocol.channel.hpke import HpkeKeyPair  # noqa: E402 - path
from fleetcount_protocol.errors import PeerError, QuestionError  # noqa: E402 - path
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, WindowId, new_report_id  # noqa: E402 - path
from fleetcount_protocol.question import (  # noqa: E402 - path
    key_list,
    orders,
    question_json,
)
from fleetcount_protocol.question.question import (  # noqa: E402 - path
    decode_question,
    encode_signed_question,
    window_at,
    window_verify_key,
)
from fleetcount_protocol.release import commitments  # noqa: E402 - path
from fleetcount_protocol.release.chain import ChainLink  # noqa: E402 - path
from fleetcount_protocol.release.record import decode_record, sign_record  # noqa: E402 - path
from fleetcount_protocol.release.record_json import record_to_json  # noqa: E402 - path
from fleetcount_protocol.vdaf import prio3  # noqa: E402 - path
from fleetcount_protocol.window import succession, window_json  # noqa: E402 - path
from fleetcount_protocol.window.fields import Mode, UploadStyle  # noqa: E402 - path
from fleetcount_protocol.window.window import context_of, decode_window, prio3_for  # noqa: E402 - path

from tests.support import protocol_samples as samples  # noqa: E402 - path
from tests.support import question_samples, wire_messages  # noqa: E402 - path

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


def windows() -> list[dict[str, Any]]:
    """Return windows of every kind with their ids."""
    return [
        {
            "name": name,
            "canonical": window.canonical.hex(),
            "window_id": window.window_id.hex(),
            "window": window_json.window_to_json(window),
            "bad": refused_only(decode_window, cut_and_flipped(window.canonical)),
        }
        for name, window in samples.every_window().items()
    ]


def questions() -> list[dict[str, Any]]:
    """Return question of every kind with the windows and verify keys of some of their windows."""
    found = []
    every = question_samples.every_question() | {"from_submission": question_samples.submitted_question()}
    for name, unstarted in every.items():
        signed = question_samples.sign_everywhere(unstarted)
        made = unstarted if unstarted.schedule.submission is None else unstarted.started(question_samples.FIRST + 3_600)
        last = made.schedule.windows - 1
        survivors = {1: (1, 5), last: (4, 23)} if made.drill_down else {}
        windows = [window_at(made, index, survivors.get(index, ())) for index in sorted({0, min(1, last), last})]
        found.append(
            {
                "name": name,
                "canonical": made.canonical.hex(),
                "question_id": made.question_id.hex(),
                "question": question_json.question_to_json(unstarted),
                **({} if unstarted is made else {"start": made.schedule.first}),
                "seed": question_samples.SEED.hex(),
                "signatures": [signature.hex() for signature in signed.signatures],
                "file": encode_signed_question(signed).hex(),
                "windows": [
                    {
                        "index": window.question.index,
                        **(
                            {"survivors": survivors[window.question.index]}
                            if window.question.index in survivors
                            else {}
                        ),
                        "canonical": window.canonical.hex(),
                        "window_id": window.window_id.hex(),
                        "verify_key": window_verify_key(question_samples.SEED, window.window_id).hex(),
                        "bad": refused_only(decode_window, cut_and_flipped(window.canonical)),
                    }
                    for window in windows
                ],
                "bad": refused_only(decode_question, cut_and_flipped(made.canonical)),
            }
        )
    return found


def key_lists() -> list[dict[str, Any]]:
    """Return key lists with the key they give for some windows, null where there is none."""
    found = []
    for place in range(2):
        signed = key_list.sign_key_list(question_samples.key_list(place), samples.signing_key(place))
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
    except QuestionError:
        return None


def successions() -> list[dict[str, Any]]:
    """Return statements by which one signing key names the next."""
    found = []
    for place in range(2):
        old, new = samples.signing_key(place), samples.signing_key(place + 3)
        signed = succession.sign_succession(
            succession.Succession(
                aggregator_id=samples.aggregator(place).aggregator_id,
                old_key=old.public_key().public_bytes_raw(),
                new_key=new.public_key().public_bytes_raw(),
                not_before=1_800_000_000,
                not_after=1_807_776_000,
            ),
            old,
        )
        data = succession.encode_signed_succession(signed)
        found.append(
            {
                "name": str(signed.succession.aggregator_id),
                "canonical": signed.succession.canonical.hex(),
                "signing_key": samples.seed_bytes(f"signing {place}").hex(),
                "new_key": new.public_key().public_bytes_raw().hex(),
                "signature": signed.signature.hex(),
                "file": data.hex(),
                "bad": refused_only(succession.decode_signed_succession, cut_and_flipped(data)),
            }
        )
    return found


def greeting_bytes() -> list[dict[str, Any]]:
    """Return what aggregators say beside their calls: an epoch, and greetings with and without one of the other."""
    keys = [samples.signing_key(place) for place in range(2)]
    ids = [samples.aggregator(place).aggregator_id for place in range(2)]
    tags = [samples.seed_bytes(f"tag {place}", 8) for place in range(2)]
    own, other = (greetings.sign_epoch(ids[place], 3 + 300 * place, tags[place], keys[place]) for place in range(2))
    found = []
    for name, known in (("first", None), ("known", other)):
        challenge, tls_key = samples.seed_bytes("challenge", 16), samples.seed_bytes("TLS key", 32)
        unsigned = greetings.Greeting(time_ms=1_800_000_000_123, epoch=own, known=known, challenge=challenge)
        # The first says it with a call of its own, the second with the answer to a call of the other.
        caller, callee = ids if known is None else ids[::-1]
        meeting = greetings.Meeting(caller=caller, callee=callee, tls_key=tls_key)
        greeting = greetings.sign_greeting(unsigned, meeting, keys[0], is_answer=known is not None)
        data = greeting.encode()
        found.append(
            {
                "name": name,
                "aggregator_id": str(ids[0]),
                "signing_key": samples.seed_bytes("signing 0").hex(),
                "time_ms": greeting.time_ms,
                "number": own.number,
                "tag": own.tag.hex(),
                "epoch": own.encode().hex(),
                "known": "" if known is None else known.encode().hex(),
                "caller": str(caller),
                "callee": str(callee),
                "is_answer": known is not None,
                "tls_key": tls_key.hex(),
                "challenge": challenge.hex(),
                "greeting": data.hex(),
                "bad": refused_only(greetings.decode_greeting, cut_and_flipped(data)),
            }
        )
    return found


def order_files() -> list[dict[str, Any]]:
    """Return orders about a question, given one after the other, with the windows skipped after each; then of
    another.
    """
    return [
        *_orders_of(question_samples.sampling_question(), _STEPS),
        *_orders_of(question_samples.submitted_question(), (("pause_after_start", 2, orders.OrderAction.PAUSE, 3, 0),)),
    ]


_STEPS = (
    ("pause", 1, orders.OrderAction.PAUSE, 10, 0),
    ("resume", 2, orders.OrderAction.RESUME, 24, 0),
    ("pause_again", 3, orders.OrderAction.PAUSE, 300, 0),
    ("resume_before", 4, orders.OrderAction.RESUME, 290, 0),
    ("stop", 1, orders.OrderAction.STOP, 500, 1),
    ("pause_last", 9, orders.OrderAction.PAUSE, 490, 0),
)


def _orders_of(made: Any, steps: Any) -> list[dict[str, Any]]:
    given, found = [], []
    named = [(name, question_samples.order(made, *given), given[-1]) for name, *given in steps]
    if made.schedule.submission is not None:
        named.insert(0, ("start", question_samples.start_order(made, question_samples.FIRST + 3_600), 0))
    for name, order, place in named:
        signed = orders.sign_order(order, samples.signing_key(place))
        data = orders.encode_signed_order(signed)
        given.append(order)
        found.append(
            {
                "name": name,
                "question": made.canonical.hex(),
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
    now = datetime(2027, 1, 15, tzinfo=UTC)
    authority = certificates.CertificateAuthority.create("Vectors", now)
    credential = authority.issue_device("d-vector", now)
    device = session.DeviceIdentity(certificate=credential.certificate, private_key=credential.private_key)
    parties = (samples.keyed_aggregator(0), samples.hybrid_aggregator(1))
    privates = [samples.seed_bytes("sealing 0"), samples.seed_bytes("hybrid", 96)]
    found = []
    for aggregator, private in zip(parties, privates, strict=True):
        expiry = int(now.timestamp()) + 86_400
        request, opening = session.new_session(aggregator, aggregator.hpke_keys[0], device, expiry, SeededRandom(1))
        ephemeral = X25519PrivateKey.from_private_bytes(samples.seed_bytes("ephemeral"))
        digest = certificates.key_digest(device.certificate)
        accepted, secret = session.open_request(request, HpkeKeyPair(request.key_id, private), digest, ephemeral)
        opening.finish(accepted)  # Refuses an answer that does not verify.
        found.append(
            {
                "aggregator_id": str(aggregator.aggregator_id),
                "key_id": request.key_id,
                "private_key": private.hex(),
                "authority": certificates.certificate_der(authority.certificate).hex(),
                "certificate": request.certificate.hex(),
                "device_key_digest": digest.hex(),
                "expiry": expiry,
                "sealed_secret": request.sealed_secret.hex(),
                "signed_bytes": request.signed_bytes.hex(),
                "signature": request.signature.hex(),
                "session_id": request.session_id.hex(),
                "device_ephemeral_private": opening.ephemeral.private_bytes_raw().hex(),
                "aggregator_ephemeral_private": ephemeral.private_bytes_raw().hex(),
                "secret": opening.secret.hex(),
                "ephemeral_key": accepted.ephemeral_key.hex(),
                "confirmation": accepted.confirmation.hex(),
                "receipt_key": secret.receipt_key.hex(),
                "chain": [chain_link(secret, number) for number in (1, 2, 3)],
            }
        )
    return found


def chain_link(secret: session.SessionSecret, number: int) -> dict[str, Any]:
    """Return the keys of one number of a session's chain."""
    for _ in range(number - 1):
        secret = secret.moved_on()
    return {"number": number, "chain_key": secret.secret.hex(), "window_key": secret.window_key.key.hex()}


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
        secret = samples.session_secret().moved_on()
        window_id, report_id = WindowId(samples.seed_bytes("window")), ReportId(samples.seed_bytes("report", 16))
        public_share, plaintext = samples.seed_bytes("public share", share), samples.seed_bytes("part", part)
        key = secret.window_key
        sealed = session.seal_instalment(key, window_id, report_id, round_number, 1, public_share, plaintext)
        receipt = session.make_receipt(secret, sealed)
        found.append(
            {
                "window_key": key.key.hex(),
                "key_number": key.number,
                "session_id": secret.session_id.hex(),
                "window_id": window_id.hex(),
                "report_id": report_id.hex(),
                "round": round_number,
                "position": 1,
                "public_share": public_share.hex(),
                "plaintext": plaintext.hex(),
                "report_key": session.report_key(key, window_id, report_id, round_number).hex(),
                "ciphertext": sealed.ciphertext.hex(),
                "instalment_digest": sealed.digest.hex(),
                "receipt_key": secret.receipt_key.hex(),
                "receipt_mac": receipt.mac.hex(),
            }
        )
    return found


def answers() -> list[dict[str, Any]]:
    """Return what a device makes of an answer: report id, shares, proofs and parts, one of every circuit."""
    made = samples.every_window()
    cases: list[tuple[str, Any]] = [
        ("sampling_grid", (0, 4)),
        ("sampling_five", (2, 2)),
        ("sampling_h3_envelope", (0, 1)),
        ("k_ary", 3),
        ("mangat_vector", (1, 0, 1, 1)),
        ("direct", 0),
        ("direct_set", (1, 0, 1)),
        ("direct_set", (0, 0, 0)),
    ]
    found = []
    for name, measurement in cases:
        window = made[name]
        device, rand = samples.seed_bytes("device"), samples.seed_bytes(f"rand {name} {measurement}", 320)
        algorithm, ctx = prio3_for(window), context_of(window)
        report_id = new_report_id(window.window_id, Digest(device), SeededRandom(len(found)))
        public_share, inputs = algorithm.shard(ctx, measurement, report_id, rand[: algorithm.rand_size])
        verify_key = samples.seed_bytes("verify key")
        begun = [
            algorithm.verify_init(verify_key, ctx, party, report_id, public_share, share)
            for party, share in enumerate(inputs)
        ]
        parts = [{"round": 0, "plaintexts": [share.hex() for share in inputs]}]
        if window.mode is Mode.SAMPLING and window.upload_style is UploadStyle.TWO_INSTALMENTS:
            sizes = [prio3.first_instalment_size(algorithm, party) for party in range(len(inputs))]
            cut = [(share[:size].hex(), share[size:].hex()) for share, size in zip(inputs, sizes, strict=True)]
            parts = [{"round": number, "plaintexts": [one[number - 1] for one in cut]} for number in (1, 2)]
        found.append(
            {
                "window": name,
                "window_id": window.window_id.hex(),
                "device_key_digest": device.hex(),
                "report_id": report_id.hex(),
                "measurement": measurement,
                "rand": rand[: algorithm.rand_size].hex(),
                "public_share": public_share.hex(),
                "parts": parts,
                "verify_key": verify_key.hex(),
                "verifier_shares": [share.hex() for _, share in begun],
                "verifier_message": algorithm.combine_verifier_shares(ctx, [share for _, share in begun]).hex(),
            }
        )
    return found


def readings() -> list[dict[str, Any]]:
    """Return readings of every domain that draws nothing, with the value 0..V that each is."""
    made = samples.every_window()
    cases: list[tuple[str, Any, int]] = [
        *[("sampling_faces_bins", one, value) for one, value in (("0", 1), ("30.49", 1), ("30.5", 2), ("50", 0))],
        *[("sampling_faces_bins", one, 0) for one in ("-0.01", None)],
        *[("bins_zooms", one, value) for one, value in (("9.99", 1), ("70", 8), ("1000000", 8))],
        *[("direct", one, value) for one, value in (("rot", 1), ("blå", 3), ("Rot", 0))],
        *[("direct_zooms", one, value) for one, value in ((["0", "-1"], 1), (["499.99", "-1"], 4))],
        *[("direct_zooms", one, value) for one, value in ((["0", "124"], 5), (["500", "-1"], 0), (["0", "999"], 0))],
        *[("sampling_h3_envelope", one, value) for one, value in (("891ea6d6537ffff", 2), ("891ea6d6503ffff", 0))],
        *[("sampling_places", one, value) for one, value in (("7", 2), ("4294967295", 3), ("8", 0))],
        *[("direct_codes", one, value) for one, value in (("P0301", 1), ("p03f9", 2), ("U3F72", 3), ("P0400", 0))],
        *[("direct_texts", one, value) for one, value in (("X", 1), ("XA", 0), ("XAB", 2), ("BAX", 3), ("B", 0))],
    ]
    return [{"window": name, "reading": reading, "value": value} for name, reading, value in cases if made[name]]


def digests() -> dict[str, Any]:
    """Return a set digest and a commitment with their inputs."""
    items = [
        (
            ReportId(samples.seed_bytes(f"id {n}", 16)),
            commitments.public_share_digest(samples.seed_bytes(f"share {n}", 64)),
        )
        for n in range(5)
    ]
    vector, blind = bytes(range(24)), samples.seed_bytes("blind")
    digest = commitments.set_digest(wire_messages.WINDOW, items)
    leaves = commitments.leaf_digests(wire_messages.WINDOW, items)
    made = commitments.commitment(
        vector, blind, window_id=wire_messages.WINDOW, aggregator_id=AggregatorId("alpha"), set_digest=digest
    )
    return {
        "set": [{"report_id": one.hex(), "public_share_digest": share.hex()} for one, share in items],
        "window_id": wire_messages.WINDOW.hex(),
        "leaves_sha256": hashlib.sha256(leaves).hexdigest(),
        "set_digest": digest.hex(),
        "empty_set_digest": commitments.set_digest(wire_messages.WINDOW, []).hex(),
        "commitment": {
            "window_id": wire_messages.WINDOW.hex(),
            "aggregator_id": "alpha",
            "set_digest": digest.hex(),
            "blind": blind.hex(),
            "vector": vector.hex(),
            "commitment": made.hex(),
        },
    }


def records() -> list[dict[str, Any]]:
    """Return records of several kinds of window, windows of questions too, with signatures and their JSON form."""
    found = []
    names = (
        "sampling_grid",
        "sampling_framed",
        "mangat",
        "one_sided",
        "one_sided_down",
        "asymmetric",
        "unary",
        "sampling_exact",
        "direct_zooms",
        "direct_total",
        "zooms_and_total",
        "direct_mean",
        "direct_holders",
        "one_sided_zooms",
    )
    every = {name: samples.record(samples.every_window()[name]) for name in names}
    direct = question_samples.every_question()["direct"]
    every["window"] = question_samples.window_record(question_samples.every_question()["response"], 5)
    every["window_first"] = question_samples.window_record(direct, 0)
    before = ChainLink(previous=every["window_first"].digest, previous_index=0, missing=())
    every["window_second"] = question_samples.window_record(direct, 1, chain=before)
    for name, made in every.items():
        keys = [samples.signing_key(place) for place in range(len(made.window.aggregators))]
        signatures = [sign_record(made, key) for key in keys]
        found.append(
            {
                "name": name,
                "canonical": made.canonical.hex(),
                "signatures": [signature.hex() for signature in signatures],
                "json": record_to_json(made, signatures),
                "bad": refused_only(decode_record, cut_and_flipped(made.canonical, 24)),
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


def chunk_lengths() -> list[dict[str, int]]:
    """Return every length up to 4,096 at which another implementation's rule gives another chunk length.

    The prio crate's `optimal_chunk_length` takes the larger P of equally long proofs, docs/wire.md the smaller.
    """
    found = []
    for length in range(1, 4097):
        own, other = prio3.bits_chunk_length(length), larger_power_chunk_length(length)
        if own != other:
            found.append({"length": length, "chunk_length": own, "larger_power": other})
    return found


def larger_power_chunk_length(length: int) -> int:
    """Return the chunk length by the other rule: of equally long proofs that with the larger P."""
    powers = [1 << exponent for exponent in range(1, length.bit_length() + 1)]
    best = min(powers, key=lambda power: (-(-length // (power - 1)) + power, -power))
    return -(-length // (best - 1))


def bits_report(*, larger_power: bool) -> dict[str, Any]:
    """Return one report of 100 bits in the form of the draft's vectors; by the other rule it must be refused."""
    length, shares = 100, 2
    own = prio3.prio3_bits(length, shares)
    maker = own
    if larger_power:
        maker = prio3.prio3_sum_vec_with_multiproof(length, 1, larger_power_chunk_length(length), shares)
    ctx, verify_key = b"some application", bytes(range(own.verify_key_size))
    nonce, rand = bytes(range(own.nonce_size)), bytes(place % 256 for place in range(own.rand_size))
    measurement = [int(place % 3 == 0) for place in range(length)]
    public_share, inputs = maker.shard(ctx, measurement, nonce, rand)
    parties = range(shares)
    begun = [own.verify_init(verify_key, ctx, party, nonce, public_share, inputs[party]) for party in parties]
    verifiers = [share for _, share in begun]
    steps = [{"operation": "verify_init", "report_index": 0, "aggregator_id": party} for party in parties]
    combine = {"operation": "verifier_shares_to_message", "report_index": 0, "round": 0}
    messages: list[bytes] = []
    outputs: list[list[int]] = []
    if not larger_power:
        messages = [own.combine_verifier_shares(ctx, verifiers)]
        outputs = [own.verify_next(ctx, state, messages[0]) for state, _ in begun]
    last = [{"operation": "verify_next", "report_index": 0, "aggregator_id": party, "round": 1} for party in parties]
    last += [{"operation": "aggregate", "aggregator_id": party} for party in parties]
    good = [{"operation": "shard", "report_index": 0}, *steps, combine, *last, {"operation": "unshard"}]
    operations = [one | {"success": True} for one in ([*steps] if larger_power else good)]
    encoded = [own.encode_output_share(output).hex() for output in outputs]
    return {
        "agg_param": "",
        "agg_result": None if larger_power else measurement,
        "agg_shares": encoded,
        "chunk_length": prio3.bits_chunk_length(length),
        "ctx": ctx.hex(),
        "length": length,
        "max_measurement": 1,
        "operations": [*operations, combine | {"success": False}] if larger_power else operations,
        "reports": [
            {
                "input_shares": [share.hex() for share in inputs],
                "measurement": None if larger_power else measurement,
                "nonce": nonce.hex(),
                "out_shares": encoded,
                "public_share": public_share.hex(),
                "rand": rand.hex(),
                "verifier_messages": [message.hex() for message in messages],
                "verifier_shares": [[share.hex() for share in verifiers]],
            }
        ],
        "shares": shares,
        "verify_key": verify_key.hex(),
    }


def main() -> None:
    """Write every file, one value a line so that a change can be read."""
    TARGET.mkdir(parents=True, exist_ok=True)
    files = {
        "windows": windows(),
        "questions": questions(),
        "key_lists": key_lists(),
        "orders": order_files(),
        "successions": successions(),
        "greetings": greeting_bytes(),
        "sessions": sessions(),
        "deny_lists": deny_lists(),
        "reports": reports(),
        "answers": answers(),
        "readings": readings(),
        "digests": digests(),
        "records": records(),
        "messages": messages(),
        "chunk_lengths": chunk_lengths(),
        "Prio3SumVecWithMultiproof_bits_100": bits_report(larger_power=False),
        "Prio3SumVecWithMultiproof_bad_chunk_length": bits_report(larger_power=True),
    }
    for name, content in files.items():
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        (TARGET / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
