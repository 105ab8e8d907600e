"""Replays test vector files, the draft's and fleetcount's own, operation by operation and byte for byte.

It reports every disagreement; it never writes or repairs a vector.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from fleetcount_protocol.errors import PeerError, UsageError
from fleetcount_protocol.vdaf.field import FIELD128, SEED_SIZE, XofTurboShake128, derive_seed, next_vector
from fleetcount_protocol.vdaf.prio3 import (
    Prio3,
    VerifyState,
    prio3_one_hot,
    prio3_sum_vec_with_multiproof,
    prio3_two_round,
)

from fleetcount_evidence.replay.draft_circuits import (
    DRAFT_IDS,
    prio3_count,
    prio3_histogram,
    prio3_multihot_count_vec,
    prio3_sum,
    prio3_sum_vec,
)
from fleetcount_evidence.replay.files import (
    JsonObject,
    VectorFileError,
    entries_of,
    entry_at,
    flag_of,
    hex_of,
    hexes_of,
    integer_of,
    integers_of,
    numbers_of,
    proofs_of,
    read_json,
    records_of,
    text_of,
    value_of,
)
from fleetcount_evidence.replay.refusals import ALGORITHM, is_refusal, replay_refusals

_MAX_XOF_ELEMENTS: Final = 1 << 20
_SHOWN_MISSES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The result of one file: the number of replayed operations, and every disagreement (a miss) as a sentence.

    `algorithm` comes from the file's name or from its cases.
    """

    name: str
    algorithm: str
    operations: int
    misses: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether everything in the file was replayed and agreed."""
        return not self.misses

    @property
    def line(self) -> str:
        """The result as one line of text, with at most three misses."""
        if self.passed:
            return f"ok    {self.name}: {self.algorithm}, {self.operations} operations"
        more = len(self.misses) - _SHOWN_MISSES
        shown = "; ".join(self.misses[:_SHOWN_MISSES]) + (f"; and {more} more" if more > 0 else "")
        return f"MISS  {self.name}: {self.algorithm}: {shown}"


def replay(path: Path | str) -> ReplayResult:
    """Replay one file and return the result; the file name's first word or the cases give the algorithm.

    The result has misses if numbers disagree, the algorithm is unknown, or no operation checks a number of the file.

    Raises:
        VectorFileError: the file cannot be read as vectors; the message names the file.
    """
    path = Path(path)
    document = read_json(path)
    name = path.name if path.name.isprintable() else repr(path.name)
    words = re.match(r"[A-Za-z0-9]*", path.stem)
    algorithm = words.group() if words else ""
    log = _Log()
    try:
        if isinstance(document, list):
            cases = records_of(cast("list[object]", document), "the file")
            if any(map(is_refusal, cases)):
                algorithm = ALGORITHM
                log.operations += len(cases)
                log.misses += replay_refusals(cases)
            else:
                algorithm = _replay_own(cases, log)
        elif isinstance(document, dict):
            _replay_official(cast("JsonObject", document), algorithm, "_bad_" in path.stem, log)
        else:
            raise VectorFileError("neither an object nor a list of cases")
    except VectorFileError as error:
        raise VectorFileError(f"{name}: {error}") from error
    return ReplayResult(name=name, algorithm=algorithm, operations=log.operations, misses=tuple(log.misses))


@dataclass(slots=True)
class _Log:
    """The number of operations, the misses, and the outputs that were compared."""

    operations: int = 0
    misses: list[str] = field(default_factory=list[str])
    checked: set[str] = field(default_factory=set[str])

    def compare(self, what: str, actual: object, expected: object) -> None:
        self.checked.add(what)
        if actual != expected:
            self.misses.append(f"{what} differs")

    def expect(self, what: str, success: bool, operation: Callable[[], None]) -> None:
        """Run one operation, which must succeed or be refused as `success` says."""
        self.operations += 1
        try:
            operation()
        except (PeerError, UsageError) as error:
            if isinstance(error, VectorFileError):
                raise
            if success:
                self.misses.append(f"{what} fails: {error}")
        else:
            if not success:
                self.misses.append(f"{what} succeeds and must fail")


# The draft's files.


def _replay_official(document: JsonObject, algorithm: str, named_bad: bool, log: _Log) -> None:
    if algorithm == "XofTurboShake128":
        _replay_xof(document, log)
        return
    make = _OFFICIAL.get(algorithm)
    if make is None:
        log.misses.append(
            f"no algorithm is called {algorithm!r}; known are {', '.join(sorted(_OFFICIAL))}, XofTurboShake128"
        )
        return
    prio3 = _make(make, document, log)
    if prio3 is None:
        return
    operations = records_of(entries_of(document, "operations"), "operations")
    if named_bad and all(flag_of(operation, "success") for operation in operations):
        log.misses.append("no operation of a bad vector must fail")
    case = _Case(prio3, document, log)
    if log.misses:
        # Sizes or parameters disagree: nothing is computed from them, since a wrong size can be huge.
        return
    for index, operation in enumerate(operations):
        case.run(index, operation)
    case.check_coverage()


def _replay_xof(document: JsonObject, log: _Log) -> None:
    seed, dst, binder = (hex_of(document, name) for name in ("seed", "dst", "binder"))
    length = integer_of(document, "length")
    if not 0 < length <= _MAX_XOF_ELEMENTS:
        raise VectorFileError(f"length is {length}, not 1..{_MAX_XOF_ELEMENTS}")
    if len(seed) != SEED_SIZE:
        log.misses.append(f"seed has {len(seed)} bytes, not {SEED_SIZE}")
    derived, expanded = hex_of(document, "derived_seed"), hex_of(document, "expanded_vec_field128")

    def expand() -> None:
        words = next_vector(XofTurboShake128(seed, dst, binder), FIELD128, length)
        log.compare("expanded_vec_field128", FIELD128.encode_vector(words), expanded)

    def derive() -> None:
        log.compare("derived_seed", derive_seed(XofTurboShake128, seed, dst, binder), derived)

    log.expect("derive_seed", True, derive)
    log.expect("expand_into_vec", True, expand)


def _make(make: Callable[[JsonObject], Prio3], document: JsonObject, log: _Log) -> Prio3 | None:
    """Return the algorithm with the document's parameters, or None, after logging a miss, when it refuses them."""
    try:
        return make(document)
    except VectorFileError:
        raise
    except UsageError as error:
        log.misses.append(f"the algorithm refuses the parameters: {error}")
        return None


_OFFICIAL: Final[Mapping[str, Callable[[JsonObject], Prio3]]] = {
    "Prio3Count": lambda case: prio3_count(integer_of(case, "shares")),
    "Prio3Sum": lambda case: prio3_sum(integer_of(case, "max_measurement"), integer_of(case, "shares")),
    "Prio3SumVec": lambda case: prio3_sum_vec(
        *integers_of(case, "length", "max_measurement", "chunk_length", "shares")
    ),
    "Prio3SumVecWithMultiproof": lambda case: prio3_sum_vec_with_multiproof(
        *integers_of(case, "length", "max_measurement", "chunk_length", "shares"), *proofs_of(case)
    ),
    "Prio3Histogram": lambda case: prio3_histogram(*integers_of(case, "length", "chunk_length", "shares")),
    "Prio3MultihotCountVec": lambda case: prio3_multihot_count_vec(
        *integers_of(case, "length", "max_weight", "chunk_length", "shares")
    ),
}


class _Case:
    """One official document: its reports, and the states between operations."""

    def __init__(self, prio3: Prio3, document: JsonObject, log: _Log) -> None:
        self._prio3, self._document, self._log = prio3, document, log
        self._ctx, self._key = hex_of(document, "ctx"), hex_of(document, "verify_key")
        self._reports = records_of(entries_of(document, "reports"), "reports")
        self._states: dict[tuple[int, int], VerifyState] = {}
        if text_of(document, "agg_param"):
            log.misses.append("agg_param is not empty")
        for index, report in enumerate(self._reports):
            self._check_sizes(index, report)

    def run(self, index: int, operation: JsonObject) -> None:
        """Replay one entry of the operations list."""
        kind = text_of(operation, "operation")
        step = _STEPS.get(kind)
        if step is None:
            raise VectorFileError(f"operation {index} is {kind!r}, not one of {', '.join(_STEPS)}")
        what = f"operation {index} ({kind})"
        self._log.expect(what, flag_of(operation, "success"), lambda: step(self, operation))

    def shard(self, operation: JsonObject) -> None:
        """Replay a device's step."""
        index, report = self._report(operation)
        measurement = _measurement(self._prio3, value_of(report, "measurement"))
        nonce, rand = hex_of(report, "nonce"), hex_of(report, "rand")
        public_share, input_shares = self._prio3.shard(self._ctx, measurement, nonce, rand)
        self._log.compare(f"public share of report {index}", public_share, hex_of(report, "public_share"))
        self._log.compare(f"input shares of report {index}", list(input_shares), hexes_of(report, "input_shares"))

    def verify_init(self, operation: JsonObject) -> None:
        """Replay an aggregator's first step."""
        index, report = self._report(operation)
        aggregator = integer_of(operation, "aggregator_id")
        share = entry_at(hexes_of(report, "input_shares"), aggregator, "input_shares")
        state, verifier_share = self._prio3.verify_init(
            self._key, self._ctx, aggregator, hex_of(report, "nonce"), hex_of(report, "public_share"), share
        )
        self._states[index, aggregator] = VerifyState.decode(self._prio3, state.encode())
        # A step that must fail has no output in the file; if it succeeds, `expect` logs the miss.
        if flag_of(operation, "success"):
            expected = entry_at(self._verifier_shares(report), aggregator, "verifier_shares")
            self._log.compare(f"verifier share {aggregator} of report {index}", verifier_share, expected)

    def combine(self, operation: JsonObject) -> None:
        """Replay the leader's step."""
        index, report = self._report(operation)
        _check_round(operation, 0)
        message = self._prio3.combine_verifier_shares(self._ctx, self._verifier_shares(report))
        if flag_of(operation, "success"):
            expected = entry_at(hexes_of(report, "verifier_messages"), 0, "verifier_messages")
            self._log.compare(f"verifier message of report {index}", message, expected)

    def verify_next(self, operation: JsonObject) -> None:
        """Replay an aggregator's second step."""
        index, report = self._report(operation)
        _check_round(operation, 1)
        aggregator = integer_of(operation, "aggregator_id")
        state = self._states.get((index, aggregator))
        if state is None:
            raise UsageError(f"aggregator {aggregator} has no state of report {index}")
        message = entry_at(hexes_of(report, "verifier_messages"), 0, "verifier_messages")
        if not flag_of(operation, "success"):
            # The file's bad message is an input of this step that no step computes: it counts as checked.
            self._log.checked.add(f"verifier message of report {index}")
        output = self._prio3.verify_next(self._ctx, state, message)
        if flag_of(operation, "success"):
            expected = entry_at(hexes_of(report, "out_shares"), aggregator, "out_shares")
            encoded = self._prio3.encode_output_share(output)
            self._log.compare(f"output share {aggregator} of report {index}", encoded, expected)

    def aggregate(self, operation: JsonObject) -> None:
        """Replay an aggregator's sum."""
        aggregator = integer_of(operation, "aggregator_id")
        shares = [entry_at(hexes_of(report, "out_shares"), aggregator, "out_shares") for report in self._reports]
        total = self._prio3.aggregate([self._prio3.decode_output_share(share) for share in shares])
        expected = entry_at(hexes_of(self._document, "agg_shares"), aggregator, "agg_shares")
        self._log.compare(f"aggregate share {aggregator}", self._prio3.encode_output_share(total), expected)

    def unshard(self, operation: JsonObject) -> None:
        """Replay the collector's step."""
        shares = [self._prio3.decode_output_share(share) for share in hexes_of(self._document, "agg_shares")]
        result = self._prio3.unshard(shares, len(self._reports))
        self._log.compare("aggregate result", result, value_of(self._document, "agg_result"))

    def check_coverage(self) -> None:
        """Log a miss for every output in the file that no operation compared, and for a file without operations.

        Otherwise a vector that has lost operations would still pass.
        """
        outputs: list[str] = []
        for index, report in enumerate(self._reports):
            if value_of(report, "measurement") is not None:
                outputs += [f"public share of report {index}", f"input shares of report {index}"]
            verifiers = len(self._verifier_shares(report)) if entries_of(report, "verifier_shares") else 0
            outputs += [f"verifier share {j} of report {index}" for j in range(verifiers)]
            outputs += [f"verifier message of report {index}"] * len(hexes_of(report, "verifier_messages"))
            outputs += [f"output share {j} of report {index}" for j in range(len(hexes_of(report, "out_shares")))]
        outputs += [f"aggregate share {j}" for j in range(len(hexes_of(self._document, "agg_shares")))]
        if value_of(self._document, "agg_result") is not None:
            outputs.append("aggregate result")
        missing = [output for output in outputs if output not in self._log.checked]
        self._log.misses += [f"no operation checks the {output}" for output in missing]
        if not self._log.operations:
            self._log.misses.append("the file has no operation")

    def _report(self, operation: JsonObject) -> tuple[int, JsonObject]:
        index = integer_of(operation, "report_index")
        return index, entry_at(self._reports, index, "reports")

    def _verifier_shares(self, report: JsonObject) -> list[bytes]:
        rounds = entries_of(report, "verifier_shares")
        if len(rounds) != 1 or not isinstance(rounds[0], list):
            raise VectorFileError("verifier_shares is not a list with one list in it")
        return hexes_of({"verifier_shares": rounds[0]}, "verifier_shares")

    def _check_sizes(self, index: int, report: JsonObject) -> None:
        """Log a miss for every size that is not the algorithm's; runs before anything is computed."""
        prio3, shares = self._prio3, hexes_of(report, "input_shares")
        expected = [prio3.input_share_size(j) for j in range(prio3.shares)]
        for what, actual, size in (
            ("input share sizes", list(map(len, shares)), expected),
            ("public share size", len(hex_of(report, "public_share")), prio3.public_share_size),
            ("nonce size", len(hex_of(report, "nonce")), prio3.nonce_size),
            ("rand size", len(hex_of(report, "rand")), prio3.rand_size),
        ):
            if actual != size:
                self._log.misses.append(f"report {index}: {what} {actual}, not {size}")


_STEPS: Final[Mapping[str, Callable[[_Case, JsonObject], None]]] = {
    "shard": _Case.shard,
    "verify_init": _Case.verify_init,
    "verifier_shares_to_message": _Case.combine,
    "verify_next": _Case.verify_next,
    "aggregate": _Case.aggregate,
    "unshard": _Case.unshard,
}


# fleetcount's own files: a list of cases, each with its algorithm.

_OWN: Final[Mapping[str, Callable[[JsonObject], Prio3]]] = {
    "TwoRoundOneHot": lambda case: prio3_two_round(*integers_of(case, "length", "shares"), *proofs_of(case)),
    "OneHot": lambda case: prio3_one_hot(*integers_of(case, "length", "shares"), *proofs_of(case)),
}


def _replay_own(cases: Sequence[JsonObject], log: _Log) -> str:
    """Replay every case and return the names of the algorithms."""
    names: list[str] = []
    for index, case in enumerate(cases):
        name = text_of(case, "algorithm")
        names += [name] if name not in names else []
        make = _OWN.get(name)
        if make is None:
            log.misses.append(f"case {index}: no algorithm is called {name!r}; known are {', '.join(sorted(_OWN))}")
            continue
        if text_of(case, "id").lower() != f"0x{DRAFT_IDS[name]:08x}":
            log.misses.append(f"case {index}: id {text_of(case, 'id')!r} is not 0x{DRAFT_IDS[name]:08X}")
        prio3 = _make(make, case, log)
        if prio3 is not None:
            _OwnCase(prio3, case, f"case {index}", log).run()
    if not cases:
        log.misses.append("the file has no case")
    return ", ".join(names)


class _OwnCase:
    """One case: every step of every report, and the sums over the valid reports."""

    def __init__(self, prio3: Prio3, case: JsonObject, label: str, log: _Log) -> None:
        self._prio3, self._case, self._label, self._log = prio3, case, label, log
        self._ctx, self._key = hex_of(case, "ctx"), hex_of(case, "verify_key")
        self._outputs: list[list[list[int]]] = []

    def run(self) -> None:
        """Replay the case."""
        reports = records_of(entries_of(self._case, "reports"), "reports")
        if not reports:
            self._log.misses.append(f"{self._label}: no report")
        for index, report in enumerate(reports):
            self._report(report, f"{self._label} report {index}")
        if self._outputs or "agg_shares" in self._case:
            self._log.expect(f"{self._label} sums", True, self._sums)

    def _report(self, report: JsonObject, label: str) -> None:
        shares = hexes_of(report, "input_shares")
        sizes = [self._prio3.input_share_size(j) for j in range(self._prio3.shares)]
        if list(map(len, shares)) != sizes:
            self._log.misses.append(f"{label}: input share sizes {list(map(len, shares))}, not {sizes}")
            return
        verifier_shares = hexes_of(report, "verifier_shares")
        states: list[VerifyState] = []
        valid = flag_of(report, "valid")
        if valid or any(report.get(name) is not None for name in ("measurement", "measurement_vector")):
            self._log.expect(f"{label} shard", True, lambda: self._shard(report, shares, label))
        # An invalid report must be refused at the first step whose result is absent from the file.
        reached = valid or bool(verifier_shares)
        self._log.expect(
            f"{label} verify_init", reached, lambda: self._init(report, shares, verifier_shares, states, label)
        )
        if reached:
            combined = valid or report.get("verifier_message") is not None
            self._log.expect(f"{label} combine", combined, lambda: self._combine(report, verifier_shares, label))
            if combined:
                self._log.expect(f"{label} verify_next", valid, lambda: self._next(report, states, label))

    def _shard(self, report: JsonObject, shares: Sequence[bytes], label: str) -> None:
        nonce, rand = hex_of(report, "nonce"), hex_of(report, "rand")
        value = report.get("measurement")
        if value is not None:
            encoded = self._prio3.circuit.encode(_measurement(self._prio3, value))
        else:
            encoded = numbers_of(report, "measurement_vector")
        public_share, input_shares = self._prio3.shard_encoded(self._ctx, encoded, nonce, rand)
        self._log.compare(f"{label} public share", public_share, hex_of(report, "public_share"))
        self._log.compare(f"{label} input shares", list(input_shares), list(shares))

    def _init(
        self,
        report: JsonObject,
        shares: Sequence[bytes],
        verifier_shares: Sequence[bytes],
        states: list[VerifyState],
        label: str,
    ) -> None:
        nonce, public_share = hex_of(report, "nonce"), hex_of(report, "public_share")
        results = [
            self._prio3.verify_init(self._key, self._ctx, j, nonce, public_share, share)
            for j, share in enumerate(shares)
        ]
        states += [state for state, _ in results]
        self._log.compare(f"{label} verifier shares", [share for _, share in results], list(verifier_shares))

    def _combine(self, report: JsonObject, verifier_shares: Sequence[bytes], label: str) -> None:
        message = self._prio3.combine_verifier_shares(self._ctx, verifier_shares)
        if report.get("verifier_message") is not None:
            self._log.compare(f"{label} verifier message", message, hex_of(report, "verifier_message"))

    def _next(self, report: JsonObject, states: Sequence[VerifyState], label: str) -> None:
        message = hex_of(report, "verifier_message")
        outputs = [self._prio3.verify_next(self._ctx, state, message) for state in states]
        if not flag_of(report, "valid"):
            return
        self._outputs.append(outputs)
        encoded = [self._prio3.encode_output_share(output) for output in outputs]
        self._log.compare(f"{label} output shares", encoded, hexes_of(report, "out_shares"))

    def _sums(self) -> None:
        sums = [self._prio3.aggregate(shares) for shares in zip(*self._outputs, strict=True)]
        encoded = [self._prio3.encode_output_share(total) for total in sums]
        self._log.compare(f"{self._label} aggregate shares", encoded, hexes_of(self._case, "agg_shares"))
        result = self._prio3.unshard(sums, len(self._outputs))
        self._log.compare(f"{self._label} aggregate result", result, numbers_of(self._case, "agg_result"))


def _check_round(operation: JsonObject, expected: int) -> None:
    if integer_of(operation, "round") != expected:
        raise VectorFileError(f"round is {integer_of(operation, 'round')}, not {expected}: Prio3 has one round")


def _measurement(prio3: Prio3, value: object) -> object:
    """Return a measurement after a check of its form: a whole number or a truth value, or a list of these.

    Raises:
        VectorFileError: another form than the circuit's.
    """
    entries = cast("list[object]", value) if isinstance(value, list) else [value]  # The next line checks the entries.
    if not all(isinstance(entry, int) for entry in entries):
        raise VectorFileError(f"a measurement of {prio3.circuit.name} is not made of whole numbers or truth values")
    if isinstance(value, list) != (prio3.circuit.name in _VECTOR_MEASUREMENTS):
        raise VectorFileError(f"a measurement of {prio3.circuit.name} has the wrong form")
    return value


_VECTOR_MEASUREMENTS: Final = {"SumVec", "MultihotCountVec", "TwoRoundOneHot"}
