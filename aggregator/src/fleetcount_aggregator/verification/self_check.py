"""Whether compiled verification can be trusted on this machine: it meets its scalar twin before it meets a report.

A few made-up reports, honest ones and ones that are not, go through both; one byte of difference, or any failure to
compile or load, and this process stays with code that needs no compiler and says so in the log. So a miscompiled
kernel, a damaged file of machine code or a directory that cannot be read costs time and never a wrong answer. Decides
about no report.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final

from fleetcount_kernel.proofs import (
    NONCE_SIZE,
    VERIFIED,
    BatchVerifier,
    ProofBatch,
    ScalarBatchVerifier,
    VerifierSetting,
    combine_one_by_one,
)
from fleetcount_protocol.vdaf.circuits import OneHot, SumVec, TwoRoundOneHot
from fleetcount_protocol.vdaf.field import FIELD64
from fleetcount_protocol.vdaf.prio3 import Prio3, prio3_bits, prio3_one_hot, prio3_two_round

_log: Final = logging.getLogger("fleetcount.kernel")
_LENGTH: Final = 67
"""Entries a vector of the made-up reports: several blocks and groups of eight, and some left over."""
_KEY: Final = bytes(range(32))
_CTX: Final = b"FCT1" + bytes(32)
_HONEST: Final = 3
_WORD_BYTES: Final = FIELD64.encoded_size


def may_verify(prio3: Prio3, aggregator: int) -> bool:
    """Return whether compiled code gives what plain Python gives for this kind of window at this aggregator."""
    return _covered(prio3) and _agrees("verification", _small(prio3), aggregator, _verifies_alike)


def may_combine(prio3: Prio3) -> bool:
    """Return whether compiled code decides about proofs of this kind as plain Python does."""
    return _covered(prio3) and _agrees("combination", _small(prio3), 0, _combines_alike)


@lru_cache(maxsize=16)
def _covered(prio3: Prio3) -> bool:
    """Return whether there is code to compile for the algorithm, and what compiles it can be loaded."""
    try:
        from fleetcount_kernel.plan import covers
    except Exception as error:
        _say("verification", prio3, type(error).__name__)
        return False
    return covers(prio3)


@lru_cache(maxsize=64)
def _agrees(what: str, prio3: Prio3, aggregator: int, check: Callable[[Prio3, int], bool]) -> bool:
    """Run a check once a process."""
    try:
        if check(prio3, aggregator):
            return True
        reason = "it differs from plain Python"
    except Exception as error:
        # Whatever compiling, loading or running machine code can end with: the others need none of it.
        reason = type(error).__name__
    _say(what, prio3, reason)
    return False


def _say(what: str, prio3: Prio3, reason: str) -> None:
    _log.error("compiled %s of %s is not used here, a slower one is: %s", what, prio3.circuit.name, reason)


def _small(prio3: Prio3) -> Prio3:
    """Return the algorithm with short vectors; compiled code is the same for every length."""
    if isinstance(prio3.circuit, TwoRoundOneHot):
        return prio3_two_round(_LENGTH, prio3.shares)
    if isinstance(prio3.circuit, OneHot):
        return prio3_one_hot(_LENGTH, prio3.shares)
    return prio3_bits(_LENGTH, prio3.shares)


def _verifies_alike(prio3: Prio3, aggregator: int) -> bool:
    from fleetcount_kernel.verifier import KernelBatchVerifier

    setting = VerifierSetting(prio3=prio3, verify_key=_KEY, ctx=_CTX, aggregator=aggregator)
    verifiers: tuple[BatchVerifier, ...] = (ScalarBatchVerifier(setting), KernelBatchVerifier(setting))
    honest = _honest(prio3)[aggregator]
    batch = _joined([honest, *_spoiled(prio3, honest, aggregator)])
    expected, found = (verifier.verify(batch) for verifier in verifiers)
    sums = {verifier.sum_outputs(honest) for verifier in verifiers}
    return expected == found and len(sums) == 1 and expected.reasons.startswith(bytes((VERIFIED,)) * _HONEST)


def _combines_alike(prio3: Prio3, _aggregator: int) -> bool:
    """Compare decisions about honest reports, one with a changed share for every aggregator, and one not canonical."""
    from fleetcount_kernel.verifier import combine_batch

    columns = [
        ScalarBatchVerifier(VerifierSetting(prio3=prio3, verify_key=_KEY, ctx=_CTX, aggregator=place)).verify(batch)
        for place, batch in enumerate(_honest(prio3))
    ]
    honest = [column.verifier_shares for column in columns]
    reports = [list(honest)]
    for place in range(prio3.shares):
        for change in (partial(_flip, at=0), partial(_flip, at=-1), partial(_overwrite, at=0)):
            reports.append([change(one) if place == number else one for number, one in enumerate(honest)])
    shares = [b"".join(one) for one in zip(*reports, strict=True)]
    expected = combine_one_by_one(prio3, _CTX, shares)
    holds = expected[1]
    return expected == combine_batch(prio3, _CTX, shares) and holds.startswith(b"\1" * _HONEST + b"\0")


def _honest(prio3: Prio3) -> list[ProofBatch]:
    """Return made-up honest reports, one batch an aggregator; nobody's, so drawn from a hash of their number."""
    nonces, publics, inputs = b"", b"", [b""] * prio3.shares
    for number in range(_HONEST):
        drawn = hashlib.shake_128(b"compiled code %d" % number).digest(NONCE_SIZE + prio3.rand_size)
        nonce, rand = drawn[:NONCE_SIZE], drawn[NONCE_SIZE:]
        public, shares = prio3.shard(_CTX, _measurement(prio3, number), nonce, rand)
        nonces, publics = nonces + nonce, publics + public
        inputs = [before + share for before, share in zip(inputs, shares, strict=True)]
    return [ProofBatch(nonces=nonces, public_shares=publics, input_shares=shares) for shares in inputs]


def _measurement(prio3: Prio3, number: int) -> object:
    position = number * (_LENGTH - 1) // (_HONEST - 1)
    if isinstance(prio3.circuit, SumVec):
        return [int(index % (number + 2) == 0) for index in range(_LENGTH)]
    return (position * (number % 2), position) if isinstance(prio3.circuit, TwoRoundOneHot) else position


def _spoiled(prio3: Prio3, honest: ProofBatch, aggregator: int) -> Iterator[ProofBatch]:
    """Yield batches in which one report has one thing changed."""
    size = prio3.input_share_size(aggregator)
    for at in (0, size // 2, size - 1):
        yield replace(honest, input_shares=_flip(honest.input_shares, at=at))
    for at in (0, size // 2 // _WORD_BYTES * _WORD_BYTES):
        yield replace(honest, input_shares=_overwrite(honest.input_shares, at=at))
    for at in (0, prio3.public_share_size - 1):
        yield replace(honest, public_shares=_flip(honest.public_shares, at=at))
    yield replace(honest, nonces=_flip(honest.nonces, at=0))


def _flip(column: bytes, *, at: int) -> bytes:
    """Return a column of honest reports with one bit of the first of them changed."""
    size = len(column) // _HONEST
    place = at % size
    return column[:place] + bytes((column[place] ^ 1,)) + column[place + 1 :]


def _overwrite(column: bytes, *, at: int) -> bytes:
    """Return a column of honest reports with a word of the second that is not below p."""
    place = len(column) // _HONEST + at
    return column[:place] + FIELD64.modulus.to_bytes(_WORD_BYTES, "little") + column[place + _WORD_BYTES :]


def _joined(batches: list[ProofBatch]) -> ProofBatch:
    return ProofBatch(
        nonces=b"".join([one.nonces for one in batches]),
        public_shares=b"".join([one.public_shares for one in batches]),
        input_shares=b"".join([one.input_shares for one in batches]),
    )
