"""Times Prio3 in pure Python: a device's report, an aggregator's verification, the draft's own circuit beside ours.

The best of several runs on one core beside the project's own limits, which decide nothing.
"""

import os

from fleetcount_evidence.replay.draft_circuits import prio3_histogram
from fleetcount_protocol.vdaf.prio3 import (
    Prio3,
    first_instalments,
    prio3_bits,
    prio3_multihot,
    prio3_one_hot,
    prio3_two_round,
    second_instalments,
)
from fleetcount_protocol.vdaf.verifier import ReportToVerify, ScalarVerifier
from rows import Row, best_cpu_s, best_s, report

CTX = b"FCT1" + bytes(32)
KEY = os.urandom(32)


def row(what: str, seconds: float, limit_ms: float | None = None) -> None:
    """Report one time, beside its limit where there is one."""
    report(
        Row(
            path=f"plain Python: {what}",
            ours=1e3 * seconds,
            unit="ms",
            peer="" if limit_ms is None else "limit",
            peer_value=limit_ms,
            ratio=None if limit_ms is None else 1e3 * seconds / limit_ms,
            must=None if limit_ms is None else 1,
            larger_is_better=False,
        )
    )


def time_verification(name: str, prio3: Prio3, measurement: object, limit_ms: float | None = None) -> None:
    """Time verify_init and verify_next of the leader and of one helper."""
    nonce = os.urandom(16)
    public_share, shares = prio3.shard(CTX, measurement, nonce, os.urandom(prio3.rand_size))
    steps = [prio3.verify_init(KEY, CTX, j, nonce, public_share, share) for j, share in enumerate(shares)]
    message = prio3.combine_verifier_shares(CTX, [share for _, share in steps])
    for aggregator, role in ((0, "leader"), (1, "helper")):
        verifier = ScalarVerifier(prio3=prio3, verify_key=KEY, ctx=CTX, aggregator=aggregator)
        held = ReportToVerify(nonce=nonce, public_share=public_share, input_share=shares[aggregator])
        state = steps[aggregator][0]

        def verify(verifier=verifier, held=held, state=state) -> None:  # type: ignore[no-untyped-def] # bound in the loop
            verifier.verify_batch([held])
            prio3.verify_next(CTX, state, message)

        row(f"verification, {name}, k = {prio3.shares}, {role}", best_s(verify), limit_ms)


def time_device(length: int, shares: int, limit_ms: float | None = None) -> None:
    """Time both instalments of a two-round report."""
    prio3 = prio3_two_round(length, shares)
    nonce, rand = os.urandom(16), os.urandom(prio3.rand_size)
    place = length // 2

    def answer() -> None:
        first_instalments(prio3, CTX, nonce, rand, 0)
        second_instalments(prio3, CTX, nonce, rand, 0, place)

    row(f"device, both rounds, L = {length:,}, k = {shares}", best_s(answer), limit_ms)


def time_set(values: int, most: int) -> None:
    """Time the report of a set of `most` values beside that of a single one of as many values."""

    def shard_s(prio3: Prio3, measurement: object) -> float:
        nonce, rand = os.urandom(prio3.nonce_size), os.urandom(prio3.rand_size)
        return best_cpu_s(lambda: prio3.shard(CTX, measurement, nonce, rand))

    bits = [int(value < most) for value in range(values)]
    ours, count = shard_s(prio3_multihot(values, most, 2), bits), shard_s(prio3_one_hot(values + 1, 2), 1)
    report(
        Row(
            path=f"plain Python: device, a set of at most {most} of {values:,}, k = 2",
            ours=1e3 * ours,
            unit="ms",
            peer="a single one of as many values",
            peer_value=1e3 * count,
            ratio=ours / count,
            aim=1.2,
            larger_is_better=False,
        )
    )


def main() -> None:
    """Report every figure."""
    for values, most in ((64, 3), (256, 3), (1024, 3), (1024, 8), (1024, 64)):
        time_set(values, most)
    time_device(65, 2)
    time_device(1000, 2, 5.0)
    time_device(1000, 5)
    time_device(4096, 2)
    for shares in (2, 3):
        time_verification("two rounds, L = 65", prio3_two_round(65, shares), (0, 7), 1.5 if shares == 2 else None)
    time_verification("two rounds, L = 1,000", prio3_two_round(1000, 2), (0, 7))
    time_verification("one round, L = 1,000", prio3_one_hot(1000, 2), 7)
    time_verification("bits, L = 100", prio3_bits(100, 2), [1] * 100)
    # The same statement as OneHot in the draft's own circuit: Prio3Histogram, Field128, one proof.
    time_verification("the draft's Histogram, L = 1,000", prio3_histogram(1000, 32, 2), 7)


if __name__ == "__main__":
    main()
