"""Mutated reports through the compiled verifier, NumPy's and their scalar twin: the same verdict and reason for each.

    python -m tests.support.fuzz_proofs --reports 1000000 --seed 1

Every report starts from a valid or an invalid measurement and has none, one or several of its fields changed. All
implementations verify it at all aggregators and combine; any difference ends the run with the report in the message.
Small circuits, so that the twin keeps up. Draws are seeded: a run can be repeated. For tests only.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fleetcount_aggregator.verification.choice import combine, new_batch_verifier
from fleetcount_kernel.proofs import ProofBatch, VerifierSetting
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.vdaf.field import FIELD64
from fleetcount_protocol.vdaf.prio3 import (
    Prio3,
    prio3_bits,
    prio3_one_hot,
    prio3_sum_vec_with_multiproof,
    prio3_two_round,
)

P: Final = FIELD64.modulus
CTX: Final = b"FCT1" + bytes(range(32))
WORDS: Final = [0, 1, 2, 2**32 - 1, 2**32, P // 2, P - 1, P, P + 1, 2**64 - 1]
ENTRIES: Final = [0, 1, 2, P - 1, P // 2 + 1]

ALGORITHMS: Final = (
    prio3_two_round(2, 2),
    prio3_two_round(3, 2),
    prio3_two_round(5, 3),
    prio3_one_hot(2, 2),
    prio3_one_hot(4, 3),
    prio3_bits(1, 2),
    prio3_bits(3, 2),
    prio3_sum_vec_with_multiproof(5, 1, 2, 2),
)


class Difference(Exception):
    """The two implementations disagree."""


@dataclass(slots=True)
class Report:
    """One report as all aggregators hold it."""

    nonce: bytes
    public: bytes
    shares: list[bytes]


def sharded(prio3: Prio3, draws: random.Random) -> Report:
    """Return a report of a measurement that is valid in about half of the cases."""
    length = prio3.circuit.measurement_length
    encoded = [draws.choice(ENTRIES) for _ in range(length)]
    if draws.random() < 0.5:
        encoded = valid(prio3, draws)
    nonce = draws.randbytes(16)
    public, shares = prio3.shard_encoded(CTX, encoded, nonce, draws.randbytes(prio3.rand_size))
    return Report(nonce, public, list(shares))


def valid(prio3: Prio3, draws: random.Random) -> list[int]:
    """Return a valid encoded measurement."""
    circuit, length = prio3.circuit, prio3.circuit.measurement_length
    if circuit.name == "TwoRoundOneHot":
        place = draws.randrange(length // 2)
        return circuit.encode((draws.choice([0, place]), place))
    return circuit.encode(draws.randrange(length) if circuit.name == "OneHot" else draws.choices([0, 1], k=length))


def flip_bit(text: bytes, draws: random.Random) -> bytes:
    """Return the bytes with one bit changed."""
    changed = bytearray(text)
    bit = draws.randrange(8 * len(text))
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def set_word(text: bytes, draws: random.Random) -> bytes:
    """Return the bytes with one word replaced by one at the edge of the field."""
    at = 8 * draws.randrange(len(text) // 8)
    return text[:at] + draws.choice(WORDS).to_bytes(8, "little") + text[at + 8 :]


def add_to_word(text: bytes, draws: random.Random) -> bytes:
    """Return the bytes with a field element added to one word, so that it stays canonical if it was."""
    at = 8 * draws.randrange(len(text) // 8)
    word = (int.from_bytes(text[at : at + 8], "little") + draws.choice([1, 2**32, P - 1])) % P
    return text[:at] + word.to_bytes(8, "little") + text[at + 8 :]


def mutate(report: Report, other: Report, draws: random.Random) -> str:
    """Change one field of the report in place; return what was done."""
    change: Callable[[bytes, random.Random], bytes] = draws.choice([flip_bit, set_word, add_to_word])
    j = draws.randrange(len(report.shares))
    kind = draws.choice(["nonce", "public", "share", "share", "blind", "random", "zeros", "swap", "rotate", "stranger"])
    if kind == "nonce":
        report.nonce = change(report.nonce, draws)
    elif kind == "public":
        report.public = change(report.public, draws)
    elif kind == "share":
        report.shares[j] = change(report.shares[j], draws)
    elif kind == "blind":
        report.shares[j] = report.shares[j][:-32] + change(report.shares[j][-32:], draws)
    elif kind == "random":
        report.shares[j] = draws.randbytes(len(report.shares[j]))
    elif kind == "zeros":
        report.shares[j] = bytes(len(report.shares[j]))
    elif kind == "swap":
        report.shares[j] = other.shares[j]
    elif kind == "rotate":
        report.public = report.public[32:] + report.public[:32]
    else:
        report.nonce, report.public = other.nonce, other.public
    return kind


def mutated(pool: Sequence[Report], draws: random.Random) -> Report:
    """Return a report of the pool with no change, one, or a few."""
    base = draws.choice(pool)
    report = Report(base.nonce, base.public, list(base.shares))
    for _ in range(draws.choice([0, 1, 1, 1, 1, 2, 3])):
        mutate(report, draws.choice(pool), draws)
    return report


def batch_of(reports: Sequence[Report], aggregator: int) -> ProofBatch:
    """Return the columns of one aggregator."""
    return ProofBatch(
        nonces=b"".join(report.nonce for report in reports),
        public_shares=b"".join(report.public for report in reports),
        input_shares=b"".join(report.shares[aggregator] for report in reports),
    )


def first_difference(setting: VerifierSetting, reports: Sequence[Report]) -> str:
    """Return the first report that differs by itself, or a word on all."""
    for report in reports:
        batch = batch_of([report], setting.aggregator)
        ours, twins = (new_batch_verifier(setting, prefer=which).verify(batch) for which in ("kernel", "scalar"))
        if ours != twins:
            return f"{report}: {ours} and not {twins}"
    return f"only in a batch: {reports}"


def compare(prio3: Prio3, key: bytes, reports: Sequence[Report]) -> Counter[str]:
    """Verify and combine with both implementations; return how many reports met which end."""
    answers = []
    for j in range(prio3.shares):
        setting = VerifierSetting(prio3=prio3, verify_key=key, ctx=CTX, aggregator=j)
        batch = batch_of(reports, j)
        ours, twins = (new_batch_verifier(setting, prefer=which).verify(batch) for which in ("kernel", "scalar"))
        by_numpy = new_batch_verifier(setting, prefer="arrays").verify(batch)
        if not ours == by_numpy == twins:
            raise Difference(f"{prio3}, aggregator {j}, key {key.hex()}: {first_difference(setting, reports)}")
        answers.append(ours)
    columns = [answer.verifier_shares for answer in answers]
    ours_combined, twins_combined = (combine(prio3, CTX, columns, prefer=which) for which in ("kernel", "scalar"))
    if ours_combined != twins_combined:
        raise Difference(f"{prio3}, combining, key {key.hex()}: {reports}")
    messages, holds = ours_combined
    ends: Counter[str] = Counter()
    for row in range(len(reports)):
        reasons = {answer.reasons[row] for answer in answers} - {0}
        agree = all(answer.seeds[32 * row :][:32] == messages[32 * row :][:32] for answer in answers)
        end = "accepted" if holds[row] and agree else "proof does not hold" if not holds[row] else "seeds differ"
        ends[RejectReason(max(reasons)).label if reasons else end] += 1
    return ends


def run(count: int, seed: int, say: Callable[[str], None] | None = None) -> Counter[str]:
    """Compare `count` reports; return how many met which end. Raises Difference."""
    draws, ends, done, begin, told = random.Random(seed), Counter[str](), 0, time.monotonic(), 0.0
    while done < count:
        prio3 = draws.choice(ALGORITHMS)
        pool = [sharded(prio3, draws) for _ in range(min(24, count))]
        size = min(draws.randrange(1, 400), count - done)
        ends += compare(prio3, draws.randbytes(32), [mutated(pool, draws) for _ in range(size)])
        done += size
        passed = time.monotonic() - begin
        if say is not None and (passed - told > 10 or done == count):
            told = passed
            say(f"{done} of {count} reports, {passed:.0f} s: {dict(ends)}")
    return ends


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; 0 when no report differed."""
    parser = argparse.ArgumentParser(description="Compare the compiled verifier with its scalar twin.")
    parser.add_argument("--reports", type=int, default=20_000, help="how many mutated reports")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same reports")
    chosen = parser.parse_args(arguments)
    try:
        run(chosen.reports, chosen.seed, lambda line: print(line, flush=True))
    except Difference as difference:
        print(f"DIFFERENT: {difference}", file=sys.stderr)
        return 1
    print("no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
