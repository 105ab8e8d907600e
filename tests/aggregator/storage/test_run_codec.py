"""What one replica sends another comes back as it was written, and nothing else is taken for it."""

from collections.abc import Callable

import pytest
from fleetcount_aggregator.storage.instalment_run import (
    DigestQuery,
    InstalmentRun,
    StoreOutcome,
    decode_digests,
    decode_outcomes,
    decode_query,
    decode_runs,
    encode_digests,
    encode_outcomes,
    encode_query,
    encode_runs,
)
from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import Digest, WindowId

WINDOW = WindowId(bytes(range(32)))
RUN = InstalmentRun(
    window_id=WINDOW,
    round=2,
    expected=2,
    report_ids=bytes(range(32)),
    certificates=bytes(64),
    digests=b"\1" * 64,
    public_shares=b"public shares.",
    parts=b"some parts",
    key_uses=bytes(36),
)
BARE = InstalmentRun(
    window_id=WINDOW,
    round=0,
    expected=1,
    report_ids=bytes(16),
    certificates=bytes(32),
    digests=bytes(32),
    public_shares=b"",
    parts=b"",
)
QUERY = DigestQuery(window_id=WINDOW, round=1, report_ids=bytes(range(32)))
DIGESTS = [Digest(b"d" * 32), None]
OUTCOMES = [bytes((StoreOutcome.STORED, StoreOutcome.BUSY)), bytes((StoreOutcome.SAME,))]
ENCODED: dict[str, tuple[bytes, Callable[[bytes], object], object]] = {
    "runs": (encode_runs([RUN, BARE]), decode_runs, [RUN, BARE]),
    "query": (encode_query(QUERY), decode_query, QUERY),
    "digests": (encode_digests(DIGESTS), lambda data: decode_digests(data, 2), DIGESTS),
    "outcomes": (encode_outcomes(OUTCOMES), lambda data: decode_outcomes(data, [2, 1]), OUTCOMES),
}


@pytest.mark.parametrize("what", ENCODED)
def test_it_comes_back_whole_or_not_at_all(what: str) -> None:
    data, decode, value = ENCODED[what]

    assert decode(data) == value
    for wrong in (data[:-1], data + b"\0", b"x" + data[1:], data.replace(b" 1", b" 2", 1), b""):
        with pytest.raises(DecodeError):
            decode(wrong)


def test_columns_that_do_not_fit_and_outcomes_that_are_none_are_refused() -> None:
    with pytest.raises(DecodeError, match="do not fit"):
        decode_runs(encode_runs([RUN]).replace(b"\x0epublic shares.", b"\x0fpublic shares.."))
    with pytest.raises(DecodeError, match="above"):
        decode_outcomes(encode_outcomes([b"\7"]), [1])
    with pytest.raises(DecodeError, match="counts 2 parts, not 3 to 3"):
        decode_outcomes(encode_outcomes(OUTCOMES), [3, 1])
