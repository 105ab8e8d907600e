"""Every file of the shelf through every door: what is taken is read right in every way, the rest is refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shelf.doors import DOORS, OF_DEVICES, plain, through
from tests.shelf.shelf import FILES, HERE, Visit, mutations, sources, visits, ways
from tests.support.cases import case

LARGEST = 30_000
LARGEST_SHELF = 400_000
LICENCES = {"Apache-2.0", "CC-BY-4.0", "EPL-2.0", "MPL-2.0", "OGL-UK-3.0", "as the repository", "public domain"}


def taken(door: str) -> Iterator[Visit]:
    return (visit for visit in visits() if visit.door == door and visit.gives is not None)


def test_every_file_is_an_entry_with_a_source_and_a_licence_and_is_small() -> None:
    said = sources()
    on_disk = sorted(str(path.relative_to(FILES)) for path in FILES.rglob("*") if path.is_file())

    assert sorted(entry["name"] for entry in said["file"]) == on_disk
    assert max((FILES / name).stat().st_size for name in on_disk) <= LARGEST
    assert (
        sum(path.stat().st_size for path in HERE.rglob("*") if path.is_file() and path.suffix != ".pyc") < LARGEST_SHELF
    )
    assert {entry["origin"] for entry in said["file"]} == said["origins"].keys()
    assert {origin["licence"] for origin in said["origins"].values()} <= LICENCES
    for entry in said["file"]:
        assert {"name", "what", "origin", "by"} <= entry.keys() <= {"name", "what", "origin", "by", "takes", "refused"}
        assert entry.get("takes", {}).keys() | entry.get("refused", {}).keys() <= DOORS.keys()


@pytest.mark.parametrize("door", DOORS)
def test_a_door_reads_a_file_right_in_every_way_it_comes(door: str, tmp_path: Path) -> None:
    read = 0
    for visit in taken(door):
        for way, path in [("as it is", visit.path), *ways(visit, tmp_path)]:
            with case(f"{visit.file} {way}"):
                told, line = through(door, path, visit.asked)
                assert line == ""
                assert plain(told) == visit.gives
                read += 1
    assert read >= 5


@pytest.mark.parametrize("door", DOORS)
def test_what_a_door_does_not_take_is_refused_by_name_and_nothing_is_written(door: str, tmp_path: Path) -> None:
    for visit in visits():
        if visit.door != door or visit.gives is not None or (door in OF_DEVICES and not visit.says):
            continue
        with case(visit.file):
            path = tmp_path / visit.path.name
            path.write_bytes(visit.path.read_bytes())
            told, line = through(door, path, visit.asked)
            assert told is None
            assert visit.says in line
            assert path.name in line or f"population.file = {path.name}" in line
            assert [one.name for one in tmp_path.iterdir()] == [path.name]
            path.unlink()


@pytest.mark.parametrize("door", DOORS)
def test_a_file_cut_or_with_flipped_bytes_is_taken_or_refused(door: str, tmp_path: Path) -> None:
    mutations(door, 100, tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("door", DOORS)
def test_ten_thousand_of_them_are_taken_or_refused(door: str, tmp_path: Path) -> None:
    mutations(door, 10_000, tmp_path)
