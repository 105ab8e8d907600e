"""A published site with a question on a map and a release of categories, made once."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from fleetcount.__main__ import run_command
from fleetcount_protocol.window.domain import Bins, Categories
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.window.frame import Frame

from tests.support.protocol_samples import crossed, one_round_window, with_margins, with_total
from tests.support.published import GEOMETRIC, trusted_toml, write_town
from tests.support.question_samples import one_round_question
from tests.support.released import write_question, write_release

COLUMNS, ROWS = 12, 8
RELEASED = (0, 1, 2, 3, 5, 6)
SUMMED = one_round_question(Mode.DIRECT, domain=Categories(names=("a", "b", "c")), release=with_total(GEOMETRIC))
"""A question whose releases have a total."""
_SPEEDS = Bins(edges=(Fraction(0), Fraction(50)), open_above=True, unit="km/h")
_CROSS = crossed(_SPEEDS, Categories(names=("diesel", "<b>gas</b>", "other")))
CROSSED = one_round_question(Mode.DIRECT, signal="Vehicle.Speed", domain=_CROSS, release=with_margins(GEOMETRIC, 2))
"""A question for two signals, whose releases have margins and a total."""

BOLOGNA = Frame(epsg=32632, offset_x="-683195.58", offset_y="-4928877.56")


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a question of maps, a question of categories and one release."""
    folder = tmp_path_factory.mktemp("kept") / "all"
    folder.mkdir()
    write_town(folder / "map", COLUMNS, ROWS, RELEASED)
    write_town(folder / "bologna", 8, 7, (0, 1), BOLOGNA)
    colours = one_round_question(
        Mode.DIRECT, domain=Categories(names=("red", "<b>green</b>", "blue")), release=GEOMETRIC
    )
    write_question(folder / "colours", colours, (0, 1, 2), lambda index: np.array([40, 500 + index, 0]))
    write_question(folder / "summed", SUMMED, (0, 1), lambda index: np.array([40, 500 + index, 0]))
    several = Categories(names=("P0301", "P0420", "U0100"), most=2)
    codes = one_round_question(Mode.DIRECT, domain=several, release=with_total(GEOMETRIC))
    write_question(folder / "codes", codes, (0, 1), lambda index: np.array([400, 500 + index, 300, 700]))
    write_question(folder / "both", CROSSED, (0, 1), lambda index: np.array([400, 30, 0, 250, 5, 90 + index]))
    window = one_round_window(Mode.DIRECT, release=GEOMETRIC)
    write_release(folder / "speed.json", window, np.array([77]))
    return folder


@pytest.fixture(scope="session")
def site(kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a site of all of it, with pinned keys."""
    folder = tmp_path_factory.mktemp("site")
    keys = trusted_toml(folder / "trusted.toml")
    assert run_command(["publish", str(kept), "--output", str(folder / "site"), "--keys", str(keys)]) == 0
    return folder / "site"
