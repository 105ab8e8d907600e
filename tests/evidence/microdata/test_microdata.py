"""A published table keeps every threshold, loses no record, and its order says nothing about the input's."""

from collections import Counter, defaultdict
from fractions import Fraction
from itertools import permutations
from typing import Protocol

import fleetcount_evidence.microdata.buckets as buckets_module
import fleetcount_evidence.microdata.publication as microdata_module
import fleetcount_evidence.microdata.table as table_module
import pytest
from fleetcount_analysis.errors import AnalysisError
from fleetcount_evidence.buckets.assignment import Bucket
from fleetcount_evidence.buckets.setting import UnsatisfiableError
from fleetcount_evidence.microdata.publication import Publication, publish, shuffled, worst_posteriors
from fleetcount_evidence.microdata.report import report_text, summarise
from fleetcount_evidence.microdata.request import Algorithm, LinearRule, PublicationRequest
from fleetcount_evidence.microdata.table import ColumnRoles, Microdata, MicrodataError, read_table
from fleetcount_mechanisms.randomness import SeededRandom
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.support.input_order import InputOrder
from tests.support.nightly import NIGHTLY

RULE = LinearRule(theta=Fraction(2), offset=Fraction(1, 50))
ROLES = ColumnRoles(quasi_identifiers=("who",), sensitive="disease", allow_unique=("who",))
LEAST_P = 1e-20


class Source(Protocol):
    def random_bytes(self, count: int, /) -> bytes: ...


class Leaning:
    """Uniform keys plus half the item's place: a shuffle that half remembers the order."""

    def __init__(self, seed: int) -> None:
        self._uniform = SeededRandom(seed)

    def random_bytes(self, count: int, /) -> bytes:
        items = count // 16
        stream = self._uniform.random_bytes(15 * items)
        keys = (int.from_bytes(stream[15 * i : 15 * i + 15], "big") for i in range(items))
        return b"".join((key + (i << 120) // (2 * items)).to_bytes(16, "big") for i, key in enumerate(keys))


def people(values: list[str]) -> Microdata:
    """A table whose only attribute is the record's place in the input."""
    attributes = tuple((str(place),) for place in range(len(values)))
    return Microdata(roles=ROLES, attributes=attributes, sensitive=tuple(values))


def joined(publication: Publication) -> dict[int, tuple[list[tuple[str, ...]], Counter[str]]]:
    """The two tables as a reader joins them: bucket -> (records, values)."""
    tables: dict[int, tuple[list[tuple[str, ...]], Counter[str]]] = defaultdict(lambda: ([], Counter()))
    for bucket, attributes in publication.records:
        tables[bucket][0].append(attributes)
    for bucket, value, count in publication.values:
        tables[bucket][1][value] += count
    return dict(tables)


def skewed(records: int, kinds: int = 6) -> list[str]:
    weights = [1 / (kind + 1) for kind in range(kinds)]
    values = [f"v{k}" for k in range(kinds) for _ in range(round(records * weights[k] / sum(weights)))]
    return shuffled(values, SeededRandom(5))


@st.composite
def tables(draw: st.DrawFn) -> list[str]:
    counts = draw(st.lists(st.integers(1, 12), min_size=2, max_size=5))
    return draw(st.permutations([f"v{k}" for k, count in enumerate(counts) for _ in range(count)]))


# What a reader can believe.


@settings(max_examples=150 if NIGHTLY else 40, deadline=None)
@given(values=tables(), algorithm=st.sampled_from(Algorithm), theta=st.fractions(1, 4, max_denominator=4))
def test_rejoined_tables_keep_every_threshold_and_every_record_finds_its_value(
    values: list[str], algorithm: Algorithm, theta: Fraction
) -> None:
    request = PublicationRequest(thresholds=LinearRule(theta=theta, offset=Fraction(1, 50)), algorithm=algorithm)
    try:
        publication = publish(people(values), request, SeededRandom(1))
    except AnalysisError:
        assume(False)

    found = joined(publication)
    thresholds = dict(zip(publication.domain.names, publication.domain.values.thresholds, strict=True))
    for records, held in found.values():
        assert len(records) == held.total()
        assert Counter(values[int(who)] for (who,) in records) == held
        assert all(Fraction(count, len(records)) <= thresholds[value] for value, count in held.items())
    assert sorted(int(who) for records, _ in found.values() for (who,) in records) == list(range(len(values)))
    assert sorted(found) == list(range(1, len(found) + 1))


def test_the_worst_posterior_is_the_largest_share_in_any_bucket() -> None:
    records = [(1, ("a",)), (1, ("b",)), (1, ("c",)), (2, ("d",)), (2, ("e",))]

    worst = worst_posteriors(records, [(1, "flu", 2), (1, "hiv", 1), (2, "flu", 1), (2, "hiv", 1)])

    assert worst == {"flu": Fraction(2, 3), "hiv": Fraction(1, 2)}


def test_thresholds_are_kept_to_the_last_unit() -> None:
    # 0.58 * 50 is 28.999999999999996 in floats; exactly it is 29, and a bucket of 50 may hold 29.
    values = ["often"] * 29 + ["rare"] * 21
    exact = {"often": Fraction("0.58"), "rare": Fraction(1)}

    request = PublicationRequest(thresholds=exact, algorithm=Algorithm.TWO_SIZE, smallest=50, largest=51)

    assert publish(people(values), request, SeededRandom(1)).worst == (Fraction(29, 50), Fraction(21, 50))
    with pytest.raises(UnsatisfiableError, match="'often' has 29 of 50 records, a share of 29/50 above its threshold"):
        publish(
            people(values),
            PublicationRequest(thresholds={**exact, "often": Fraction(29, 50) - Fraction(1, 10**18)}),
            SeededRandom(1),
        )


@pytest.mark.parametrize("algorithm", [Algorithm.TWO_SIZE, Algorithm.MULTI_SIZE, Algorithm.OPTIMAL])
def test_shuffled_input_and_permuted_columns_give_the_same_loss(algorithm: Algorithm) -> None:
    values = skewed(300)
    request = PublicationRequest(thresholds=RULE, algorithm=algorithm, largest=20)
    roles = ColumnRoles(quasi_identifiers=("b", "a"), sensitive="disease")
    other = Microdata(
        roles=roles,
        attributes=tuple((str(i % 3), str(i % 5)) for i in range(len(values))),
        sensitive=tuple(shuffled(values, SeededRandom(9))),
    )

    first, second = (publish(table, request, SeededRandom(seed)) for seed, table in ((1, people(values)), (2, other)))

    assert first.setting == second.setting
    assert first.setting.loss == second.setting.loss > 0
    assert first.worst == second.worst


# What the order says.


def order_p_values(publication: Publication, values: list[str]) -> dict[str, float]:
    """How likely each of seven marks of the output's order would be, were the order uniform."""
    records, found = publication.records, joined(publication)
    places = [int(who) for _, (who,) in records]
    numbers = [bucket for bucket, _ in records]
    held = defaultdict(list)
    for bucket, value, _ in publication.values:
        held[bucket].append(value)
    firsts = [[values[int(who)] for (who,) in members[:2]] for members, _ in found.values() if len(members) > 1]
    unlike = [pair for pair in firsts if pair[0] != pair[1]]
    rising = sum(first < second for first, second in unlike)
    named = [names for names in held.values() if len(names) > 1]
    pairs = [(found[b][1][held[b][0]] / len(found[b][0]), values[int(found[b][0][0][0])] == held[b][0]) for b in found]
    matched = sum(hit - chance for chance, hit in pairs)
    spread = sum(chance * (1 - chance) for chance, _ in pairs) ** 0.5
    sizes = [len(found[bucket][0]) for bucket in sorted(found)]
    same = [(place, bucket) for place, bucket in zip(places, numbers, strict=True) if values[place] == "v1"]
    return {
        "a record's place in the output and in the input": float(stats.spearmanr(range(len(places)), places).pvalue),
        "a record's bucket and its place in the input": float(stats.spearmanr(numbers, places).pvalue),
        "among the records of one value, bucket and place": float(stats.spearmanr(*zip(*same, strict=True)).pvalue),
        "the values of a bucket's first two records": stats.binomtest(rising, len(unlike)).pvalue,
        "a bucket's number and its size": float(stats.spearmanr(range(len(sizes)), sizes).pvalue),
        "the first two values of a bucket": stats.binomtest(sum(n[0] < n[1] for n in named), len(named)).pvalue,
        "a bucket's first record and its first value": float(2 * stats.norm.sf(abs(matched) / spread)),
    }


ORDER_VALUES = skewed(18_000)
ORDER_REQUEST = PublicationRequest(thresholds=RULE, algorithm=Algorithm.MULTI_SIZE, largest=20)


def order_of(source: Source) -> dict[str, float]:
    return order_p_values(publish(people(ORDER_VALUES), ORDER_REQUEST, source), ORDER_VALUES)


def test_no_order_in_the_output_is_related_to_the_input() -> None:
    for mark, p in order_of(SeededRandom(11)).items():
        assert p > LEAST_P, mark


@pytest.mark.parametrize("source", [InputOrder(), Leaning(3)], ids=["no shuffle", "a shuffle that half remembers"])
def test_the_order_marks_would_see_a_shuffle_that_remembers(source: Source) -> None:
    for mark, p in order_of(source).items():
        assert p < LEAST_P, mark


def chi_square_p(drawn: Counter[tuple[str, ...]], trials: int) -> float:
    orders = list(permutations("abcd"))
    return float(stats.chisquare([drawn[order] for order in orders], [trials / 24] * 24).pvalue)


def test_every_order_is_equally_likely() -> None:
    source, leaning, trials = SeededRandom(2), Leaning(2), 24_000

    fair = Counter(tuple(shuffled("abcd", source)) for _ in range(trials))
    unfair = Counter(tuple(shuffled("abcd", leaning)) for _ in range(trials))

    assert chi_square_p(fair, trials) > LEAST_P
    assert chi_square_p(unfair, trials) < LEAST_P


def test_equal_keys_are_drawn_again_and_not_left_in_order() -> None:
    class Tie:
        asked = 0

        def random_bytes(self, count: int, /) -> bytes:
            self.asked += 1
            return bytes(count) if self.asked == 1 else bytes(range(count, 0, -1))

    source = Tie()

    assert shuffled("abc", source) == ["c", "b", "a"]
    assert source.asked == 2
    assert shuffled([], source) == []


def test_buckets_that_break_a_threshold_or_lose_a_record_are_never_published(monkeypatch: pytest.MonkeyPatch) -> None:
    table, request = (
        people(["a", "a", "b", "b"]),
        PublicationRequest(thresholds={"a": Fraction(1, 2), "b": Fraction(1)}),
    )

    for wrong in ([Bucket((2, 0)), Bucket((0, 2))], [Bucket((1, 1))]):
        monkeypatch.setattr(microdata_module, "find_buckets", lambda *_, wrong=wrong: wrong)
        with pytest.raises(RuntimeError, match="nothing is published"):
            publish(table, request, SeededRandom(1))


# Fake values.


def test_fakes_are_distinct_values_of_the_column_in_every_bucket_and_stand_anywhere() -> None:
    values = [f"v{k % 8}" for k in range(800)]
    request = PublicationRequest(
        thresholds=LinearRule(theta=Fraction(1), offset=Fraction(1, 8)), algorithm=Algorithm.ANATOMY, fakes=2
    )

    publication = publish(people(values), request, SeededRandom(4))

    found, first_is_fake = joined(publication), 0
    for bucket, (records, held) in found.items():
        real = {values[int(who)] for (who,) in records}
        assert set(held.values()) == {1}
        assert held.total() == len(records) + 2
        assert real < set(held) <= set(values)
        first_is_fake += next(value for number, value, _ in publication.values if number == bucket) not in real
    assert stats.binomtest(first_is_fake, len(found), 2 / 6).pvalue > LEAST_P
    assert max(publication.worst) == Fraction(1, 4)


def test_no_fake_is_used_that_never_goes_with_an_attribute() -> None:
    # Men have never had v0, though both are frequent: for a bucket with a man v0 would be known for a fake.
    values = [f"v{k % 8}" for k in range(800)]
    sexes = [("f",) if value == "v0" or place % 16 >= 8 else ("m",) for place, value in enumerate(values)]
    roles = ColumnRoles(quasi_identifiers=("sex",), sensitive="disease")
    table = Microdata(roles=roles, attributes=tuple(sexes), sensitive=tuple(values))
    rule = LinearRule(theta=Fraction(1), offset=Fraction(1, 8))

    def false_v0_among_men(support: int | None) -> int:
        request = PublicationRequest(thresholds=rule, algorithm=Algorithm.ANATOMY, fakes=1, association_support=support)
        found = joined(publish(table, request, SeededRandom(6)))
        return sum(held["v0"] == 1 and ("f",) not in people_there for people_there, held in found.values())

    assert false_v0_among_men(None) > 0
    assert false_v0_among_men(30) == 0


def test_too_few_values_for_the_fakes_are_refused() -> None:
    request = PublicationRequest(
        thresholds=LinearRule(theta=Fraction(1), offset=Fraction(1, 4)), algorithm=Algorithm.ANATOMY, fakes=3
    )

    with pytest.raises(UnsatisfiableError, match="needs 3 fake values and only 2"):
        publish(people(["a", "b", "c", "d"] * 5), request, SeededRandom(1))


# What cannot be satisfied, and what cannot be used.


@pytest.mark.parametrize(
    ("values", "thresholds", "said"),
    [
        (["flu"] * 3 + ["hiv"], {"flu": "1/2", "hiv": "1/2"}, "'flu' has 3 of 4 records, a share of 3/4 above its"),
        (["flu"] * 5, {"flu": "1"}, "all 5 records have the value 'flu'"),
        (["flu"] * 5, RULE, "all 5 records have the value 'flu'"),
        (["a", "b"] * 40, {"a": "1/60", "b": "1"}, "'a' has 40 of 80 records"),
    ],
)
def test_what_no_bucket_can_keep_is_refused_with_the_value_and_why(
    values: list[str], thresholds: dict[str, str] | LinearRule, said: str
) -> None:
    exact = thresholds if isinstance(thresholds, LinearRule) else {k: Fraction(v) for k, v in thresholds.items()}

    with pytest.raises(UnsatisfiableError) as refusal:
        publish(people(values), PublicationRequest(thresholds=exact), SeededRandom(1))

    assert said in str(refusal.value)


def test_sizes_that_cannot_keep_the_thresholds_name_the_tightest_value() -> None:
    values = ["rare"] * 10 + [f"v{k % 9}" for k in range(90)]
    thresholds = {f"v{k}": Fraction(1, 2) for k in range(9)} | {"rare": Fraction(1, 9)}

    with pytest.raises(
        UnsatisfiableError, match=r"sizes from 2 to 8 keep .* tightest is that of 'rare' with 10 of 100"
    ):
        publish(people(values), PublicationRequest(thresholds=thresholds, largest=8), SeededRandom(1))
    tight = {name: Fraction(1, 9) for name in thresholds} | {"rare": Fraction(1, 8)}
    with pytest.raises(UnsatisfiableError, match=r"largest threshold, that of 'rare' .* at least 8 records; .* at 4"):
        publish(
            people(values), PublicationRequest(thresholds={**tight, "v0": Fraction(1, 9)}, largest=4), SeededRandom(1)
        )


def test_anatomy_names_the_value_that_is_too_frequent_for_its_diversity() -> None:
    values = ["flu"] * 6 + ["hiv", "ms", "cold", "tb"]
    thresholds = {name: Fraction(1, 4) for name in values} | {"flu": Fraction(1)}

    with pytest.raises(UnsatisfiableError, match=r"1/4 needs 4-diversity.* a value 2 records; 'flu' has 6"):
        publish(people(values), PublicationRequest(thresholds=thresholds, algorithm=Algorithm.ANATOMY), SeededRandom(1))


@pytest.mark.parametrize(
    ("values", "thresholds", "said"),
    [
        (["a", "b"], {"a": "0", "b": "1"}, "threshold of 'a' is 0; allowed is above 0 and at most 1"),
        (["a", "b"], {"a": "3/2", "b": "1"}, "threshold of 'a' is 3/2; allowed is above 0 and at most 1"),
        (["a", "b"], {"a": "-1/2", "b": "1"}, "threshold of 'a' is -1/2"),
        (["a", "b"], {"a": "1", "b": "1"}, "every threshold is 1"),
        (["flu", "hiv", "ms"], {"flu": "1"}, "misses 'hiv' and 1 others"),
        (["flu", "hiv"], {"flu": "1", "hvi": "1/2"}, "names 'hvi', no value of 'disease'; did you mean 'hiv'?"),
        (["Flu", "flu"], {"Flu": "1/2", "flu": "1/2"}, "'Flu' and 'flu' of column 'disease' differ in case, width"),
        (["flu", "flu "], {"flu": "1/2", "flu ": "1/2"}, "differ in case, width or blanks only"),
        (["flu", "ﬂu"], {"flu": "1/2", "ﬂu": "1/2"}, "differ in case, width or blanks only"),
        ([f"v{k}" for k in range(1_001)], RULE, "has 1001 different values; allowed is 2 to 1000: group them"),
        (["x" * 201, "y"], RULE, "has 201 characters; allowed are 200"),
    ],
)
def test_thresholds_that_do_not_fit_the_values_are_refused_by_name(
    values: list[str], thresholds: dict[str, str] | LinearRule, said: str
) -> None:
    exact = thresholds if isinstance(thresholds, LinearRule) else {k: Fraction(v) for k, v in thresholds.items()}

    with pytest.raises(MicrodataError) as refusal:
        publish(people(values), PublicationRequest(thresholds=exact), SeededRandom(1))

    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"smallest": 0}, "sizes is 0 to 50"),
        ({"smallest": 50}, "sizes is 50 to 50; allowed is 1 <= smallest < largest"),
        ({"largest": 1}, "sizes is 1 to 1"),
        ({"largest": 10_001}, "<= 10000"),
        ({"smallest": 2, "largest": 300}, "at most 200 sizes"),
        ({"fakes": -1}, "fakes is -1"),
        ({"fakes": 2}, "algorithm 'anatomy'"),
        ({"association_support": 3}, "together with fakes"),
        ({"association_support": 0, "fakes": 1, "algorithm": Algorithm.ANATOMY}, "at least 1"),
    ],
)
def test_a_request_outside_its_limits_is_refused(arguments: dict, said: str) -> None:
    with pytest.raises(MicrodataError) as refusal:
        PublicationRequest(thresholds=RULE, **arguments)

    assert said in str(refusal.value)


def test_what_would_not_fit_into_memory_or_time_is_refused_before_it_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    table = people(skewed(300))

    monkeypatch.setattr(buckets_module, "_MOST_COUNTS", 100)
    monkeypatch.setattr(buckets_module, "_MOST_VARIABLES", 100)

    with pytest.raises(MicrodataError, match="buckets of 6 values are too many; allowed is a product of at most 100"):
        publish(table, PublicationRequest(thresholds=RULE), SeededRandom(1))
    with pytest.raises(MicrodataError, match="would need 343 variables, values times sizes; allowed is 100"):
        publish(table, PublicationRequest(thresholds=RULE, algorithm=Algorithm.OPTIMAL), SeededRandom(1))
    with pytest.raises(MicrodataError, match="2 to 300; allowed are at most 200 sizes"):
        publish(table, PublicationRequest(thresholds=RULE, largest=300), SeededRandom(1))


# The table.

HEADER = "name,age,zip,disease\n"
TWO = "ann,30,1,flu\nbob,30,2,flu\n"


def read(text: str, **roles: tuple[str, ...]) -> Microdata:
    parts = {"quasi_identifiers": ("age", "zip"), "drop": ("name",), "allow_unique": ("zip",)} | roles
    return read_table(text, ColumnRoles(sensitive="disease", **parts))


def test_dropped_columns_are_gone_and_attributes_stand_in_the_order_asked_for() -> None:
    table = read(HEADER + TWO, quasi_identifiers=("zip", "age"))

    assert table.attributes == (("1", "30"), ("2", "30"))
    assert table.sensitive == ("flu", "flu")
    assert "flu" not in repr(table)


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + HEADER + TWO,
        (HEADER + TWO).replace("\n", "\r\n"),
        (HEADER + TWO).replace("\n", "\r"),
        (HEADER + TWO).removesuffix("\n"),
        HEADER + 'ann,30,1,"flu"\n"bob",30,2,flu\n',
    ],
    ids=["byte order mark", "CRLF", "CR", "no last line end", "quotes"],
)
def test_the_same_table_in_other_dress_is_the_same_table(text: str) -> None:
    assert read(text) == read(HEADER + TWO)


def test_empty_attributes_and_commas_inside_quotes_are_values() -> None:
    table = read(HEADER + 'ann,,"1,5",flu\nbob,30,,flu\neve,30,2,flu\n')

    assert table.attributes == (("", "1,5"), ("30", ""), ("30", "2"))


def test_a_blank_that_does_not_break_is_part_of_a_value_and_of_a_name() -> None:
    text = HEADER.replace("zip", "z\u00a0ip") + TWO.replace("flu", "grande\u00a0grippe")

    assert (
        read(text, quasi_identifiers=("age", "z\u00a0ip"), allow_unique=("z\u00a0ip",)).sensitive
        == ("grande\u00a0grippe",) * 2
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no header"),
        ("\n", "no header"),
        (HEADER, "0 records; it must have 2 to 1000000"),
        (HEADER + "ann,30,1,flu\n", "1 records; it must have 2"),
        (HEADER.replace("zip", "age") + TWO, "names column 'age' 2 times"),
        (HEADER.replace("zip", "") + TWO, "names a column ''"),
        (HEADER.replace("zip", "z\tip") + TWO, "printable characters only"),
        (HEADER.replace("zip", "zipp") + TWO, "'zipp' has no role; list it under quasi_identifiers or under drop; did"),
        (HEADER.replace("zip,", "") + TWO, "column 'zip' is not in the table"),
        ((HEADER + TWO).replace(",", ";"), "'age' is not in the table; fields are separated by commas"),
        ("id," + HEADER + TWO, "column 'id' has no role"),
        (HEADER + TWO + "eve,31,3\n", "line 4 has 3 fields; the header has 4"),
        (HEADER + TWO + "eve,31,3,flu,x\n", "line 4 has 5 fields"),
        (HEADER + "ann,30,1,flu\n\nbob,30,2,flu\n", "line 3 is not CSV: the line is blank"),
        (HEADER + 'ann,30,1,flu\n"bob,30,2,flu\n', "line 3 is not CSV: unexpected end of data (a quote that is not"),
        (HEADER + '"ann,30,1,flu\nbob,30,2,flu\neve",30,2,flu\n', "line 2 is not CSV: a field holds a line end"),
        (HEADER + 'ann,30,1,"flu" or\n', "line 2 is not CSV"),
        (HEADER + f"ann,30,{'9' * 140_000},flu\n", "line 2 is not CSV: field larger than field limit"),
        (HEADER + TWO + "eve,31,3,\n", "line 4, column 'disease' is empty; every record needs a sensitive value"),
        (HEADER + TWO + "eve,31,3,  \n", "line 4, column 'disease' is empty"),
        (HEADER + "ann,30,1,flu\nbob,31,2,flu\n", "'age' has a different value in each of the 2 records"),
    ],
)
def test_a_text_that_is_no_such_table_is_refused_by_line_and_column(text: str, said: str) -> None:
    with pytest.raises(MicrodataError) as refusal:
        read(text)

    assert said in str(refusal.value)
    assert "bob" not in str(refusal.value)


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ({"quasi_identifiers": ()}, "must name at least one column"),
        ({"drop": ("age", "name")}, "'age' is named twice"),
        ({"drop": ("disease", "name")}, "'disease' is named twice"),
        ({"quasi_identifiers": ("bucket",), "allow_unique": ()}, "has the name of the bucket column"),
        ({"allow_unique": ("zipp",)}, "'zipp', which is no quasi-identifier; did you mean 'zip'?"),
    ],
)
def test_a_column_has_exactly_one_part(roles: dict[str, tuple[str, ...]], said: str) -> None:
    with pytest.raises(MicrodataError) as refusal:
        read(HEADER + TWO, **roles)

    assert said in str(refusal.value)


def test_more_records_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "MOST_RECORDS", 1)

    with pytest.raises(MicrodataError, match="more than 1 records"):
        read(HEADER + TWO)


# The report.


def test_the_report_gives_what_the_tables_show_and_what_they_are_not() -> None:
    values = skewed(300)
    request = PublicationRequest(thresholds=RULE, largest=20)
    publication = publish(people(values), request, SeededRandom(1))

    report = summarise(publication, ROLES, request, "1.2")

    sizes = Counter(Counter(bucket for bucket, _ in publication.records).values())
    assert {entry["size"]: entry["buckets"] for entry in report["sizes"]} == sizes
    assert report["loss"] == sum(buckets * (size - 1) ** 2 for size, buckets in sizes.items())
    assert Fraction(report["mean_squared_error"]) == Fraction(report["loss"], len(values) - 1)
    worst = worst_posteriors(publication.records, publication.values)
    assert {entry["value"]: Fraction(entry["worst_posterior"]) for entry in report["values"]} == worst
    assert all(Fraction(entry["worst_posterior"]) <= Fraction(entry["threshold"]) for entry in report["values"])
    assert report["equivalent"]["diversity"] == 7
    assert not report["equivalent"]["possible"]
    believed = [(-Fraction(entry["worst_posterior"]), entry["value"]) for entry in report["values"]]
    assert believed == sorted(believed)
    assert len(set(believed)) > 1
    text = report_text(report)
    for said in ("not differentially private", "Publish one table once", "need l = 7", "min(1, 2 f + 1/50)", "v0"):
        assert said in text


def test_what_a_reader_knows_is_never_shown_as_less() -> None:
    publication = publish(people(skewed(300)), PublicationRequest(thresholds=RULE, largest=20), SeededRandom(1))
    report = summarise(publication, ROLES, PublicationRequest(thresholds=RULE, largest=20), "1.2")
    report["values"][0] |= {"share": "1/30", "worst_posterior": "1/3", "threshold": "33331/99990"}
    report["certainty"] = [{"excluded": 1, "certainty": "2/11"}]

    text = report_text(report)

    [shown] = (line for line in text.splitlines() if "0.03333" in line)
    assert shown.split()[-2:] == ["0.3334", "0.3334"]
    assert "with certainty 0.1819 for" in text


def test_the_report_counts_records_that_stand_out() -> None:
    roles = ColumnRoles(quasi_identifiers=("age", "sex"), sensitive="disease", drop=("name",))
    attributes = (("30", "f"), ("30", "f"), ("30", "m"), ("31", "m"))
    table = Microdata(roles=roles, attributes=attributes, sensitive=("flu", "hiv", "flu", "hiv"))
    request = PublicationRequest(thresholds={"flu": Fraction(1, 2), "hiv": Fraction(1, 2)})

    report = summarise(publish(table, request, SeededRandom(1)), roles, request, "1.2")

    assert report["unique_records"] == 2
    assert report["asked"]["quasi_identifiers"] == [{"column": "age", "values": 2}, {"column": "sex", "values": 2}]
    assert report["asked"]["dropped"] == ["name"]


def test_the_report_says_how_certain_a_value_is_beside_its_fakes() -> None:
    values = [f"v{k % 8}" for k in range(800)]
    request = PublicationRequest(
        thresholds=LinearRule(theta=Fraction(1), offset=Fraction(1, 8)), algorithm=Algorithm.ANATOMY, fakes=2
    )

    report = summarise(publish(people(values), request, SeededRandom(4)), ROLES, request, "1.2")

    assert report["certainty"] == [{"excluded": 0, "certainty": "2/3"}, {"excluded": 3, "certainty": "1/3"}]
    assert report["equivalent"] == {"diversity": 4, "possible": True, "loss": report["loss"]}
    assert "fake values        2 a bucket" in report_text(report)
