"""What one answer costs a device: both rounds of a report at L = 1,000, k = 2, sealed; and the spool's own share.

Every figure is the least of many runs, in milliseconds; it decides nothing.
"""

import itertools
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fleetcount_client.answering import (
    ReportParts,
    TwoRoundSecret,
    draw_two_round,
    round_one_parts,
    round_two_parts,
    truth_of,
)
from fleetcount_client.charges import Charge
from fleetcount_client.ledger import Ledger, budget_of
from fleetcount_client.policy import OwnerPolicy
from fleetcount_client.question_rows import QuestionRow, QuestionRows, QuestionState
from fleetcount_client.sessions import encode_instalment
from fleetcount_client.signals import Reading
from fleetcount_client.spool import SpoolFile
from fleetcount_client.spool_rows import Beginning, OutboxEntry, Phase, Report
from fleetcount_mechanisms.accounting.charges import window_loss
from fleetcount_mechanisms.accounting.vectors import LossVector
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_mechanisms.renyi import pure_divergence
from fleetcount_mechanisms.statement import ledger_loss_of
from fleetcount_protocol.channel.certificates import CertificateAuthority
from fleetcount_protocol.channel.chain import WindowKey
from fleetcount_protocol.channel.hpke import HpkeKeyPair, seal_to
from fleetcount_protocol.channel.session import DeviceIdentity, SessionSecret, new_session, seal_instalment
from fleetcount_protocol.ids import AggregatorId, Digest, QuestionId, SessionId, WindowId
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.window.domain import SquareGrid
from fleetcount_protocol.window.fields import Aggregator, HpkeKey
from fleetcount_protocol.window.window import Window
from one_window import draft, once
from rows import Row, quick, report, smoke

DEVICE = Digest(bytes(32))

LIMIT_MS = 6.0
"""The project's own for a report at L = 1,000, k = 2."""
LEDGER_LIMIT_MS = 0.05
"""The project's own for a charge; the aim is a fifth of it."""
_POLICY = OwnerPolicy(signals=frozenset())
RUNS = 4 if smoke() else 20 if quick() else 60
OPENS = 1_800_000_000
CELLS = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(250), columns=37, rows=27)  # V = 999, L = 1,000.


def make_aggregator(number: int) -> Aggregator:
    """Return one aggregator with fresh keys, as a device knows it that has its key list."""
    signing = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return Aggregator(
        aggregator_id=AggregatorId(f"bench-{number}"),
        operator=f"Operator {number}",
        grpc_endpoint=f"127.0.0.1:{7411 + number}",
        mqtt_broker="",
        hpke_keys=(HpkeKey(key_id=1, public_key=HpkeKeyPair.generate(1).public_key),),
        signing_public_key=signing,
    )


def make_window(aggregators: Sequence[Aggregator]) -> Window:
    """Return the only window of the benchmark's question: in which of 999 cells?"""
    return window_at(draft(aggregators, CELLS, once(OPENS, 100, 100, expiry_s=100), min_batch_size=10), 0)


def seal(window: Window, keys: tuple[WindowKey, ...], made: ReportParts) -> list[bytes]:
    """Return the sealed bytes of one round, as the spool keeps them."""
    return [
        encode_instalment(
            seal_instalment(
                keys[position], window.window_id, made.report_id, made.round, position, made.public_share, part
            )
        )
        for position, part in enumerate(made.parts)
    ]


def session_with(aggregator_id: AggregatorId) -> SessionSecret:
    """Return a session as an aggregator has accepted it."""
    return SessionSecret(
        session_id=SessionId(secrets.token_bytes(16)),
        aggregator_id=aggregator_id,
        secret=secrets.token_bytes(32),
        receipt_key=secrets.token_bytes(32),
        expiry=OPENS + 1000,
    )


def least_ms(operation: Callable[[], object]) -> float:
    """Return the least milliseconds of many runs."""
    times: list[float] = []
    for _ in range(RUNS):
        started = time.perf_counter()
        operation()
        times.append((time.perf_counter() - started) * 1e3)
    return min(times)


def row(path: str, ours: float, peer: str = "", theirs: float | None = None, *bounds: float) -> None:
    """Report milliseconds beside the peer's or limit, and what the ratio of ours to it must be and should be."""
    must, aim = (*bounds, None, None)[:2]
    report(
        Row(
            path=path,
            ours=ours,
            unit="ms",
            peer=peer,
            peer_value=theirs,
            ratio=None if theirs is None else ours / theirs,
            must=must,
            aim=aim,
            larger_is_better=False,
            note=f"pure Python; least of {RUNS} runs",
        )
    )


def two_seals_ms(parties: Sequence[Aggregator]) -> float:
    """Return the time of the two HPKE seals that a protocol without sessions would spend on sealing alone."""
    keys = [one.hpke_keys[0].public_key for one in parties]
    return least_ms(lambda: [seal_to(key, bytes(32), b"report") for key in keys])


def charge_of(window: Window) -> Charge:
    """Return what is reserved for a window."""
    return Charge(
        charge_id=window.window_id,
        name=window.name,
        signal=window.signal,
        asked_at=window.round_one_opens,
        asked_until=window.round_one_closes,
        epsilon=ledger_loss_of(window.design).epsilon,
        exposure=window.design.exposure,
        answers=window.design.exposure,
        promise=_POLICY.promise,
        loss=window_loss(window.design, budget_of(_POLICY).orders),
        question_id=bytes(32),
        sent=False,
    )


def store_one(file: SpoolFile, window: Window, secret: TwoRoundSecret, entries: list[bytes], number: int) -> None:
    """Reserve, store, and take one report through its phases: five durable transactions."""
    spool, charge = file.device(str(number)), charge_of(window)
    question_id = QuestionId(bytes(32))
    row = QuestionRow(
        question_id=question_id, name="", offer=b"", state=QuestionState.JOINED, changed_at=0.0, reason=""
    )
    QuestionRows(spool).join(row, lambda ledger: ledger.new([charge]), 0.0)
    report = Report(window_id=WindowId(window.window_id), phase=Phase.ROUND_ONE, reason="", secret=secret.encode())
    rows = [OutboxEntry(round=1, position=position, instalment=data) for position, data in enumerate(entries)]
    begun = Beginning(report=report, entries=rows, sessions=[])
    spool.begin(charge, report.window_id, b"window", [], lambda _: begun, lambda ledger: None)
    between = spool.advance(report, Phase.BETWEEN)
    spool.advance(spool.advance(between, Phase.ROUND_TWO, entries=rows), Phase.DELIVERED)


def time_store(window: Window, secret: TwoRoundSecret) -> None:
    """Report what the spool and ledger add to one answer, with and without fsync."""
    entries = seal(window, secret.keys, round_one_parts(window, secret))
    numbers = itertools.count()
    for durable in (True, False):
        with tempfile.TemporaryDirectory() as directory:
            file = SpoolFile(Path(directory) / "device.db", durable=durable)

            def store(file: SpoolFile = file) -> None:
                store_one(file, window, secret, entries, next(numbers))

            what = "five durable transactions" if durable else "without fsync"
            row(f"device: spool and ledger of one answer, {what}", least_ms(store))
            file.close()


def time_ledger(window: Window) -> None:
    """Report what judging and adding a charge takes beside 10,000 in one period, in order of time, without its row."""
    held, step_s = 10_000, _POLICY.budget_period_s // 11_000
    orders, small = budget_of(_POLICY).orders, Fraction(1, 1000)
    loss = LossVector.of(orders, [pure_divergence(small, order) for order in orders], small)
    times = (OPENS + step_s * number for number in range(held + RUNS))
    charge = replace(charge_of(window), loss=loss)
    charges = [replace(charge, charge_id=at.to_bytes(32), asked_at=at, asked_until=at + 100) for at in times]
    ledger, new = Ledger(charges[:held]), iter(charges[held:])
    ledger.judge(_POLICY, charges[-1:])  # Makes the sums.

    def judge_and_add() -> None:
        one = next(new)
        if ledger.judge(_POLICY, [one]) is None:
            ledger.put(one)

    ours = least_ms(judge_and_add)
    if len(ledger.charges) != held + RUNS:
        raise AssertionError("the ledger refused a charge that fits")
    row(f"ledger: charge and check at {held:,} held", ours, "the project's own limit", LEDGER_LIMIT_MS, 1, 0.2)


def main() -> None:
    """Report every figure."""
    identity = DeviceIdentity.generate(CertificateAuthority.create("bench"))
    source = SystemRandom()
    for aggregators in (5, 2):
        parties = tuple(map(make_aggregator, range(aggregators)))
        window = make_window(parties)
        sessions = [session_with(one.aggregator_id) for one in window.aggregators]

        def answer(window: Window = window, sessions: list[SessionSecret] = sessions) -> TwoRoundSecret:
            keys = tuple(session.window_key for session in sessions)
            sessions[:] = [session.moved_on() for session in sessions]
            secret = draw_two_round(
                window, truth_of(window, Reading(value=(4321.0, 1234.0)), source), keys, source, device=DEVICE
            )
            seal(window, keys, round_one_parts(window, secret))
            seal(window, keys, round_two_parts(window, secret))
            return secret

        path, ours = f"device report, both rounds, sealed, L = 1,000, k = {aggregators}", least_ms(answer)
        if aggregators == 2:
            row(path, ours, "two HPKE seals", two_seals_ms(parties), 60, 20)
            row(path, ours, "the project's own limit", LIMIT_MS, 1)
        else:
            row(path, ours)
    one = parties[0]
    opening = least_ms(lambda: new_session(one, one.hpke_keys[0], identity, OPENS, source))
    row("device: opening a session (once a day), seal and sign", opening)
    time_store(window, answer())
    time_ledger(window)


if __name__ == "__main__":
    main()
