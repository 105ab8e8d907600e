"""tests/ mirrors the folders of the source: what tests a folder stands in the folder of its name."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WITHOUT_SOURCE = {"attack", "campaign", "golden", "integration", "model", "shelf", "statistical", "support", "vectors"}
"""Data, helpers of tests, and tests of several packages together."""
TOOLS = {"benchmarks", "scripts"}


def source_of(folder: Path) -> Path:
    """Return the source folder that a test folder belongs to."""
    package, *inner = folder.relative_to(ROOT / "tests").parts
    name = "fleetcount" if package == "cli" else f"fleetcount_{package}"
    return ROOT.joinpath(package, "src", name, *inner)


def test_every_folder_of_tests_has_its_source() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")} - {ROOT / "tests"}
    inner = [folder for folder in folders if folder.relative_to(ROOT / "tests").parts[0] not in WITHOUT_SOURCE | TOOLS]

    assert len(inner) > 20
    assert [folder for folder in inner if not source_of(folder).is_dir()] == []
