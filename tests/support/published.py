"""A question of counts of a made-up town as its aggregators would have released it, and the file of their keys.

Keys here protect nothing.
"""

import base64
import gzip
import json
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from fleetcount_protocol.window.domain import SquareGrid
from fleetcount_protocol.window.fields import Mode, Release, ReleaseKind
from fleetcount_protocol.window.frame import Frame

from tests.support.protocol_samples import aggregator
from tests.support.question_samples import HOURLY, sampling_question
from tests.support.released import Counts, write_question

GEOMETRIC = Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1, 2), level=Fraction(19, 20))


def trusted_toml(path: Path, parties: int = 2) -> Path:
    """Write a file of the keys that sign the samples."""
    rows = []
    for one in map(aggregator, range(parties)):
        key = base64.b64encode(one.signing_public_key).decode()
        rows.append(
            f'[[aggregators]]\nid = "{one.aggregator_id}"\noperator = "{one.operator}"\nsigning_public_key = "{key}"\n'
        )
    path.write_text("\n".join(rows))
    return path


def packed_json(path: Path) -> Any:
    """Return what a packed JSON file of a site holds."""
    return json.loads(gzip.decompress(path.read_bytes()))


def script_json(path: Path) -> str:
    """Return the JSON that a packed script of a site hands over."""
    [packed] = re.findall(r', "([A-Za-z0-9+/=]+)"\);\n', path.read_text())
    return zlib.decompress(base64.b64decode(packed)).decode()


def change_script(path: Path, change: Callable[[str], str]) -> None:
    """Change the JSON that a packed script of a site hands over; the change must change it."""
    before = script_json(path)
    after = change(before)
    assert after != before
    name, _, _ = path.read_text().rpartition(", ")
    path.write_text(f'{name}, "{base64.b64encode(zlib.compress(after.encode())).decode()}");\n')


def town(columns: int, rows: int, windows: int) -> list[Counts]:
    """Return true counts of a made-up town: a centre that fills during the day, and a ring."""
    x, y = np.meshgrid(np.arange(columns) + 0.5, np.arange(rows) + 0.5)
    far = np.hypot((x / columns - 0.5) * 2, (y / rows - 0.5) * 2)
    found = []
    for window in range(windows):
        day = 1 + np.sin(2 * np.pi * window / max(windows, 24))
        counts = 120 * day * np.exp(-((far / 0.35) ** 2)) + 60 * np.exp(-(((far - 0.8) / 0.12) ** 2))
        found.append(counts.ravel().astype(np.int64))
    return found


def write_town(folder: Path, columns: int, rows: int, released: Sequence[int], frame: Frame | None = None) -> None:
    """Write a question of direct counts on a grid."""
    grid = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(250), columns=columns, rows=rows, frame=frame)
    question = sampling_question(
        domain=grid,
        mode=Mode.DIRECT,
        mechanism=None,
        release=GEOMETRIC,
        schedule=replace(HOURLY, windows=max(released) + 1, round_one_s=600, round_two_s=0),
    )
    truths = town(columns, rows, max(released) + 1)
    write_question(folder, question, released, lambda index: truths[index])
