"""A back-quoted name that does not exist is refused, wherever a reader meets it."""

from pathlib import Path

import pytest

from scripts import check_names

ROOT = Path(check_names.__file__).parent.parent
MODULE = '''"""Holds `Box`, made by `Box.filled()`; {prose}."""


class Lid:
    def close(self) -> None: ...


class Box(Lid):
    """A box with `size` and `Box.close`."""

    size: int
    TOO_SMALL = 1

    @classmethod
    def filled(cls) -> "Box": ...


NAMES = ("half-full", "fleetcount_boxes", "--deep")
'''


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository of one module, one table of settings and one document."""
    folder = tmp_path / "client" / "src" / "fleetcount_client"
    folder.mkdir(parents=True)
    (folder / "box.py").write_text(MODULE.format(prose="nothing else"), encoding="utf-8")
    (tmp_path / "client" / "sample.toml").write_text("[delivery]\nspread_s = 3\n", encoding="utf-8")
    (tmp_path / "docs").mkdir()
    return tmp_path


def found_in_document(repository: Path, text: str) -> list[str]:
    (repository / "docs" / "page.md").write_text(f"# Boxes\n\nRead {text} first.\n", encoding="utf-8")
    return check_names.check(repository)


def found_in_docstring(repository: Path, prose: str) -> list[str]:
    module = repository / "client" / "src" / "fleetcount_client" / "box.py"
    module.write_text(MODULE.format(prose=prose), encoding="utf-8")
    return check_names.check(repository)


def test_this_repository_names_only_what_exists() -> None:
    assert check_names.check(ROOT) == []


ABSENT = [
    "Crate",
    "empty_box()",
    "Box.weight",
    "Lid.size",
    "box.Crate",
    "fleetcount_client.crate",
    "fleetcount_client.box.Crate",
    "client/crate.py",
    "crate.py",
    "docs/crates.md",
    "client/crates/",
    "quarter-full",
    "--shallow",
    "fleetcount crate",
    "delivery.weight_s",
    "FLEETCOUNT_DELIVERY__WEIGHT_S",
]


def test_a_name_that_does_not_exist_is_refused_in_a_document_and_in_a_docstring(repository: Path) -> None:
    for name in ABSENT:
        assert found_in_document(repository, f"`{name}`") == [f"docs/page.md:3: `{name}` does not exist"], name
    for name in ABSENT:
        in_docstring = found_in_docstring(repository, f"see `{name}`")

        assert f"client/src/fleetcount_client/box.py:1: `{name}` does not exist" in in_docstring, name


PRESENT = [
    "Box",
    "Box.filled()",
    "Box.close",
    "box.Box.size",
    "fleetcount_client.box.Box",
    "client/box.py",
    "client/src/fleetcount_client/box.py",
    "client/*.py",
    "docs/",
    "too_small",
    "half-full",
    "fleetcount_boxes_total",
    "--deep",
    "delivery.spread_s",
    "FLEETCOUNT_DELIVERY__SPREAD_S",
    "release.json",
    "n / 2",
    "u8 u16",
]


def test_what_exists_and_what_is_no_name_pass(repository: Path) -> None:
    for name in PRESENT:
        assert found_in_document(repository, f"`{name}`") == [], name


def test_a_comment_is_read_too_and_the_line_is_told(repository: Path) -> None:
    module = repository / "client" / "src" / "fleetcount_client" / "lid.py"
    module.write_text('"""Lids."""\n\nHEIGHT = 2  # As in `Crate`, not "`Box`".\n', encoding="utf-8")

    assert check_names.check(repository) == ["client/src/fleetcount_client/lid.py:3: `Crate` does not exist"]


def test_what_only_a_test_defines_exists_for_tests_alone(repository: Path) -> None:
    (repository / "tests").mkdir()
    (repository / "tests" / "test_box.py").write_text('"""Uses `Crate`."""\n\n\nclass Crate: ...\n', encoding="utf-8")

    assert found_in_document(repository, "`Crate`") == ["docs/page.md:3: `Crate` does not exist"]


def test_a_fenced_block_is_not_looked_at(repository: Path) -> None:
    assert found_in_document(repository, "this\n```\necho `crate`\n```\nand that") == []


LEADS = ["#7-the-box-of-a-client", "page.md#boxes", "page.md#boxes-1", "lids/lid.md#round", "../README.md#top"]
"""Anchors as a forge gives them, from docs/page.md."""
DEAD = ["#the-box-of-a-client", "#7.-the-box-of-a-client", "page.md#boxes-2", "lids/lid.md#flat", "lid.md#round"]
"""The first one leads to its heading on the documentation site alone."""


def test_a_link_names_a_heading_by_the_anchor_that_a_forge_gives_it(repository: Path) -> None:
    (repository / "README.md").write_text("# Top\n", encoding="utf-8")
    (repository / "docs" / "lids").mkdir()
    (repository / "docs" / "lids" / "lid.md").write_text("# Lids\n\n## Round\n\n```\n## Flat\n```\n", encoding="utf-8")
    headings = "again.\n\n## 7. The `Box` of a [client](page.md)\n\n## Boxes\n\n"

    for link in LEADS:
        assert found_in_document(repository, f"{headings}[one]({link})") == [], link
    for link in DEAD:
        assert found_in_document(repository, f"{headings}[one]({link})") == [f"docs/page.md:9: no heading {link}"], link
    assert found_in_document(repository, "[one](https://example.org/page#part)") == []
