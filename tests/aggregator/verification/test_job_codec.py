"""A job and its result come back as they were written, and nothing else is taken for one."""

import numpy as np
import pytest
from fleetcount_aggregator.verification.job_codec import (
    VerifyJob,
    decode_job,
    decode_result,
    encode_failure,
    encode_job,
    encode_result,
)
from fleetcount_aggregator.verification.share_arithmetic import VerifiedReports
from fleetcount_protocol.errors import DecodeError

JOB = VerifyJob(
    prefer="scalar",
    ids=bytes(range(48)),
    frames=np.array([[0, 3], [1 << 48, 4], [2, 5]], dtype=np.int64),
    places=np.array([[0, 1], [2, 3], [4, 2**31]], dtype=np.int64),
)
RESULT = VerifiedReports(
    reasons=bytes((0, 7, 0)),
    seeds=bytes(range(96)),
    verifier_shares=bytes(range(24)),
    share_digests=bytes(96),
    output_sum=b"\1" * 16,
    damaged=(1,),
)


def test_a_job_comes_back_as_it_was_written() -> None:
    back = decode_job(encode_job(JOB))
    assert (back.prefer, back.ids) == (JOB.prefer, JOB.ids)
    assert np.array_equal(back.frames, JOB.frames)
    assert np.array_equal(back.places, JOB.places)


def test_a_result_and_a_failure_come_back_as_they_were_written() -> None:
    assert decode_result(encode_result(RESULT), 3) == RESULT
    assert decode_result(encode_failure("the disk failed"), 3) == "the disk failed"


@pytest.mark.parametrize("data", [encode_job(JOB), encode_result(RESULT), encode_failure("why")])
def test_nothing_but_the_whole_is_taken(data: bytes) -> None:
    def decode(data: bytes) -> object:
        return decode_job(data) if data.startswith(b"fc verify job") else decode_result(data, 3)

    for wrong in (data[:-1], data + b"\0", b"x" + data[1:], data.replace(b" 1", b" 2", 1)):
        with pytest.raises(DecodeError):
            decode(wrong)


def test_a_result_of_another_number_of_reports_is_refused() -> None:
    with pytest.raises(DecodeError, match="counts 3 parts, not 4 to 4"):
        decode_result(encode_result(RESULT), 4)


def test_a_job_names_no_place_below_zero() -> None:
    wrong = VerifyJob(prefer="auto", ids=JOB.ids, frames=-JOB.frames, places=JOB.places)
    with pytest.raises(DecodeError, match="allowed are 0 and more"):
        decode_job(encode_job(wrong))
