"""The page about populations lists every key with its meaning, and its examples can be built."""

import re
import tomllib
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fleetcount_simulator import cells, populations
from fleetcount_simulator.cells.settings import Settings
from fleetcount_transport.settings import Key

PAGE = (Path(__file__).parents[3] / "docs" / "simulating-populations.md").read_text("utf-8")
EXAMPLES = re.findall(r"(?:^    .*\n|^\n(?=    ))+", PAGE, re.MULTILINE)


def section(name: str, part: str) -> str:
    """Return what stands under a heading of the third level, in one of the page's parts."""
    return part.split(f"\n### `{name}`\n", 1)[1].split("\n### ", 1)[0].split("\n## ", 1)[0]


def listed_in(text: str) -> list[str]:
    """Return the items of a text's lists that name a key, each as one line."""
    return [" ".join(item.split()) for item in re.findall(r"^\* `.*(?:\n {2}\S.*)*", text, re.MULTILINE)]


def items(keys: tuple[Key, ...]) -> list[str]:
    return [f"* `{key.name}`: {key.about} (`{key.example}`)" for key in keys]


POPULATIONS, CELLS = PAGE.split("\n## Cells\n")
SHARED = {
    re.findall("`([a-z_]+)`", line)[0]: line
    for line in listed_in(POPULATIONS.split("\n## Kinds of populations\n", 1)[1].split("\n### ", 1)[0])
}
"""The items of keys that several kinds share, by the key's name."""


@pytest.mark.parametrize("kind", populations.KINDS)
def test_a_population_s_section_lists_its_keys(kind: str) -> None:
    text = section(kind, POPULATIONS)
    own = listed_in(text)
    said = text.partition("Shared keys: ")[2].partition(".")[0]
    shared = SHARED if said == "all" else re.findall("`([a-z_]+)`", said)
    listed = [*own, *(SHARED[name] for name in shared)]

    assert sorted(listed) == sorted(items(populations.keys_of(kind)[1:]))
    assert ", ".join(populations.cells_of(kind)) in text


@pytest.mark.parametrize("kind", cells.KINDS)
def test_a_section_about_cells_lists_its_keys(kind: str) -> None:
    assert listed_in(section(kind, CELLS)) == items(cells.keys_of(kind))


def named(text: str) -> Any:
    """Return an example as a parameter: SUMO's is of `make nightly`, which installs it."""
    kind = re.findall('"([a-z]+)"', text)[0]
    return pytest.param(text, id=kind, marks=[pytest.mark.nightly] if kind == "sumo" else [])


@pytest.mark.parametrize("text", [named(text) for text in EXAMPLES])
def test_an_example_can_be_built_or_needs_a_file_alone(text: str) -> None:
    document = tomllib.loads(
        "".join(line[4:] if line.strip() else line for line in text.splitlines(True)), parse_float=Decimal
    )
    population, question = document["population"], document["question"]
    kind = population["kind"]
    if kind == "sumo" and find_spec("sumo") is None:
        pytest.skip("needs SUMO (`make nightly` installs it)")

    if "file" in population:
        Settings("population", population, populations.keys_of(kind), Path())
        cells.read(question, Path(), populations.cells_of(kind))
    else:
        made = populations.build(population, question, 1, Path())
        assert made.histogram(0).sum() == made.devices


@pytest.mark.parametrize("kind", populations.KINDS)
def test_every_example_of_a_key_is_toml(kind: str) -> None:
    for key in populations.keys_of(kind):
        assert tomllib.loads(f"{key.name} = {key.example}")
