"""A table as a declared class: keys that do not fit each other are refused with line and value, words are told."""

import pytest
from fleetcount_transport.settings import (
    Key,
    UnfitKeyError,
    keys_of,
    names_of,
    read_rows,
    read_settings,
    read_table,
    refused_by,
    setting,
    settings,
)
from fleetcount_transport.toml_table import ConfigError, Source, Table, parse_toml

TEXT = """[town]
streets = 3
houses = 9

[[road]]
lanes = 2
"""


@settings
class Town:
    """A table with a rule between two keys."""

    streets: int = setting(Table.integer, 1, 10, about="how many streets, 1 to 10", example="3")
    houses: int = setting(Table.integer, 0, 100, default=0, about="how many houses; default none", example="9")

    def __post_init__(self) -> None:
        if self.houses > 5 * self.streets:
            raise UnfitKeyError("houses", allowed=f"at most {5 * self.streets}")


@settings
class Road:
    """A row of an array."""

    lanes: int = setting(Table.integer, 1, 8)


def root(text: str) -> Table:
    return Table(Source("town.toml", text), "", parse_toml(text, "town.toml"), None)


def test_a_table_is_its_class_and_the_class_tells_its_keys() -> None:
    assert read_settings(root(TEXT), "town", Town) == Town(streets=3, houses=9)
    assert names_of(Town) == ("streets", "houses")
    assert keys_of(Town)[0] == Key(name="streets", about="how many streets, 1 to 10", example="3")


def test_a_key_that_does_not_fit_another_is_refused_with_line_and_value() -> None:
    with pytest.raises(ConfigError, match=r"^town\.toml line 3: town\.houses is 16; allowed is at most 15$"):
        read_settings(root(TEXT.replace("9", "16")), "town", Town)
    with pytest.raises(UnfitKeyError, match=r"^houses does not fit; allowed is at most 15$"):
        Town(streets=3, houses=16)


def test_what_does_not_fit_later_is_refused_as_if_it_had_been_read_so() -> None:
    table = root(TEXT).section("town", None)

    with pytest.raises(ConfigError, match=r"^town\.toml line 2: town\.streets leads nowhere$"), refused_by(table):
        raise UnfitKeyError("streets", problem="leads nowhere")


def test_a_derived_value_is_not_read() -> None:
    assert read_table(root('streets = "many"'), Town, streets=2) == Town(streets=2)


def test_rows_have_a_least_and_a_largest_number() -> None:
    assert read_rows(root(TEXT), "road", Road, most=2) == (Road(lanes=2),)
    assert read_rows(root(""), "road", Road, least=0, most=2) == ()
    for text in ("", "[[road]]\nlanes = 1\n" * 3):
        with pytest.raises(ConfigError, match=r"road .*; allowed is 1 to 2 roads, \[\[road\]\] each"):
            read_rows(root(text), "road", Road, most=2, what="roads")


@pytest.mark.parametrize("part", ["a", '"b c"', "'d.e'"])
def test_a_key_of_more_parts_than_anybody_writes_is_refused_before_it_is_read(part: str) -> None:
    parse_toml(" . ".join([part] * 32) + " = 1.5", "town.toml")
    for text in (".".join([part] * 33) + " = 1", f"[{'.'.join([part] * 33)}]", f"x = {{{'.'.join([part] * 33)} = 1}}"):
        with pytest.raises(ConfigError, match=r"^town.toml holds a key of more than 32 parts$"):
            parse_toml(text, "town.toml")


def test_dots_outside_of_keys_are_no_parts_of_a_key() -> None:
    labels = ".".join("a" * 99)
    assert parse_toml(f'host = "{labels}:80" # {labels}', "town.toml") == {"host": f"{labels}:80"}
    assert parse_toml(f"host = '{labels}'", "town.toml") == {"host": labels}
    assert (
        parse_toml('text = "' + "end. of, one. " * 99 + '"\nlist = [' + "1.5, " * 99 + "]", "town.toml")["list"][98]
        == 1.5
    )
