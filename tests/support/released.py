"""Records as aggregators would make them: drawn counts and noise, and the estimates and intervals that follow.

Keys here protect nothing.
"""

import math
from collections.abc import Callable, Collection
from fractions import Fraction
from pathlib import Path

import numpy as np
from fleetcount.read.records import save_record
from fleetcount_aggregator.release.record import WindowTerms
from fleetcount_analysis.reading import exact_estimates, read
from fleetcount_mechanisms.accounting.vectors import ScheduleShape
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.statement import views_of
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.question.question import Question, encode_signed_question, window_at
from fleetcount_protocol.release.chain import ChainLink, MissingWindow
from fleetcount_protocol.release.record import Cell, ReleaseRecord, sign_record
from fleetcount_protocol.release.record_json import record_to_json
from fleetcount_protocol.window.window import Window
from numpy.typing import NDArray

from tests.support.protocol_samples import signing_key
from tests.support.question_samples import sign_everywhere

Counts = NDArray[np.int64]
Truth = Callable[[int], Counts]


ONCE = WindowTerms(
    chain=ChainLink(previous=None, previous_index=None, missing=()),
    shape=ScheduleShape(units=(1,), days=(1,)),
    delta=Fraction(1, 10**9),
)
"""What the record of a question of one window says beyond its window."""


def write_question(folder: Path, question: Question, windows: Collection[int], truth: Truth) -> None:
    """Write a directory as `fleetcount question release` keeps it; `truth(index)` are the cells' true counts."""
    folder.mkdir(parents=True)
    (folder / "question").write_bytes(encode_signed_question(sign_everywhere(question)))
    last, before = None, -1
    for index in sorted(windows):
        missing = tuple(MissingWindow(index=one, reason="paused") for one in range(before + 1, index))
        digest = None if last is None else Digest(last.digest)
        link = ChainLink(previous=digest, previous_index=None if last is None else before, missing=missing)
        last, before = _record(window_at(question, index), truth(index), index, link), index
        save_record(folder, last, _signed(last))


def write_release(path: Path, window: Window, truth: Counts) -> None:
    """Write the release file of a first window."""
    record = _record(window, truth, 1, ONCE.chain)
    path.write_text(record_to_json(record, _signed(record)))


def _signed(record: ReleaseRecord) -> tuple[bytes, ...]:
    return tuple(sign_record(record, signing_key(place)) for place in range(len(record.window.aggregators)))


def _record(window: Window, truth: Counts, seed: int, link: ChainLink) -> ReleaseRecord:
    design, source = window.design, np.random.default_rng(seed)
    counted = source.binomial(truth, float(design.channel[0])).tolist()
    raw = np.array(design.opened_sums(counted), dtype=np.int64) + _noise(design, source)
    found = read(design, raw, window.release.level)
    estimates = exact_estimates(design, raw.tolist())
    cells = tuple(
        Cell(
            value=place + 1,
            label=window.label(place + 1),
            raw=int(raw[place]),
            estimate=estimates[place],
            low=int(found.low[place]),
            high=int(found.high[place]),
        )
        for place in range(raw.size)
    )
    return ReleaseRecord(
        window=window, cells=cells, statement=views_of(design), released_at=window.round_two_closes, chain=link
    )


def _noise(design: Design, source: np.random.Generator) -> Counts:
    """Return the noise of all aggregators on every number: two-sided geometric, or a rounded normal of the variance."""
    drawn = []
    for law, numbers in design.opened_noise:
        shape = (design.aggregators, numbers)
        if law.epsilon is None:
            drawn.append(np.rint(source.normal(0, law.draw_variance**0.5, shape)).astype(np.int64).sum(axis=0))
        else:
            chance = 1 - math.exp(-float(law.epsilon))
            drawn.append(np.asarray(source.geometric(chance, shape) - source.geometric(chance, shape)).sum(axis=0))
    return np.concatenate(drawn).astype(np.int64)
