#!/usr/bin/env python3
"""Writes tests/vectors/refused/*.json: for every rule of every decoder the shortest bytes found that it refuses.

Bytes come from a seeded search (tests/support/fuzz_decoders.py) that begins with the vectors, and for lengths beyond it
from padding; session requests and report parts are spoilt one field at a time. Cases that the files have stay while
they are refused: the search does not find every one again, and the keys of sessions are new each time. Run when a
layout or a rule is added: `fleetcount vectors` replays the files, tests/evidence/replay/test_refusals.py says which
rules they lack. Keys in them protect nothing.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cryptography.hazmat.primitives import hashes  # noqa: E402 - path
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402 - path
from fleetcount_evidence.replay.decoders import decoders  # noqa: E402 - path
from fleetcount_evidence.replay.refusals import bytes_of, replay_refusals, words_of  # noqa: E402 - path
from fleetcount_mechanisms.randomness import SeededRandom  # noqa: E402 - path
from fleetcount_protocol.channel import certificates, session  # noqa: E402 - path
from fleetcount_protocol.errors import PeerError  # noqa: E402 - path
from fleetcount_protocol.ids import AggregatorId, ReportId, WindowId  # noqa: E402 - path
from fleetcount_protocol.limits import SESSION_EXPIRY_STEP_S  # noqa: E402 - path
from fleetcount_protocol.messages import SessionRequest  # noqa: E402 - path
from fleetcount_protocol.wire.device import SESSION_REQUEST  # noqa: E402 - path
from fleetcount_protocol.wire.device_columns import UPLOAD, Upload  # noqa: E402 - path

from tests.support import protocol_samples as samples  # noqa: E402 - path
from tests.support.fuzz_decoders import rule_of, search, seeds  # noqa: E402 - path
from tests.support.fuzz_fields import crossed  # noqa: E402 - path

TARGET = ROOT / "tests" / "vectors" / "refused"
LAYOUTS = {"window", "question", "question_file", "record", "record_json"}
PADDED = [1 << power for power in range(10, 25)]


def at_decoders(tries: int, known: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the known cases that are refused still, and one more for every decoder and rule that has none of them."""
    for name, decoder in decoders().items():
        held: set[str] = set()
        for case in known:
            if case["decoder"] == name and (said := refusal_of(case)) is not None:
                held.add(rule_of(said))
                yield {**case, "refusal": words_of(said)}
        found = search(name, tries, random.Random(name), crossed(name, seeds(name)))  # noqa: S311 repeatable, not secret
        cases = {rule: {"decoder": name, "data": data.hex()} for rule, data in found.items()}
        for times in PADDED:
            case = {"decoder": name, "data": "", "then": ["00", times]}
            try:
                decoder.decode(bytes_of(case))
            except PeerError as error:
                cases.setdefault(rule_of(error), case)
        for rule, case in cases.items():
            if rule not in held:
                yield {**case, "refusal": words_at(case)}


def refusal_of(case: dict[str, Any]) -> PeerError | None:
    """Return how the code refuses a case, None if it takes it."""
    try:
        decoders()[case["decoder"]].decode(bytes_of(case))
    except PeerError as error:
        return error
    return None


def words_at(case: dict[str, Any]) -> str:
    """Return what the code says to a case."""
    said = refusal_of(case)
    if said is None:
        raise AssertionError(f"{case['decoder']} takes {case['data'][:80]}")
    return words_of(said)


def written(name: str) -> list[dict[str, Any]]:
    """Return the cases that a file has: some were added by hand, where the search finds no way to a rule."""
    path = TARGET / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def joined(name: str, made: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cases of a file that are refused still, as they are, and those made that it lacks by their `why`."""
    known = {case["why"]: {**case, "refusal": said} for case in written(name) if (said := _said(case))}
    return list({**{case["why"]: case for case in made}, **known}.values())


def session_cases() -> Iterator[dict[str, Any]]:
    """Yield session requests with one thing wrong each, one or more a reason."""
    now = datetime(2027, 1, 15, tzinfo=UTC)
    time = int(now.timestamp())
    authority, other = (certificates.CertificateAuthority.create(name, now) for name in ("Vectors", "Others"))
    alpha = samples.keyed_aggregator(0)
    key = alpha.hpke_keys[0]

    def identity(credential: certificates.Credential) -> session.DeviceIdentity:
        return session.DeviceIdentity(certificate=credential.certificate, private_key=credential.private_key)

    device = identity(authority.issue_device("d-vector", now))
    thief = identity(authority.issue_device("d-thief", now))
    end = int(device.certificate.not_valid_after_utc.timestamp())
    hour = -(-end // SESSION_EXPIRY_STEP_S) * SESSION_EXPIRY_STEP_S

    def asked(who: session.DeviceIdentity, expiry: int = time + 86_400) -> SessionRequest:
        return session.new_session(alpha, key, who, expiry, SeededRandom(1))[0]

    def signed(request: SessionRequest, who: session.DeviceIdentity) -> SessionRequest:
        return replace(request, signature=who.private_key.sign(request.signed_bytes, ec.ECDSA(hashes.SHA256())))

    good = asked(device)
    thief_s = certificates.certificate_der(thief.certificate)
    spoilt = bytes([good.sealed_secret[0] ^ 1]) + good.sealed_secret[1:]
    cases = {
        "for another aggregator": (replace(good, aggregator_id=AggregatorId("beta")), time),
        "a key that the aggregator has not": (signed(replace(good, key_id=good.key_id ^ 1), device), time),
        "it has ended": (good, good.expiry),
        "it lasts too long": (asked(device, time + 101 * 86_400), time),
        "it ends off the hour": (asked(device, time + 86_401), time),
        "it ends after its certificate": (asked(device, hour), end - 12),
        "the certificate has ended": (asked(device, hour), end + 1),
        "a device of another authority": (asked(identity(other.issue_device("d-vector", now))), time),
        "the authority itself": (
            asked(session.DeviceIdentity(certificate=authority.certificate, private_key=authority.private_key)),
            time,
        ),
        "a foreign signature": (signed(good, thief), time),
        "another expiry under the old signature": (replace(good, expiry=good.expiry + SESSION_EXPIRY_STEP_S), time),
        "another expiry, signed again": (
            signed(replace(good, expiry=good.expiry + SESSION_EXPIRY_STEP_S), device),
            time,
        ),
        "a stolen seal under another certificate": (signed(replace(good, credential=b"\x01" + thief_s), thief), time),
        "a spoilt seal": (signed(replace(good, sealed_secret=spoilt), device), time),
    }
    for purpose in set(certificates.Purpose) - {certificates.Purpose.DEVICE}:
        cases[f"a {purpose.label}'s certificate"] = (
            asked(identity(authority.issue_new(purpose, "other", now=now))),
            time,
        )
    for why, (request, moment) in sorted(cases.items()):
        yield session_case(why, request, key.key_id, authority, moment)


def session_case(
    why: str, request: SessionRequest, key_id: int, authority: certificates.CertificateAuthority, now: int
) -> dict[str, Any]:
    """Return a session request as alpha gets it, and what it is refused with."""
    case = {
        "why": why,
        "request": SESSION_REQUEST.encode(request).hex(),
        "aggregator_id": "alpha",
        "key_id": key_id,
        "private_key": samples.seed_bytes("sealing 0").hex(),
        "authority": certificates.certificate_der(authority.certificate).hex(),
        "now": now,
    }
    return {**case, "refusal": _said(case)}


def report_cases() -> Iterator[dict[str, Any]]:
    """Yield report parts with one thing changed after sealing."""
    key = samples.session_secret().window_key
    window_id, report_id = WindowId(samples.seed_bytes("window")), ReportId(samples.seed_bytes("report", 16))
    public_share = samples.seed_bytes("public share", 64)
    good = session.seal_instalment(key, window_id, report_id, 2, 1, public_share, samples.seed_bytes("part", 64))
    flipped = bytes([good.ciphertext[0] ^ 1]) + good.ciphertext[1:]
    cases = {
        "another window": (replace(good, window_id=WindowId(bytes(32))), 1),
        "another report": (replace(good, report_id=ReportId(bytes(16))), 1),
        "another round": (replace(good, round=0), 1),
        "another number of the key": (replace(good, key_number=2), 1),
        "another position": (good, 0),
        "another public share": (replace(good, public_share=bytes(64)), 1),
        "a flipped bit": (replace(good, ciphertext=flipped), 1),
        "a cut ciphertext": (replace(good, ciphertext=good.ciphertext[:-1]), 1),
    }
    for why, (instalment, position) in cases.items():
        case = {
            "why": why,
            "upload": UPLOAD.encode(Upload.of(AggregatorId("beta"), [instalment])).hex(),
            "session_id": key.session_id.hex(),
            "key_number": key.number,
            "window_key": key.key.hex(),
            "position": position,
        }
        yield {**case, "refusal": _said(case)}


def _said(case: dict[str, Any]) -> str:
    [miss] = replay_refusals([{**case, "refusal": ""}])
    return miss.partition("is refused by '")[2].removesuffix("', not ''")


def main() -> None:
    """Write every file."""
    parser = argparse.ArgumentParser(description="Write tests/vectors/refused/*.json.")
    parser.add_argument("--tries", type=int, default=5_000, help="mutations of a decoder's seeds (5,000)")
    tries = parser.parse_args().tries
    spoilt = {"sessions": joined("sessions", session_cases()), "reports": joined("reports", report_cases())}
    every = list(at_decoders(tries, written("messages") + written("layouts")))
    files = {
        "messages": [case for case in every if case["decoder"] not in LAYOUTS],
        "layouts": [case for case in every if case["decoder"] in LAYOUTS],
        **spoilt,
    }
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, cases in files.items():
        rows = ",\n".join(f" {json.dumps(case, ensure_ascii=False)}" for case in cases)
        (TARGET / f"{name}.json").write_text(f"[\n{rows}\n]\n", encoding="utf-8")
        print(f"{name}: {len(cases)} cases")


if __name__ == "__main__":
    main()
