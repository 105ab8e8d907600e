"""What must be refused has vectors: every rule of every decoder, and every reason that bytes alone can give."""

import ast
import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleetcount_protocol
import pytest
from fleetcount_evidence.replay import decoders as list_of_decoders
from fleetcount_evidence.replay.decoders import decoders
from fleetcount_evidence.replay.files import VectorFileError
from fleetcount_evidence.replay.refusals import bytes_of, replay_refusals
from fleetcount_evidence.replay.vectors import replay
from fleetcount_protocol import wire
from fleetcount_protocol.errors import PeerError, RejectReason
from fleetcount_protocol.wire.codec import WireMessage

from tests.support.fuzz_decoders import FOUND, check, seeds, way_of

SOURCE = Path(fleetcount_protocol.__file__).parent
FOLDER = Path(__file__).resolve().parents[2] / "vectors" / "refused"
FILES = sorted(FOLDER.glob("*.json"))
ROOMS = (
    "layout.py",
    "ids.py",
    "messages.py",
    "window",
    "question",
    "release",
    "channel/deny_list.py",
    "channel/greetings.py",
    "wire",
)
"""Where decoders and the rules that they apply lie; the proof layer has vectors of its own."""

OF_STATE = {
    RejectReason.UNKNOWN_WINDOW,
    RejectReason.UNKNOWN_SESSION,
    RejectReason.TOO_EARLY,
    RejectReason.TOO_LATE,
    RejectReason.DUPLICATE_OTHER_BYTES,
    RejectReason.OVER_QUOTA,
    RejectReason.HALF_PAIR,
    RejectReason.MISSING_AT_PEER,
    RejectReason.WRONG_ROUND,
    RejectReason.WINDOW_CLOSED,
    RejectReason.BUSY,
}
"""Reasons that follow from what an aggregator holds and not from bytes: tests/integration/test_cheating_devices.py."""
OF_PROOFS = {RejectReason.INVALID_PROOF}
"""Its vectors are two_round_bad.json."""

WITHOUT_BYTES = {
    # Of signatures that are checked later, or of a stream in several parts: no bytes at one decoder say so.
    "protocol/window/succession.py": {
        "require(begins >= earliest",
        "require(old_key.public_key().public_bytes_raw()",
        "require(succession.aggregator_id ==",
        "require(succession.new_key not in keys",
        "require(succession.old_key == keys[-1]",
    },
    "protocol/wire/peer.py": {
        "DecodeError('a chunk of a set follows the last one')",
        "DecodeError('the chunks of a set name two windows')",
    },
    # The layout has no place for it, or another rule comes before: they hold for who makes a window.
    "protocol/messages.py": {
        "DecodeError(f'session request: {error}')",
        "DecodeError(f'round is {self.round}",
        "DecodeError('round one carries no public share')",
        "DecodeError(f'the number of a window key is",
    },
    # Of lists of two aggregators, or of an order and what it is about: no decoder reads both.
    "protocol/question/key_list.py": {"require(owner == key_list.aggregator_id"},
    "protocol/release/record.py": {"DecodeError('record is not in its canonical form')"},
    "protocol/question/question.py": {
        "DecodeError('question is not in its canonical form')",
        "require(start % step == 0",
    },
    "protocol/window/window.py": {
        "DecodeError('window is not in its canonical form')",
        "require(not keys",
        "require(len(window.question.question_id) == 32",
        "require(len(window.verify_key_digest) == 32",
        "require(not (alone and level.number)",
        "require(fits, f'direction is",
        "require(release.noise_epsilon is None",
        "require(release.noise_variance is None",
        "require(release.kind is not ReleaseKind.EXACT, f'an exact release has",
    },
}
NOT_FOUND = {
    # Bytes could say so; the search has found none, and tests of the rules themselves hold them.
    "protocol/messages.py": {"DecodeError(f'{len(orders)} orders"},
    "protocol/release/chain.py": {"DecodeError(f'record misses more than"},
    "protocol/release/record.py": {"DecodeError(f'record holds a statement that cannot be"},
    "protocol/question/key_list.py": {"require(len({one.key.public_key"},
    "protocol/question/question.py": {"require(mechanism is None or uniform", "require(two_sided"},
    "protocol/window/window.py": {
        "require(hit - miss >= _SMALLEST_WEIGHT",
        "require(most == 1",
        "require(type(level.number) is int",
        "require(before is not LevelKind.TOTAL",
        "require(fits, f'{what} is asked behind",
        "require(release.margins == dimensions",
        "require(not (release.total and named)",
        "require(value not in seen",
        "require(two_closes - opens <= MAX_WINDOW_S",
        "require(expiry - opens <= MAX_WINDOW_LIFETIME_S",
    },
    "protocol/window/succession.py": {"require(self.old_key != self.new_key"},
}


def cases(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_everything_is_refused_in_its_own_words(path: Path) -> None:
    result = replay(path)

    assert result.misses == ()
    assert result.operations == len(cases(path)) > 5


def test_every_decoder_has_refusals_and_something_that_it_takes() -> None:
    refused = {case["decoder"] for path in FILES for case in cases(path) if "decoder" in case}

    assert set(decoders()) - refused == set()
    assert [name for name in decoders() if not seeds(name)] == []
    assert {check(decoders()[name], data) for name in decoders() for data in seeds(name)} == {"taken"}


def public_decoders() -> Iterator[str]:
    """Yield every public function of the protocol that takes bytes or text alone and says that it may refuse them."""
    for info in pkgutil.walk_packages(fleetcount_protocol.__path__, "fleetcount_protocol."):
        if ".v1" in info.name:
            continue
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ == info.name and not name.startswith("_"):
                parameters = list(inspect.signature(value).parameters.values())
                if [one.annotation for one in parameters] in ([bytes], [str]) and "DecodeError:" in (
                    value.__doc__ or ""
                ):
                    yield name


def test_every_message_of_the_wire_is_in_the_list() -> None:
    modules = [importlib.import_module(f"{wire.__name__}.{one.name}") for one in pkgutil.iter_modules(wire.__path__)]
    codecs = {name.lower() for one in modules for name, value in vars(one).items() if isinstance(value, WireMessage)}

    assert len(codecs) > 30
    assert codecs - set(decoders()) == set()


def test_no_decoder_is_missing_from_the_list() -> None:
    text = Path(inspect.getfile(list_of_decoders)).read_text()
    inner = {"decode_fields", "decode_question_fields"}
    found = set(public_decoders()) - inner

    assert len(found) > 10
    assert [name for name in found if name not in text] == []


def rules() -> Iterator[tuple[str, range, str]]:
    """Yield every statement that refuses in the decoders' rooms: its file, its lines and its text."""
    paths = [
        path for room in ROOMS for path in ([SOURCE / room] if room.endswith(".py") else (SOURCE / room).glob("*.py"))
    ]
    for path in paths:
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            call = node.exc if isinstance(node, ast.Raise) else node.value if isinstance(node, ast.Expr) else None
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                wanted = {"DecodeError"} if isinstance(node, ast.Raise) else {"require", "_expect"}
                if call.func.id in wanted:
                    lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                    yield f"protocol/{path.relative_to(SOURCE)}", lines, " ".join(ast.unparse(call).split())


def reached() -> set[tuple[str, int]]:
    """Return file and line of every rule that some vector ends at."""
    found = set()
    for case in (case for path in FILES for case in cases(path) if "decoder" in case):
        try:
            decoders()[case["decoder"]].decode(bytes_of(case))
        except PeerError as error:
            found |= {(path, line) for path, _, line in way_of(error)}
    return found


def test_every_rule_has_a_vector() -> None:
    known = reached()
    excused = [(path, text) for group in (WITHOUT_BYTES, NOT_FOUND) for path, texts in group.items() for text in texts]
    missing = [(path, text) for path, lines, text in rules() if not any((path, line) in known for line in lines)]
    new = [one for one in missing if not any(one[0] == path and one[1].startswith(text) for path, text in excused)]

    assert len(known) > 100
    assert new == [], "run scripts/make_refusal_vectors.py, or say above why no bytes reach this rule"


def test_every_reason_that_bytes_alone_give_has_a_vector() -> None:
    said = {case["refusal"] for path in FILES for case in cases(path)}
    by_words = {reason for reason in RejectReason if reason.label in said}
    seals = {RejectReason.BAD_SEAL} if any("does not open" in one for one in said) else set()

    assert by_words | seals | {RejectReason.MALFORMED} == set(RejectReason) - OF_STATE - OF_PROOFS
    assert RejectReason.BAD_SEAL in by_words


def test_what_fuzzing_found_once_ends_well_now() -> None:
    for path in FOUND.glob("*.json"):
        found = json.loads(path.read_text())
        check(decoders()[found["decoder"]], bytes.fromhex(found["data"]))


def test_a_case_that_is_taken_or_refused_in_other_words_is_a_miss(tmp_path: Path) -> None:
    good = seeds("order")[0]
    taken = {"decoder": "order", "data": good.hex(), "refusal": "order ends"}
    other = {"decoder": "order", "data": good[:-1].hex(), "refusal": "something else"}

    misses = replay_refusals([taken, other])

    assert len(misses) == 2
    assert "is accepted and must be refused" in misses[0]
    assert "not 'something else'" in misses[1]
    (tmp_path / "both.json").write_text(json.dumps([taken, other]))
    assert not replay(tmp_path / "both.json").passed


@pytest.mark.parametrize(
    "change",
    [{"decoder": "nothing"}, {"data": "0"}, {"data": 5}, {"then": ["00", 1 << 40]}, {"then": ["00"]}, {"then": "00"}],
)
def test_a_case_that_cannot_be_is_no_vector(tmp_path: Path, change: dict[str, object]) -> None:
    case = {"decoder": "order", "data": "", "refusal": "empty"} | change
    (tmp_path / "bad.json").write_text(json.dumps([case]))

    with pytest.raises(VectorFileError, match=r"bad\.json"):
        replay(tmp_path / "bad.json")
