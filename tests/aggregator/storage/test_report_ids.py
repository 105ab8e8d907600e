"""Columns of report ids against plain Python, and the table of keys against a list."""

import hashlib
import random

import numpy as np
import pytest
from fleetcount_aggregator.storage import report_ids
from fleetcount_aggregator.storage.key_table import KeyTable
from fleetcount_aggregator.storage.report_ids import ReportIds, ascending, sorted_leaf_digests
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import Digest, ReportId, WindowId
from fleetcount_protocol.release.commitments import leaf_digests, leaf_head
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

WINDOW = WindowId(bytes(range(32)))
# Few distinct words, so that ids share their high words and differ in the low ones.
WORDS = st.sampled_from([0, 1, 2**63, 2**64 - 1, 255, 256])
IDS = st.lists(st.tuples(WORDS, WORDS).map(lambda pair: pair[0].to_bytes(8) + pair[1].to_bytes(8)), unique=True)


@given(IDS, IDS)
def test_ids_are_found_where_they_are(held: list[bytes], wanted: list[bytes]) -> None:
    ids = ReportIds(b"".join(held))

    assert ids.find(b"".join(wanted)).tolist() == [held.index(one) if one in held else -1 for one in wanted]
    assert [held[at] for at in ids.order.tolist()] == sorted(held)
    assert ids.at(ids.order) == b"".join(sorted(held))
    assert len(ids) == len(held)


@pytest.mark.parametrize("alike", [0, 3, 200, 2000])
def test_many_random_ids_are_found(alike: int) -> None:
    """Also where the first five bytes of some are alike, so that sorting by a part of the word is not enough."""
    source = random.Random(3)
    held = [source.randbytes(16) for _ in range(5000)] + [b"alike" + source.randbytes(11) for _ in range(alike)]
    source.shuffle(held)
    ids = ReportIds(b"".join(held))

    assert ids.at(ids.order) == b"".join(sorted(held))
    assert ids.find(b"".join(sorted(held))).tolist() == ids.order.tolist()
    assert ids.find(source.randbytes(160)).tolist() == [-1] * 10


def test_ids_with_one_high_word_are_found_among_others() -> None:
    source = random.Random(9)
    held = [source.randbytes(16) for _ in range(1000)] + [b"the same" + source.randbytes(8) for _ in range(1000)]
    source.shuffle(held)
    absent = [b"the same" + source.randbytes(8) for _ in range(10)] + [
        b"the same" + bytes(8),
        b"the same" + b"\xff" * 8,
    ]

    found = ReportIds(b"".join(held)).find(b"".join([*held, *absent]))

    assert found.tolist() == [*range(2000), *[-1] * 12]


@given(IDS)
def test_ascending_means_sorted_and_each_once(ids: list[bytes]) -> None:
    assert ascending(b"".join(sorted(ids)))
    if len(ids) > 1:
        assert not ascending(b"".join(sorted(ids, reverse=True)))
    if ids:
        assert not ascending(ids[0] + ids[0])


@given(IDS)
def test_the_leaves_of_columns_are_those_of_the_protocol(ids: list[bytes]) -> None:
    ordered = sorted(ids)
    digests = [Digest(one + one) for one in ids]

    expected = leaf_digests(WINDOW, [(ReportId(one), Digest(one + one)) for one in ordered])

    positions = ReportIds(b"".join(ids)).order
    assert sorted_leaf_digests(WINDOW, b"".join(ordered), _rows(digests), positions) == expected


@pytest.mark.parametrize("many", [1, 10**6], ids=["in threads", "in one"])
def test_the_leaves_of_several_blocks_are_those_of_the_protocol(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but some are in one leaf, which is of several blocks, and most leaves have none."""
    monkeypatch.setattr(report_ids, "_MANY", many)
    source = random.Random(8)
    ids = sorted([b"\x80" + source.randbytes(15) for _ in range(9000)] + [source.randbytes(16) for _ in range(40)])
    digests = [Digest(source.randbytes(32)) for _ in ids]
    positions = np.array(source.sample(range(len(ids)), len(ids)))

    expected = leaf_digests(WINDOW, [(ReportId(one), digests[at]) for one, at in zip(ids, positions, strict=True)])

    assert sorted_leaf_digests(WINDOW, b"".join(ids), _rows(digests), positions) == expected


def test_leaves_made_one_at_a_time_are_those_of_the_whole_set() -> None:
    """So a set that no machine's memory holds has a digest: of 2^30 reports a leaf has some 2^22."""
    generator = np.random.default_rng(4)
    high = np.sort(generator.integers(0, 2**64, 2**18, dtype=np.uint64))
    ids = np.array([high, high[::-1]], dtype=">u8").T.copy().view(np.uint8)
    digests = generator.integers(0, 256, (2**18, 32), dtype=np.uint8)
    whole = sorted_leaf_digests(WINDOW, ids.tobytes(), digests, np.arange(2**18))

    for number in (0, 77, 255):
        inside = ids[:, 0] == number
        part, shares = ids[inside], digests[inside]
        alone = sorted_leaf_digests(WINDOW, part.tobytes(), shares, np.arange(len(part)))
        head = leaf_head(WINDOW, number, len(part))
        expected = hashlib.sha256(head + np.concatenate((part, shares), axis=1).tobytes()).digest()
        leaf = slice(32 * number, 32 * number + 32)
        assert len(part) > 900
        assert alone[leaf] == whole[leaf] == expected


def _rows(digests: list[Digest]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 32)


def test_an_order_that_is_handed_out_cannot_be_changed() -> None:
    ids = ReportIds(bytes(16) + bytes(15) + b"\1")

    with pytest.raises(ValueError, match="read-only"):
        ids.order[0] = 1


def test_a_set_that_does_not_ascend_or_fit_has_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = bytes(16), bytes(15) + b"\1"
    digests = _rows([Digest(bytes(32))] * 2)
    for ids, count in ((two + one, 2), (one + one, 2), (one + two, 1)):
        with pytest.raises(UsageError):
            sorted_leaf_digests(WINDOW, ids, digests, np.arange(count))
    monkeypatch.setattr(report_ids, "MAX_REPORTS_PER_WINDOW", 1)
    with pytest.raises(UsageError, match="2 reports, allowed: at most 1"):
        sorted_leaf_digests(WINDOW, one + two, digests, np.arange(2))
    with pytest.raises(UsageError, match="not a multiple of 16"):
        ReportIds(bytes(17))


def test_a_table_of_keys_is_a_dictionary() -> None:
    """Keys are added many at a time and dropped again, over several growths."""
    source = random.Random(5)
    table = KeyTable(32)
    keys: list[bytes] = []
    for _ in range(300):
        if keys and source.random() < 0.2:
            del keys[source.randrange(len(keys)) :]
            table.drop(len(keys))
        else:
            more = [source.randbytes(32) for _ in range(source.randrange(1, 200))]
            words = table.words(b"".join(more))
            assert (table.find(words, table.sums(words)) == -1).all()
            numbers = table.add(words, table.sums(words))
            assert numbers.tolist() == list(range(len(keys), len(keys) + len(more)))
            keys += more

    assert len(table) == len(keys) > 700
    words = table.words(b"".join(keys))
    assert table.find(words, table.sums(words)).tolist() == list(range(len(keys)))
    assert table.keys.tobytes() == b"".join(keys)


@pytest.mark.parametrize("group", [4096, 100])
def test_keys_whose_bucket_is_full_are_in_the_next_ones(group: int) -> None:
    """At four keys a bucket of eight, one bucket in fifty is full."""
    table, source = KeyTable(16), random.Random(8)
    words = table.words(source.randbytes(16 * 4096))
    for start in range(0, 4096, group):
        some = words[start : start + group]
        table.add(some, table.sums(some))
    strangers = table.words(source.randbytes(16 * 4096))

    assert (table._used == 8).sum() > 4
    assert table.find(words, table.sums(words)).tolist() == list(range(4096))
    assert (table.find(strangers, table.sums(strangers)) == -1).all()


def test_the_first_of_each_key_is_told() -> None:
    table = KeyTable(16)
    source = random.Random(6)
    some = [source.randbytes(16) for _ in range(50)]
    many = [source.choice(some) for _ in range(400)]

    first = table.first_of_each(table.sums(table.words(b"".join(many))))

    assert first.tolist() == [key not in many[:at] for at, key in enumerate(many)]


@pytest.mark.parametrize("repeats", [0, 1, 2])
def test_a_single_repeat_is_told_wherever_it_is(repeats: int) -> None:
    """Looked for among the keys that want a cell of another: most of the many here do not repeat, and some do that."""
    table, source = KeyTable(16), random.Random(9)
    for _ in range(200):
        keys = [source.randbytes(16) for _ in range(50)]
        for _ in range(repeats):
            keys.insert(source.randrange(len(keys) + 1), keys[source.randrange(len(keys))])

        first = table.first_of_each(table.sums(table.words(b"".join(keys))))

        assert first.tolist() == [key not in keys[:at] for at, key in enumerate(keys)]


def test_keys_that_differ_in_high_bits_alone_do_not_meet() -> None:
    """Whoever chooses keys might choose such: sums of whole words times odd numbers would be 64 values only."""
    table = KeyTable(16)
    keys = b"".join(
        (low << 58).to_bytes(8, "little") + (high << 58).to_bytes(8, "little")
        for low in range(64)
        for high in range(64)
    )

    words = table.words(keys)
    sums = table.sums(words)

    assert table.first_of_each(sums).all()
    assert table.find(words, sums).tolist() == [-1] * 4096
    table.add(words, sums)
    assert table.find(words, sums).tolist() == list(range(4096))


def test_a_table_refuses_half_a_key() -> None:
    table = KeyTable(16)

    with pytest.raises(ValueError, match="cannot reshape"):
        table.words(bytes(24))


def test_a_table_takes_a_few_bytes_a_key_besides_the_key() -> None:
    table = KeyTable(16)
    for start in range(0, 100_000, 1000):
        words = table.words(b"".join(number.to_bytes(16) for number in range(start, start + 1000)))
        table.add(words, table.sums(words))

    assert table.memory_bytes <= 100_000 * (1.5 * 16 + 16)


def test_positions_may_be_any_integers() -> None:
    ids = ReportIds(bytes(16) + bytes(15) + b"\1")

    assert ids.at(np.array([1], dtype=np.uint32)) == bytes(15) + b"\1"
