"""Times Prio3 in pure Python: a device's report, an aggregator's verification, the draft's own circuit beside ours.

Prints the best of several runs on one core, in milliseconds; the targets are the project's own and decide nothing.
"""

import os
import platform
import sys
import time
from collections.abc import Callable

from fleetcount_protocol.prio3 import Prio3, prio3_bits, prio3_histogram, prio3_one_hot, prio3_two_round
from fleetcount_protocol.two_round import first_instalments, second_instalments
from fleetcount_protocol.verifier import ReportToVerify, ScalarVerifier

CTX = b"FCT1" + bytes(32)
KEY = os.urandom(32)


def best_ms(operation: Callable[[], object], seconds: float = 0.4) -> float:
    """Return the shortest of the runs that fit into `seconds`, in milliseconds."""
    best, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        operation()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def row(what: str, milliseconds: float, limit: float | None = None) -> None:
    """Print one measurement, beside its target where there is one."""
    target = "" if limit is None else f"   target {limit:g} ms{'' if milliseconds <= limit else '   MISSED'}"
    print(f"{what:<66}{milliseconds:9.3f} ms{target}")


def time_verification(name: str, prio3: Prio3, measurement: object, limit: float | None = None) -> None:
    """Time verify_init and verify_next of the leader and of one helper."""
    nonce = os.urandom(16)
    public_share, shares = prio3.shard(CTX, measurement, nonce, os.urandom(prio3.rand_size))
    steps = [prio3.verify_init(KEY, CTX, j, nonce, public_share, share) for j, share in enumerate(shares)]
    message = prio3.combine_verifier_shares(CTX, [share for _, share in steps])
    for aggregator, role in ((0, "leader"), (1, "helper")):
        verifier = ScalarVerifier(prio3=prio3, verify_key=KEY, ctx=CTX, aggregator=aggregator)
        report = ReportToVerify(nonce=nonce, public_share=public_share, input_share=shares[aggregator])
        state = steps[aggregator][0]

        def verify(verifier=verifier, report=report, state=state) -> None:  # type: ignore[no-untyped-def] # bound in the loop
            verifier.verify_batch([report])
            prio3.verify_next(CTX, state, message)

        row(f"verification, {name}, k = {prio3.shares}, {role}", best_ms(verify), limit)
    combine = best_ms(lambda: prio3.combine_verifier_shares(CTX, [share for _, share in steps]))
    row(f"combining verifier shares, {name}, k = {prio3.shares}", combine)


def time_device(length: int, shares: int, limit: float | None = None) -> None:
    """Time both instalments of a two-round report."""
    prio3 = prio3_two_round(length, shares)
    nonce, rand = os.urandom(16), os.urandom(prio3.rand_size)
    place = length // 2
    first = best_ms(lambda: first_instalments(prio3, CTX, nonce, rand, 0))
    second = best_ms(lambda: second_instalments(prio3, CTX, nonce, rand, 0, place))
    row(f"device, two rounds, L = {length}, k = {shares}: round one", first)
    row(f"device, two rounds, L = {length}, k = {shares}: both rounds", first + second, limit)


def main() -> None:
    """Print every figure."""
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    time_device(65, 2)
    time_device(1000, 2, 5.0)
    time_device(1000, 5)
    time_device(4096, 2)
    for shares in (2, 3):
        time_verification("two rounds, L = 65", prio3_two_round(65, shares), (0, 7), 1.5 if shares == 2 else None)
    time_verification("two rounds, L = 1000", prio3_two_round(1000, 2), (0, 7))
    time_verification("one round, L = 1000", prio3_one_hot(1000, 2), 7)
    time_verification("bits, L = 100", prio3_bits(100, 2), [1] * 100)
    # The same statement as OneHot in the draft's own circuit: Prio3Histogram, Field128, one proof.
    time_verification("the draft's Histogram, L = 1000", prio3_histogram(1000, 32, 2), 7)


if __name__ == "__main__":
    sys.exit(main())
