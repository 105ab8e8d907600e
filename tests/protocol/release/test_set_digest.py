"""One digest a set and window, whatever the order; every other set has another one, and other leaves where it
differs.
"""

from hashlib import sha256
from random import Random

import pytest
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import Digest, ReportId, WindowId
from fleetcount_protocol.release.commitments import leaf_digests, public_share_digest, set_digest, set_root

from tests.support.protocol_samples import seed_bytes

WINDOW = WindowId(seed_bytes("window"))
ITEMS = [(ReportId(seed_bytes(f"id {n}", 16)), public_share_digest(seed_bytes(f"share {n}", 64))) for n in range(12)]
ITEMS.append((ReportId(ITEMS[0][0][:1] + bytes(15)), ITEMS[0][1]))
"""Of two of them the ids begin alike."""


def differing(one: bytes, other: bytes) -> list[int]:
    return [number for number in range(256) if one[32 * number :][:32] != other[32 * number :][:32]]


def test_order_does_not_matter() -> None:
    shuffled = list(ITEMS)
    Random(5).shuffle(shuffled)

    assert set_digest(WINDOW, shuffled) == set_digest(WINDOW, ITEMS) == set_digest(WINDOW, iter(ITEMS))


def test_every_other_set_has_another_digest_and_differs_in_its_own_leaf_alone() -> None:
    whole = leaf_digests(WINDOW, ITEMS)
    digests = {set_digest(WINDOW, ITEMS), set_digest(WINDOW, []), set_digest(WindowId(bytes(32)), ITEMS)}
    for index, (report_id, share) in enumerate(ITEMS):
        rest = ITEMS[:index] + ITEMS[index + 1 :]
        digests.add(set_digest(WINDOW, rest))
        digests.add(set_digest(WINDOW, [*rest, (report_id, Digest(seed_bytes("other")))]))
        digests.add(set_digest(WINDOW, [*rest, (ReportId(seed_bytes("other", 16)), share)]))
        assert differing(whole, leaf_digests(WINDOW, rest)) == [report_id[0]]

    assert len(digests) == 3 + 3 * len(ITEMS)
    assert len(differing(whole, leaf_digests(WindowId(bytes(32)), ITEMS))) == 256


def test_equal_leaves_of_different_places_differ() -> None:
    """Of two empty ones too: a leaf stands for its place alone."""
    leaves = leaf_digests(WINDOW, ITEMS)

    assert len({leaves[at : at + 32] for at in range(0, len(leaves), 32)}) == 256


def test_a_report_counts_once() -> None:
    for twin in (ITEMS[0], (ITEMS[0][0], Digest(seed_bytes("other")))):
        with pytest.raises(UsageError, match="twice"):
            set_digest(WINDOW, [*ITEMS, twin])


@pytest.mark.parametrize(("cap", "least"), [("MAX_REPORTS_PER_WINDOW", 12), ("MAX_REPORTS_PER_LEAF", 1)])
def test_a_set_and_each_of_its_leaves_are_capped(cap: str, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"fleetcount_protocol.release.commitments.{cap}", least + 1)
    set_digest(WINDOW, ITEMS)
    monkeypatch.setattr(f"fleetcount_protocol.release.commitments.{cap}", least)

    with pytest.raises(UsageError, match=f"allowed: at most {least}"):
        set_digest(WINDOW, ITEMS)


def test_a_root_is_over_all_leaves() -> None:
    for leaves in (b"", bytes(32 * 255), bytes(32 * 256 + 1)):
        with pytest.raises(UsageError, match="allowed: 8192"):
            set_root(WINDOW, leaves)


def test_the_digest_is_that_of_the_documented_bytes() -> None:
    leaves = []
    for number in range(256):
        inside = sorted(one + share for one, share in ITEMS if one[0] == number)
        head = b"fleetcount v2 set leaf" + WINDOW + bytes([number]) + len(inside).to_bytes(4)
        leaves.append(sha256(head + b"".join(inside)).digest())

    assert leaf_digests(WINDOW, ITEMS) == b"".join(leaves)
    assert set_digest(WINDOW, ITEMS) == sha256(b"fleetcount v2 report set" + WINDOW + b"".join(leaves)).digest()
