"""The JSON of a release says what its signed bytes say, or it is refused."""

import copy
import json
from fractions import Fraction
from typing import Any

import pytest
from fleetcount_mechanisms.statement import views_of
from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.release.record import sign_record, verify_record_signatures
from fleetcount_protocol.release.record_json import decimal_text, record_from_json, record_to_json
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import case
from tests.support.protocol_samples import every_window, record, signing_key

WINDOWS = every_window()
MADE = record(WINDOWS["k_ary"])
SIGNATURES = tuple(sign_record(MADE, signing_key(position)) for position in range(2))
TEXT = record_to_json(MADE, SIGNATURES)


@pytest.mark.parametrize("name", WINDOWS)
def test_record_returns_through_json_and_still_verifies(name: str) -> None:
    made = record(WINDOWS[name], statement=views_of(WINDOWS[name].design))
    signatures = tuple(sign_record(made, signing_key(place)) for place in range(len(made.window.aggregators)))

    read, read_signatures = record_from_json(record_to_json(made, signatures))

    assert read == made
    verify_record_signatures(read, read_signatures)


def test_json_is_readable_by_people() -> None:
    shown = json.loads(TEXT)

    assert shown["cells"][1] | {"estimate": "…"} == {
        "value": 2,
        "label": "grün",
        "raw": 5,
        "estimate": "…",
        "low": 0,
        "high": 26,
    }
    assert shown["participants_at_least"] == 10
    assert shown["privacy_statement"][0]["sentence"] == "Noised counts: ε = 0.97930."
    assert shown["released_at_utc"] == "2027-01-15T08:12:00Z"
    assert "grün" in TEXT


def test_noise_is_shown_by_law_and_parameter() -> None:
    for name, shown in (
        ("direct_gaussian", {"law": "discrete Gaussian", "epsilon": None, "variance": "662"}),
        ("sampling_exact", {"law": "none", "epsilon": None}),
        ("k_ary", {"law": "two-sided geometric", "epsilon": "17/10"}),
    ):
        made = record(WINDOWS[name])
        signatures = [sign_record(made, signing_key(place)) for place in range(len(made.window.aggregators))]
        noise = json.loads(record_to_json(made, signatures))["noise"]
        assert noise[1] == {"aggregator_id": "beta", **shown}


def every_leaf(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for key in value for leaf in every_leaf(value[key], (*path, key))]
    if isinstance(value, list):
        return [leaf for index, one in enumerate(value) for leaf in every_leaf(one, (*path, index))]
    return [path]


def changed(path: tuple[Any, ...], value: Any) -> str:
    shown = copy.deepcopy(json.loads(TEXT))
    place = shown
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(shown)


def test_every_changed_word_or_number_is_refused() -> None:
    for path in every_leaf(json.loads(TEXT)):
        with case(".".join(map(str, path))):
            for value in (None, "other", 1.5, True, [], {}, 10**30, "QUFB"):
                if (text := changed(path, value)) == json.dumps(json.loads(TEXT)):
                    continue
                try:
                    read, signatures = record_from_json(text)
                except DecodeError:
                    continue
                # Only a signature may be replaced by another text; then it does not verify, or has another length.
                assert path[0] == "signatures"
                assert read == MADE
                assert signatures != SIGNATURES


def test_number_spelled_as_float_or_truth_is_refused() -> None:
    for path, value in ((("cells", 0, "value"), True), (("cells", 0, "value"), 1.0), (("baseline_raw",), -4.0)):
        with pytest.raises(DecodeError, match="readable part"):
            record_from_json(changed(path, value))


def test_missing_and_added_keys_are_refused() -> None:
    shown = json.loads(TEXT)
    for key in shown:
        with pytest.raises(DecodeError):
            record_from_json(json.dumps({one: value for one, value in shown.items() if one != key}))
    with pytest.raises(DecodeError, match="readable part"):
        record_from_json(json.dumps(shown | {"note": "trust me"}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        '"record"',
        "{" * 100_000,
        "[" * 100_000,
        TEXT[:-10],
        TEXT + "x",
        TEXT.replace('"low": 0', '"low": NaN', 1),
        TEXT.replace('"low": 0', '"low": Infinity', 1),
        TEXT.replace('"value": 1,', '"value": 1, "value": 1,', 1),
        TEXT.replace("record 1", "record 2", 1),
        "1" * 5_000,
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        record_from_json(text)


def test_size_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetcount_protocol.release.record_json.MAX_JSON_BYTES", 100)

    with pytest.raises(DecodeError, match="more than 100"):
        record_from_json(TEXT)


def test_one_signature_an_aggregator() -> None:
    for signatures in ((), SIGNATURES[:1], SIGNATURES * 2):
        with pytest.raises(UsageError, match="for 2 aggregators"):
            record_to_json(MADE, signatures)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(0), "0"),
        (Fraction(1, 3), "0.333333"),
        (Fraction(-2, 3), "-0.666667"),
        (Fraction(5, 2), "2.5"),
        (Fraction(-1, 10**7), "0"),
        (Fraction(1, 2 * 10**6), "0"),
        (Fraction(3, 2 * 10**6), "0.000002"),
        (Fraction(10**30), "1" + "0" * 30),
    ],
)
def test_fractions_are_shown_as_decimals(value: Fraction, text: str) -> None:
    assert decimal_text(value) == text


@given(st.fractions())
def test_shown_decimal_is_within_half_a_millionth(value: Fraction) -> None:
    assert abs(Fraction(decimal_text(value)) - value) <= Fraction(1, 2 * 10**6)
