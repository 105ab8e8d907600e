"""tests/ mirrors the rooms of the source: what tests a room stands in the folder of its name."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WITHOUT_ROOM = {"attack", "campaign", "golden", "integration", "model", "shelf", "statistical", "support", "vectors"}
"""Data, helpers of tests, and tests of several packages together."""
TOOLS = {"benchmarks", "scripts"}


def room_of(folder: Path) -> Path:
    """Return the source folder that a test folder belongs to."""
    package, *rooms = folder.relative_to(ROOT / "tests").parts
    name = "fleetcount" if package == "cli" else f"fleetcount_{package}"
    return ROOT.joinpath(package, "src", name, *rooms)


def test_every_folder_of_tests_has_its_room() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")} - {ROOT / "tests"}
    rooms = [folder for folder in folders if folder.relative_to(ROOT / "tests").parts[0] not in WITHOUT_ROOM | TOOLS]

    assert len(rooms) > 20
    assert [folder for folder in rooms if not room_of(folder).is_dir()] == []
