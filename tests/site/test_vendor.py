"""Files of others are those that were released, with their licences, and nothing else lies among them."""

import hashlib
import tomllib
from pathlib import Path

from fleetcount_site.pages import assets

VENDOR = Path(__file__).resolve().parent.parent.parent / "site/src/fleetcount_site/vendor"


def test_every_file_of_others_is_the_released_one() -> None:
    packages = tomllib.loads((VENDOR / "MANIFEST.toml").read_text())["package"]
    named = {f"{one['folder']}/{name}": digest for one in packages for name, digest in one["files"].items()}

    found = {
        path.relative_to(VENDOR).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.rglob("*")
        if path.is_file() and path.name != "MANIFEST.toml"
    }

    assert found == named
    assert all("LICENSE" in one["files"] and one["licence"] for one in packages)


def test_licences_go_along_to_every_site() -> None:
    licences = [name for name in assets() if name.endswith("LICENSE")]

    assert len(licences) == 4
