"""Replaying vector files: the good and the bad agree, everything else is a miss or a named error, never a traceback."""

import copy
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
from fleetcount_evidence.replay.draft_circuits import prio3_count, prio3_histogram
from fleetcount_evidence.replay.files import VectorFileError
from fleetcount_evidence.replay.vectors import replay
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.vdaf.prio3 import Prio3, prio3_sum_vec_with_multiproof

from tests.support.nightly import NIGHTLY

VECTORS = Path(__file__).parents[2] / "vectors"
FILES = sorted([*VECTORS.glob("*.json"), *VECTORS.glob("vdaf/*.json")])
SMALL = [
    "Prio3Count_0.json",
    "Prio3Count_bad_meas_share.json",
    "Prio3Histogram_0.json",
    "Prio3Histogram_bad_public_share.json",
    "Prio3Sum_0.json",
    "XofTurboShake128.json",
]
Found = TypeVar("Found")
LARGE = pytest.param("Prio3SumVecWithMultiproof_0.json", marks=pytest.mark.nightly)
CTX, KEY = b"some application", bytes(range(32))


def load(name: str) -> Any:
    return json.loads((VECTORS / "vdaf" / name).read_text())


def write(folder: Path, name: str, document: object) -> Path:
    path = folder / name
    path.write_text(json.dumps(document))
    return path


def test_there_are_vectors() -> None:
    assert len(FILES) == 14


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_vector_agrees_byte_for_byte(path: Path) -> None:
    result = replay(path)

    assert result.misses == ()
    assert result.passed
    assert result.operations > 1
    assert result.line.startswith(f"ok    {path.name}: ")


def test_the_number_of_operations_is_that_of_the_file() -> None:
    for path in FILES:
        document = json.loads(path.read_text())
        if isinstance(document, dict) and "operations" in document:
            assert replay(path).operations == len(document["operations"])


# Vectors made here: other numbers of shares, other parameters, every kind of bad report.


def good_vector(prio3: Prio3, measurements: list[Any], parameters: dict[str, int]) -> dict[str, Any]:
    """Return a vector in the draft's form; it tests the replay, not the numbers in it."""
    operations: list[dict[str, Any]] = []
    reports: list[dict[str, Any]] = []
    outputs: list[list[list[int]]] = []
    for index, measurement in enumerate(measurements):
        nonce, rand = Random(index).randbytes(16), Random(index).randbytes(prio3.rand_size)
        public_share, shares = prio3.shard(CTX, measurement, nonce, rand)
        steps = [prio3.verify_init(KEY, CTX, j, nonce, public_share, share) for j, share in enumerate(shares)]
        message = prio3.combine_verifier_shares(CTX, [step[1] for step in steps])
        outputs.append([prio3.verify_next(CTX, state, message) for state, _ in steps])
        reports.append(
            {
                "measurement": measurement,
                "nonce": nonce.hex(),
                "rand": rand.hex(),
                "public_share": public_share.hex(),
                "input_shares": [share.hex() for share in shares],
                "verifier_shares": [[step[1].hex() for step in steps]],
                "verifier_messages": [message.hex()],
                "out_shares": [prio3.encode_output_share(output).hex() for output in outputs[-1]],
            }
        )
        everyone = range(prio3.shares)
        operations += [
            {"operation": "shard", "report_index": index, "success": True},
            *(
                {"operation": "verify_init", "aggregator_id": j, "report_index": index, "success": True}
                for j in everyone
            ),
            {"operation": "verifier_shares_to_message", "round": 0, "report_index": index, "success": True},
            *(
                {"operation": "verify_next", "round": 1, "aggregator_id": j, "report_index": index, "success": True}
                for j in everyone
            ),
        ]
    sums = [prio3.aggregate(shares) for shares in zip(*outputs, strict=True)]
    operations += [{"operation": "aggregate", "aggregator_id": j, "success": True} for j in range(prio3.shares)]
    return {
        **parameters,
        "shares": prio3.shares,
        "ctx": CTX.hex(),
        "verify_key": KEY.hex(),
        "agg_param": "",
        "operations": [*operations, {"operation": "unshard", "success": True}],
        "reports": reports,
        "agg_shares": [prio3.encode_output_share(total).hex() for total in sums],
        "agg_result": prio3.unshard(sums, len(measurements)),
    }


HISTOGRAM = prio3_histogram(5, 2, 2)
HISTOGRAM_PARAMETERS = {"length": 5, "chunk_length": 2}


def bad_vector(prio3: Prio3, parameters: dict[str, int], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a bad vector in the draft's form: a good report with `changes`, refused when the leader combines."""
    document = good_vector(prio3, [1], parameters)
    report = {**document["reports"][0], **changes, "measurement": None, "verifier_messages": [], "out_shares": []}
    public_share, nonce = bytes.fromhex(report["public_share"]), bytes.fromhex(report["nonce"])
    steps = [
        prio3.verify_init(KEY, CTX, j, nonce, public_share, bytes.fromhex(share))
        for j, share in enumerate(report["input_shares"])
    ]
    report["verifier_shares"] = [[share.hex() for _, share in steps]]
    operations = [
        *({"operation": "verify_init", "aggregator_id": j, "report_index": 0, "success": True} for j in range(2)),
        {"operation": "verifier_shares_to_message", "round": 0, "report_index": 0, "success": False},
    ]
    return {**document, "reports": [report], "operations": operations, "agg_shares": [], "agg_result": None}


def flipped(text: str, place: int) -> str:
    data = bytearray.fromhex(text)
    data[place] ^= 1
    return data.hex()


@pytest.mark.parametrize("shares", [2, 3, 7])
def test_vectors_with_other_parameters_agree(tmp_path: Path, shares: int) -> None:
    cases = {
        "Prio3Count_7.json": good_vector(prio3_count(shares), [1, 0, 1], {}),
        "Prio3Histogram_other-name.json": good_vector(
            prio3_histogram(9, 4, shares), [8, 0], {"length": 9, "chunk_length": 4}
        ),
        "Prio3SumVecWithMultiproof_5.json": good_vector(
            prio3_sum_vec_with_multiproof(3, 6, 2, shares, 4),
            [[1, 6, 0]],
            {"length": 3, "max_measurement": 6, "chunk_length": 2, "proofs": 4},
        ),
    }
    for name, document in cases.items():
        assert replay(write(tmp_path, name, document)).misses == ()


@pytest.mark.parametrize(
    ("kind", "aggregator", "place"),
    [
        ("meas_share", 0, 0),
        ("wire_seed", 0, 16 * 5),
        ("gadget_poly", 0, -33),
        ("helper_seed", 1, 0),
        ("leader_jr_blind", 0, -1),
        ("helper_jr_blind", 1, -1),
    ],
)
def test_every_kind_of_bad_share_fails_where_it_must(tmp_path: Path, kind: str, aggregator: int, place: int) -> None:
    shares = good_vector(HISTOGRAM, [1], HISTOGRAM_PARAMETERS)["reports"][0]["input_shares"]
    shares[aggregator] = flipped(shares[aggregator], place)
    document = bad_vector(HISTOGRAM, HISTOGRAM_PARAMETERS, {"input_shares": shares})

    assert replay(write(tmp_path, f"Prio3Histogram_bad_{kind}.json", document)).misses == ()


def test_a_bad_public_share_fails_where_it_must(tmp_path: Path) -> None:
    public_share = good_vector(HISTOGRAM, [1], HISTOGRAM_PARAMETERS)["reports"][0]["public_share"]
    document = bad_vector(HISTOGRAM, HISTOGRAM_PARAMETERS, {"public_share": flipped(public_share, 0)})

    assert replay(write(tmp_path, "Prio3Histogram_bad_public_share.json", document)).misses == ()


def bad_message_vector() -> dict[str, Any]:
    document = good_vector(HISTOGRAM, [1], HISTOGRAM_PARAMETERS)
    report = document["reports"][0]
    report.update(measurement=None, verifier_messages=["00" * 32], out_shares=[])
    report["verifier_shares"] = [report["verifier_shares"][0][:1]]
    document["operations"] = [
        {"operation": "verify_init", "aggregator_id": 0, "report_index": 0, "success": True},
        {"operation": "verify_next", "aggregator_id": 0, "report_index": 0, "round": 1, "success": False},
    ]
    return {**document, "agg_shares": [], "agg_result": None}


def test_a_bad_verifier_message_fails_where_it_must(tmp_path: Path) -> None:
    path = write(tmp_path, "Prio3Histogram_bad_verifier_message.json", bad_message_vector())

    assert replay(path).misses == ()


def test_a_bad_vector_that_verifies_is_a_miss(tmp_path: Path) -> None:
    document = bad_vector(HISTOGRAM, HISTOGRAM_PARAMETERS, {})

    result = replay(write(tmp_path, "Prio3Histogram_bad_nothing.json", document))

    assert any("must fail" in miss for miss in result.misses)


def test_a_bad_vector_without_a_failing_operation_is_a_miss(tmp_path: Path) -> None:
    result = replay(write(tmp_path, "Prio3Count_bad_none.json", load("Prio3Count_0.json")))

    assert result.misses == ("no operation of a bad vector must fail",)


def test_an_operation_that_fails_where_it_must_succeed_is_a_miss(tmp_path: Path) -> None:
    document = load("Prio3Count_bad_meas_share.json")
    document["operations"][2]["success"] = True

    assert not replay(write(tmp_path, "Prio3Count_bad_meas_share.json", document)).passed


# Tampering.


def leaves(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield every value in the document that is neither object nor list, with its path."""
    if isinstance(node, dict | list):
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from leaves(child, (*path, key))
    else:
        yield path, node


def some(found: Iterator[Found]) -> Iterator[Found]:
    """Yield what was found, in `make nightly`; otherwise the first and every third behind it."""
    return islice(found, 0, None, 1 if NIGHTLY else 3)


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    result = copy.deepcopy(document)
    node = result
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return result


def altered(value: Any, random: Random) -> Any:
    """Return another value of the same form."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if not value:
        return "00" if value == "" else 0
    if not all(letter in "0123456789abcdef" for letter in value):
        return value + "x"
    place = random.randrange(len(value))
    return value[:place] + f"{int(value[place], 16) ^ 1:x}" + value[place + 1 :]


def inert(name: str, path: tuple[Any, ...]) -> bool:
    """The randomness of a bad report is no operation's input: nothing in the file says what it should be."""
    return "_bad_" in name and path[-1] in {"rand", "measurement", "agg_result"}


def outcome(path: Path) -> str:
    try:
        return "ok" if replay(path).passed else "miss"
    except VectorFileError as error:
        return "error" if path.name in str(error) else "ok"


@pytest.mark.parametrize("name", [*SMALL, LARGE, "Prio3MultihotCountVec_0.json"])
def test_every_changed_value_is_noticed(tmp_path: Path, name: str) -> None:
    document = load(name)
    random = Random(name)
    for path, value in some(leaves(document)):
        if not inert(name, path):
            tampered = changed(document, path, altered(value, random))
            assert outcome(write(tmp_path, name, tampered)) != "ok", path


def test_every_changed_value_of_our_own_vectors_is_noticed(tmp_path: Path) -> None:
    random = Random(0)
    for name in ("two_round.json", "two_round_bad.json"):
        for case in json.loads((VECTORS / name).read_text())[:2]:
            for path, value in some(leaves([case])):
                if value is None:
                    continue
                tampered = changed([case], path, altered(value, random))
                assert outcome(write(tmp_path, name, tampered)) != "ok", path


@pytest.mark.parametrize("name", SMALL)
def test_a_value_of_another_kind_is_noticed(tmp_path: Path, name: str) -> None:
    document = load(name)
    for path, _ in some(leaves(document)):
        for odd in (None, [], {}, "zz", -1, 1.5, 10**30, "0", [None], True):
            tampered = changed(document, path, odd)
            if tampered != document and not inert(name, path):
                assert outcome(write(tmp_path, name, tampered)) != "ok", (path, odd)


def without(document: Any, path: tuple[Any, ...]) -> Any:
    result = copy.deepcopy(document)
    node = result
    for key in path[:-1]:
        node = node[key]
    del node[path[-1]]
    return result


def inner_paths(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every entry of every object and list."""
    if isinstance(node, dict | list):
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield (*path, key)
            yield from inner_paths(child, (*path, key))


@pytest.mark.parametrize("name", SMALL)
def test_whatever_is_taken_out_is_noticed(tmp_path: Path, name: str) -> None:
    document = load(name)
    for path in inner_paths(document):
        assert outcome(write(tmp_path, name, without(document, path))) != "ok", path


def test_whatever_is_taken_out_of_our_own_vectors_is_noticed(tmp_path: Path) -> None:
    for name in ("two_round.json", "two_round_bad.json"):
        case = json.loads((VECTORS / name).read_text())[0]
        for path in inner_paths([case]):
            # A case with one bad report fewer is a smaller case; everything else must be missed.
            fewer = name == "two_round_bad.json" and path[-2:-1] == ("reports",)
            if not fewer and path[-1] not in {"measurement_vector", "measurement", "proofs"}:
                assert outcome(write(tmp_path, name, without([case], path))) != "ok", path


# Names and files.


@pytest.mark.parametrize(
    "name", ["Prio3Sum_0.json", "Prio3Histogram_0.json", "Prio3SumVec_0.json", "XofTurboShake128.json"]
)
def test_a_vector_under_the_name_of_another_algorithm_is_noticed(tmp_path: Path, name: str) -> None:
    assert outcome(write(tmp_path, name, load("Prio3Count_0.json"))) != "ok"


@pytest.mark.parametrize(
    "name", ["Poplar1_0.json", "other.json", "prio3count_0.json", "Prio3_0.json", "_.json", "Prio3"]
)
def test_an_unknown_algorithm_is_a_miss_that_says_so(tmp_path: Path, name: str) -> None:
    result = replay(write(tmp_path, name, load("Prio3Count_0.json")))

    assert not result.passed
    assert "no algorithm is called" in result.line
    assert "\n" not in result.line


def test_a_copy_under_a_new_number_still_agrees(tmp_path: Path) -> None:
    assert replay(write(tmp_path, "Prio3Count_bad_kind_of_day.json", load("Prio3Count_bad_gadget_poly.json"))).passed
    assert replay(write(tmp_path, "Prio3Count (copy).json", load("Prio3Count_0.json"))).passed
    own = json.loads((VECTORS / "two_round.json").read_text())
    assert replay(write(tmp_path, "renamed.json", own)).passed


def test_an_unknown_algorithm_or_number_in_our_own_form_is_a_miss(tmp_path: Path) -> None:
    cases = json.loads((VECTORS / "two_round.json").read_text())[:1]
    for field, value in (("algorithm", "ThreeRound"), ("id", "0xFFFF1002")):
        result = replay(write(tmp_path, "own.json", [{**cases[0], field: value}]))
        assert not result.passed


@pytest.mark.parametrize(
    ("field", "value"), [("length", 1 << 24), ("length", 10**12), ("shares", 255), ("shares", 256), ("chunk_length", 0)]
)
def test_absurd_parameters_are_a_miss_at_once(tmp_path: Path, field: str, value: int) -> None:
    document = {**load("Prio3Histogram_0.json"), field: value}

    assert not replay(write(tmp_path, "Prio3Histogram_0.json", document)).passed


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"3",
        b'"text"',
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'[{"algorithm": 3}]',
        b"[[]]",
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
    ids=range(11),
)
def test_what_is_no_vector_file_is_a_named_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "Prio3Count_0.json"
    path.write_bytes(content)

    with pytest.raises(VectorFileError, match=r"Prio3Count_0\.json") as caught:
        replay(path)

    assert isinstance(caught.value, UsageError)


def test_a_folder_or_a_missing_file_is_a_named_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(VectorFileError, match=path.name):
            replay(path)


def test_a_file_without_cases_or_operations_is_a_miss(tmp_path: Path) -> None:
    empty = {**load("Prio3Count_0.json"), "operations": [], "reports": [], "agg_shares": [], "agg_result": None}

    assert not replay(write(tmp_path, "own.json", [])).passed
    assert not replay(write(tmp_path, "Prio3Count_0.json", empty)).passed


def test_a_file_above_the_limit_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "Prio3Count_0.json"
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)

    with pytest.raises(VectorFileError, match="more than"):
        replay(path)


def test_a_name_with_a_line_break_still_gives_one_line(tmp_path: Path) -> None:
    assert "\n" not in replay(write(tmp_path, "Prio3Count_0\n.json", load("Prio3Count_0.json"))).line


def own_bad_case(**changes: Any) -> dict[str, Any]:
    case = json.loads((VECTORS / "two_round.json").read_text())[1]
    report = {**case["reports"][0], "measurement": None, "measurement_vector": None, "valid": False, **changes}
    kept = {name: case[name] for name in case if name not in {"agg_shares", "agg_result"}}
    return {**kept, "reports": [report]}


def test_our_own_bad_reports_may_fail_at_any_step(tmp_path: Path) -> None:
    honest = json.loads((VECTORS / "two_round.json").read_text())[1]["reports"][0]
    word_too_large = ["ff" * 8 + honest["input_shares"][0][16:], honest["input_shares"][1]]
    cases = [
        own_bad_case(input_shares=word_too_large, verifier_shares=[], verifier_message=None),
        own_bad_case(verifier_shares=[flipped(honest["verifier_shares"][0], 0), honest["verifier_shares"][1]]),
    ]

    assert replay(write(tmp_path, "own_bad.json", cases[:1])).misses == ()
    assert not replay(write(tmp_path, "own_bad.json", cases[1:])).passed
    assert not replay(write(tmp_path, "own_bad.json", [own_bad_case()])).passed
    assert not replay(write(tmp_path, "own_bad.json", [own_bad_case(verifier_message=None)])).passed
    assert not replay(write(tmp_path, "own_bad.json", [own_bad_case(verifier_shares=[])])).passed


def test_many_misses_are_one_line(tmp_path: Path) -> None:
    document = load("Prio3Sum_0.json")
    document["verify_key"] = "00" * 32

    line = replay(write(tmp_path, "Prio3Sum_0.json", document)).line

    assert line.startswith("MISS  Prio3Sum_0.json: Prio3Sum: ")
    assert "\n" not in line
