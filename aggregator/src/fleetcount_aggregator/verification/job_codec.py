"""A verification job and its result as bytes, for a worker in another process: typed, versioned, refused unless whole.

A job names reports by where they lie; the worker reads them and the window itself, so that no key is in a job. Pure.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, cast, get_args

import numpy as np
from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import Digest, ReportId
from fleetcount_protocol.layout import Reader, sized, uint
from fleetcount_protocol.vdaf.field import SEED_SIZE
from numpy.typing import NDArray

from fleetcount_aggregator.verification.choice import Prefer
from fleetcount_aggregator.verification.share_arithmetic import VerifiedReports

_JOB: Final = b"fc verify job 1"
_RESULT: Final = b"fc verify result 1"
_FAILURE: Final = b"fc verify failure 1"
_PREFERS: Final[tuple[str, ...]] = get_args(Prefer)
_MOST_REPORTS: Final = 2**20
_MOST_ROUNDS: Final = 2
_MOST_BYTES: Final = 2**30
_PLACE: Final = np.dtype(">i8")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VerifyJob:
    """Reports to verify: joined ids, and frame and place of every instalment (n x rounds each), as in `LogSlice`."""

    prefer: Prefer
    ids: bytes
    frames: NDArray[np.int64]
    places: NDArray[np.int64]


def encode_job(job: VerifyJob) -> bytes:
    """Return a job as bytes."""
    count, rounds = job.frames.shape
    head = _JOB + uint(_PREFERS.index(job.prefer), 1) + uint(rounds, 1) + uint(count, 4)
    return head + job.ids + job.frames.astype(_PLACE).tobytes() + job.places.astype(_PLACE).tobytes()


def decode_job(data: bytes) -> VerifyJob:
    """Return the job of some bytes; raises DecodeError unless they are what `encode_job` writes."""
    reader = Reader(data, "a verification job", _MOST_BYTES)
    reader.expect(_JOB)
    prefer = cast("Prefer", _PREFERS[reader.count(1, 0, len(_PREFERS) - 1)])
    rounds = reader.count(1, 0, _MOST_ROUNDS)
    count = reader.count(4, 0, _MOST_REPORTS)
    ids = reader.take(count * ReportId.SIZE)
    frames, places = (_numbers(reader, count, rounds) for _ in range(2))
    reader.finish()
    return VerifyJob(prefer=prefer, ids=ids, frames=frames, places=places)


def _numbers(reader: Reader, count: int, rounds: int) -> NDArray[np.int64]:
    found = np.frombuffer(reader.take(count * rounds * _PLACE.itemsize), dtype=_PLACE).astype(np.int64)
    if len(found) and found.min() < 0:
        raise DecodeError(f"a verification job names place {found.min()}; allowed are 0 and more")
    return found.reshape(count, rounds)


def encode_result(verified: VerifiedReports) -> bytes:
    """Return what verification gave as bytes."""
    count = len(verified.reasons)
    damaged = uint(len(verified.damaged), 4) + b"".join(uint(number, 4) for number in verified.damaged)
    shares, total = sized(verified.verifier_shares, 4), sized(verified.output_sum, 4)
    fixed = verified.reasons + verified.seeds + verified.share_digests
    return _RESULT + uint(count, 4) + fixed + shares + total + damaged


def encode_failure(reason: str) -> bytes:
    """Return as bytes that the worker's machine could not do the job, and why."""
    return _FAILURE + sized(reason.encode()[:1000], 2)


def decode_result(data: bytes, count: int) -> VerifiedReports | str:
    """Return what verification of `count` reports gave, or why a worker could not do it.

    Raises:
        DecodeError: the bytes are neither, or about another number of reports.
    """
    reader = Reader(data, "a verification result", _MOST_BYTES)
    if data.startswith(_FAILURE):
        reader.expect(_FAILURE)
        reason = reader.sized(2, 0, 1000).decode(errors="replace")
        reader.finish()
        return reason
    reader.expect(_RESULT)
    reader.count(4, count, count)
    reasons, seeds, digests = (reader.take(count * size) for size in (1, SEED_SIZE, Digest.SIZE))
    shares = reader.sized(4, 0, _MOST_BYTES)
    if count and len(shares) % count:
        raise DecodeError(f"{len(shares)} bytes of verifier shares are not those of {count} reports")
    total = reader.sized(4, 0, _MOST_BYTES)
    damaged = tuple(reader.count(4, 0, count - 1) for _ in range(reader.count(4, 0, count)))
    if any(later <= earlier for earlier, later in pairwise(damaged)):
        raise DecodeError("damaged reports that are not named in order")
    reader.finish()
    return VerifiedReports(
        reasons=reasons,
        seeds=seeds,
        verifier_shares=shares,
        share_digests=digests,
        output_sum=total,
        damaged=damaged,
    )
