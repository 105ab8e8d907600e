"""One digest a set, whatever the order; another digest for every other set."""

from hashlib import sha256
from random import Random

import pytest
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import Digest, ReportId
from fleetcount_protocol.release.set_digest import public_share_digest, set_digest

from tests.support.protocol_samples import seed_bytes

ITEMS = [(ReportId(seed_bytes(f"id {n}", 16)), public_share_digest(seed_bytes(f"share {n}", 64))) for n in range(12)]


def test_order_does_not_matter() -> None:
    shuffled = list(ITEMS)
    Random(5).shuffle(shuffled)

    assert set_digest(shuffled) == set_digest(ITEMS) == set_digest(iter(ITEMS))


def test_every_other_set_has_another_digest() -> None:
    digests = {set_digest(ITEMS), set_digest([])}
    for index, (report_id, share) in enumerate(ITEMS):
        rest = ITEMS[:index] + ITEMS[index + 1 :]
        digests.add(set_digest(rest))
        digests.add(set_digest([*rest, (report_id, Digest(seed_bytes("other")))]))
        digests.add(set_digest([*rest, (ReportId(seed_bytes("other", 16)), share)]))

    assert len(digests) == 2 + 3 * len(ITEMS)


def test_a_report_counts_once() -> None:
    for twin in (ITEMS[0], (ITEMS[0][0], Digest(seed_bytes("other")))):
        with pytest.raises(UsageError, match="twice"):
            set_digest([*ITEMS, twin])


def test_set_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetcount_protocol.release.set_digest.MAX_REPORTS_PER_TASK", 11)

    with pytest.raises(UsageError, match="at most 11"):
        set_digest(ITEMS)


def test_the_digest_is_that_of_the_documented_bytes() -> None:
    written = b"fleetcount v1 report set" + len(ITEMS).to_bytes(8) + b"".join(a + b for a, b in sorted(ITEMS))

    assert set_digest(ITEMS) == sha256(written).digest()
