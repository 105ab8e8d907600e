"""What one two-round report at L = 1,000 costs a helper: from sealed bytes to the sum, beside one HPKE opening.

Sessions are open, as they are for all but the first report of a day. Both rounds' batches are decoded, opened with
their digests and receipts made, joined, verified and added up, on one core. Store and network are bench_store's and
bench_intake's. Decides nothing.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from bench_client import OPENS, make_aggregator, make_window
from fleetcount_aggregator.storage.session_chains import PackedSession
from fleetcount_aggregator.verification.choice import new_batch_verifier
from fleetcount_kernel.proofs import VERIFIED, BatchVerifier, ProofBatch, setting_of
from fleetcount_protocol.channel.chain import KeyChain
from fleetcount_protocol.channel.hpke import HpkeKeyPair, seal_to
from fleetcount_protocol.channel.session import SessionSecret, seal_instalment
from fleetcount_protocol.ids import Digest, ReportId, SessionId
from fleetcount_protocol.messages import Instalment
from fleetcount_protocol.vdaf.prio3 import first_instalments, second_instalments
from fleetcount_protocol.window.window import Window, context_of, prio3_for
from fleetcount_protocol.wire.device_columns import UPLOAD, batches
from fleetcount_protocol.wire.device_unsealing import SessionKeys, unseal_columns
from rows import Row, best_cpu_s, quick, report, smoke

HELPER = 1
VERIFY_KEY = bytes(32)


@dataclass(frozen=True)
class Inbox:
    """What the helper has: the batches of each round as they arrived, and the open sessions' keys."""

    rounds: tuple[list[bytes], list[bytes]]
    sessions: dict[bytes, PackedSession]


def seal_reports(window: Window, count: int) -> Inbox:
    """Return as many real reports, sealed to the helper."""
    prio3, context = prio3_for(window), context_of(window)
    sealed: tuple[list[Instalment], list[Instalment]] = ([], [])
    sessions: dict[bytes, PackedSession] = {}
    for number in range(count):
        secret = SessionSecret(
            session_id=SessionId(os.urandom(16)),
            aggregator_id=window.aggregators[HELPER].aggregator_id,
            secret=os.urandom(32),
            receipt_key=os.urandom(32),
            expiry=OPENS + 1_000,
        )
        chain = KeyChain(number=secret.number, key=secret.secret)
        sessions[bytes(secret.session_id)] = PackedSession.of(chain, secret.receipt_key, Digest(bytes(32)), 0)
        report_id, rand, cell = ReportId(os.urandom(16)), os.urandom(prio3.rand_size), 1 + number % 999
        first = first_instalments(prio3, context, report_id, rand, cell)
        public_share, second = second_instalments(prio3, context, report_id, rand, cell, cell)
        sealed[0].append(seal_instalment(secret.window_key, window.window_id, report_id, 1, HELPER, b"", first[HELPER]))
        sealed[1].append(
            seal_instalment(secret.window_key, window.window_id, report_id, 2, HELPER, public_share, second[HELPER])
        )
    encoded = [
        [UPLOAD.encode(one) for one in batches(window.aggregators[HELPER].aggregator_id, instalments)]
        for instalments in sealed
    ]
    return Inbox((encoded[0], encoded[1]), sessions)


def open_round(messages: Sequence[bytes], inbox: Inbox) -> list[tuple[bytes, bytes, bytes]]:
    """Return (report id, public share, part) of one round's instalments; digests and receipts are made as well."""
    found: list[tuple[bytes, bytes, bytes]] = []
    for columns in (one for message in messages for one in UPLOAD.decode(message).runs):
        held = [inbox.sessions[session_id] for session_id in columns.session_ids]
        rows = zip(held, columns.key_numbers, strict=True)
        keys = SessionKeys(
            window_keys=[session.window_key(number) or b"" for session, number in rows],
            receipt_keys=[session.receipt_key for session in held],
        )
        parts = unseal_columns(keys, HELPER, columns).parts
        assert None not in parts
        found += [
            (report_id, public_share, part)
            for report_id, public_share, part in zip(columns.report_ids, columns.public_shares, parts, strict=True)
            if part is not None
        ]
    return found


def open_reports(inbox: Inbox) -> ProofBatch:
    """Return both rounds of every report, opened and joined."""
    first = {report_id: part for report_id, _, part in open_round(inbox.rounds[0], inbox)}
    second = open_round(inbox.rounds[1], inbox)
    return ProofBatch(
        nonces=b"".join(report_id for report_id, _, _ in second),
        public_shares=b"".join(public_share for _, public_share, _ in second),
        input_shares=b"".join(first[report_id] + part for report_id, _, part in second),
    )


def verify(verifier: BatchVerifier, batch: ProofBatch) -> bytes:
    """Return the sum of a batch whose reports are all honest."""
    verified = verifier.verify(batch)
    assert set(verified.reasons) == {VERIFIED}
    return verified.output_sum


def main() -> None:
    """Print what a report costs, and of what that is made."""
    count = 16 if smoke() else 256 if quick() else 1_024
    window = make_window([make_aggregator(number) for number in range(2)])
    inbox = seal_reports(window, count)
    verifier = new_batch_verifier(setting_of(window, VERIFY_KEY, HELPER))
    batch = open_reports(inbox)
    verify(verifier, batch)  # Compiles, or reads what was compiled.
    pair = HpkeKeyPair.generate(1)
    sealed = seal_to(pair.public_key, bytes(32), b"session")
    hpke = best_cpu_s(lambda: pair.open(sealed, b"session"))
    opening = best_cpu_s(lambda: open_reports(inbox), 2.0) / count
    verifying = best_cpu_s(lambda: verify(verifier, batch), 2.0) / count
    whole = best_cpu_s(lambda: verify(verifier, open_reports(inbox)), 4.0) / count
    note = f"{count:,} reports, {verifier.name} verifier, CPU of one core"
    for path, seconds, bounds in (
        ("helper: sealed bytes to sum, two rounds, L = 1,000", whole, (0.6, 0.35)),
        ("helper, of it: decoding, opening, digests, receipts, joining", opening, (None, None)),
        ("helper, of it: verifying and adding up", verifying, (None, None)),
    ):
        report(
            Row(
                path=path,
                ours=1e6 * seconds,
                unit="us",
                peer="one HPKE opening",
                peer_value=1e6 * hpke,
                ratio=seconds / hpke,
                must=bounds[0],
                aim=bounds[1],
                larger_is_better=False,
                note=note,
            )
        )


if __name__ == "__main__":
    main()
