"""What an installation takes in is locked and listed, and the same sources give the same wheel, byte for byte."""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.installed import with_builder

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = CONFIGURATION["project"]


def script(name: str) -> ModuleType:
    """Return a module of scripts/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"scripts_{name}", ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


lock, wheel = script("lock"), script("wheel")


def wanted(extra: str, seen: frozenset[str] = frozenset()) -> set[str]:
    """Return the distributions that pyproject.toml names for an extra, through extras that it contains."""
    found: set[str] = set()
    for row in PROJECT["optional-dependencies"][extra]:
        if inner := re.match(r"fleetcount\[(.*)\]", row):
            for one in inner[1].split(","):
                found |= wanted(one, seen | {extra})
        else:
            found.add(lock.plain(re.match(r"[\w.-]+", row)[0]))
    return found


def test_locks_hold_exactly_the_pinned_versions_and_none_has_what_it_contains() -> None:
    locks = lock.read_locks()

    for name in locks:
        within = [one.pin for file in lock.contained(name) for one in locks[file]]
        assert len(within) == len(set(within))
    locked = {one.pin for added in locks.values() for one in added}
    assert len(locked) > 90
    assert locked == lock.pins()


def test_what_is_only_compared_with_is_fetched_by_nightly_alone() -> None:
    locks = lock.read_locks()
    files = {lock.plain(one.name): name for name, added in locks.items() for one in added}
    compared = (
        "atheris",
        "dp-accounting",
        "eclipse-sumo",
        "geopandas",
        "libsumo",
        "opendp",
        "polars",
        "pyarrow",
        "dask",
    )

    fetched = sum(one.size for file in lock.contained("test") for one in locks[file])

    assert {name: files[name] for name in compared} == dict.fromkeys(compared, "nightly")
    assert fetched < 300e6, "`make test` fetches more than a newcomer waits for: does each library serve its tests?"


def test_each_distribution_has_the_size_of_its_file() -> None:
    assert [one.pin for added in lock.read_locks().values() for one in added if one.size < 1000] == []


def test_what_two_files_need_in_different_places_is_needed_in_both() -> None:
    def needing(marker: str) -> dict[str, Any]:
        where = "x==1 ; " + marker if marker else "x==1"
        return {"x==1": lock.parse(f"{where} \\\n    --hash=sha256:{'0' * 64}\n    # via y\n")[0]}

    nowhere: dict[str, Any] = {name: {} for name in lock.TREE}

    either = nowhere | {"test": needing("a"), "check": needing("a"), "nightly": needing("b")}
    always = either | {"nightly": needing("")}
    check_alone = nowhere | {"check": needing("a")}

    assert lock.joined("test", "x==1", either, 5).marker == "(a) or (b)"
    assert lock.joined("test", "x==1", always, 5).marker == ""
    assert lock.joined("check", "x==1", check_alone, 5).text.endswith("    # 5 bytes, needed by y\n")
    assert lock.joined("check", "x==1", check_alone, 5).marker == "a"


@pytest.mark.parametrize("name", [name for name, (_, extras) in lock.TREE.items() if extras])
def test_each_lock_has_what_its_extras_name(name: str) -> None:
    locks = lock.read_locks()
    held = {lock.plain(one.name) for file in lock.contained(name) for one in locks[file]}
    base = {lock.plain(re.match(r"[\w.-]+", row)[0]) for row in PROJECT["dependencies"]}
    asked = base.union(*(wanted(extra) for extra in lock.TREE[name][1]))

    assert len(asked) > 5
    assert asked - held == set()


def test_what_runs_beside_has_the_version_that_is_named_and_digests_of_all_it_needs() -> None:
    for name, wanted in lock.BESIDE.items():
        text = (ROOT / "locks" / f"{name}.txt").read_text()
        found = lock.parse(text)
        assert re.sub(r"\[.*\]", "", wanted) in {one.pin for one in found}
        assert text == lock.HEAD + "".join(one.text for one in found)
        assert [one.pin for one in found if one.size < 1000] == []


def test_locks_include_one_another_and_name_no_index_and_no_place() -> None:
    beside = dict.fromkeys(lock.BESIDE, ("", ()))
    for name, (within, _) in [*lock.TREE.items(), *beside.items()]:
        rows = (ROOT / "locks" / f"{name}.txt").read_text().splitlines()
        options = [row for row in rows if row.startswith("-")]
        assert options == ([f"-r {within}.txt"] if within else [])
        assert [row for row in rows if "://" in row or " @ " in row or "index" in row] == []


def test_a_lock_comes_back_as_it_was_written_and_a_line_without_digests_is_refused() -> None:
    for name, added in lock.read_locks().items():
        text = (ROOT / "locks" / f"{name}.txt").read_text()
        assert text.endswith("".join(one.text for one in added))
    assert {one.marker for one in lock.read_locks()["all"]} == {"", "sys_platform == 'win32'"}
    with pytest.raises(lock.LockError, match="numpy==2"):
        lock.parse("numpy==2.4.6\n    # needed by fleetcount\n")


def test_the_sbom_lists_what_is_locked_and_who_needs_it() -> None:
    text = (ROOT / "locks" / lock.SBOM).read_text()
    known = json.loads(text)

    assert text == lock.sbom(lock.read_locks(), PROJECT["version"]), "run scripts/lock.py --sbom"
    assert (known["bomFormat"], known["specVersion"]) == ("CycloneDX", "1.6")
    names = {one["name"]: one for one in known["components"]}
    locked = [one for one in names.values() if one["purl"].startswith("pkg:pypi/")]
    assert {f"{one['name']}=={one['version']}" for one in locked} == lock.pins()
    browsers = {one["purl"]: one for one in names.values() if one not in locked}
    assert set(browsers) == {
        "pkg:npm/leaflet@1.9.4",
        "pkg:npm/uplot@1.6.32",
        "pkg:npm/%40noble/ed25519@3.2.0",
        "pkg:npm/%40noble/hashes@2.2.0",
    }
    assert [one["licenses"][0]["license"]["id"] for one in browsers.values()] == ["BSD-2-Clause", *["MIT"] * 3]
    files = {one["name"]: one["hashes"] for package in browsers.values() for one in package["components"]}
    there = [path for path in (ROOT / lock.VENDOR).rglob("*") if path.is_file() and path.name != "MANIFEST.toml"]
    assert files == {
        path.relative_to(ROOT).as_posix(): [
            {"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}
        ]
        for path in there
    }
    assert {names[name]["scope"] for name in ("cryptography", "grpcio", "numpy", "h3")} == {"required"}
    assert {names[name]["scope"] for name in ("pytest", "ruff", "hatchling")} == {"excluded"}
    needs = {one["ref"]: one["dependsOn"] for one in known["dependencies"]}
    own = known["metadata"]["component"]["bom-ref"]
    assert names["cryptography"]["bom-ref"] in needs[own]
    assert names["numpy"]["bom-ref"] in needs[names["scipy"]["bom-ref"]]
    assert set(needs) == {own, *(one["bom-ref"] for one in names.values())}


def test_what_runs_where_fleetcount_runs_has_its_licence_and_the_digests_of_its_files_in_the_sbom() -> None:
    known = json.loads((ROOT / "locks" / lock.SBOM).read_text())
    locked = {lock.plain(one.name): one for name in lock.SHIPPED for one in lock.read_locks()[name]}
    described = {one["name"]: one for one in known["components"] if one["name"] in locked}

    assert len(described) > 50
    for name, one in described.items():
        assert one["licenses"] == [{"expression": lock.licences()[name]}]
        [files] = one["externalReferences"]
        assert [row["content"] for row in files["hashes"]] == list(locked[name].digests)
    page = lock.components_page(known).splitlines()
    shipped = [one for one in known["components"] if one["scope"] == "required"]
    assert len(page) == 6 + len(shipped)
    numpy = locked["numpy"]
    assert f"| numpy | {numpy.version} | {lock.licences()['numpy']} | {len(numpy.digests)} |" in page
    assert [row for row in page if row.startswith("| leaflet | ")]


def test_the_licences_are_those_that_the_distributions_state() -> None:
    """Those that are installed here; of one whose metadata have an old word, the licence is of its family."""
    compared = 0
    for name, licence in lock.licences().items():
        try:
            metadata = importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        compared += 1
        stated = metadata.get("License-Expression")
        families = [row for row in metadata.get_all("Classifier") or () if row.startswith("License ::")]
        if stated:
            assert (name, licence) == (name, stated)
        elif families:
            words = {"BSD": "BSD-", "MIT": "MIT", "Apache": "Apache-", "ISC": "ISC", "Python": "LicenseRef-Matplotlib"}
            assert any(word in families[0] and licence.startswith(id_) for word, id_ in words.items()), (name, families)
    assert compared > 10


def changed(source: Path, target: Path, mode: int, moment: int) -> Path:
    """Copy what the wheel is made of, with other modes and times of files, and with compiled files beside them."""
    packages = CONFIGURATION["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    files = [source / name for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore")]
    files += [source / "client" / name for name in ("pyproject.toml", "README.md", "LICENSE")]
    files += [path for package in packages for path in (source / package).rglob("*") if path.is_file()]
    for path in files:
        if path.suffix != ".pyc":
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            copy.chmod(mode)
            os.utime(copy, (moment, moment))
    for package in ("cli/src/fleetcount", "mechanisms/src/fleetcount_mechanisms"):
        cache = target / package / "__pycache__"
        cache.mkdir()
        (cache / f"demo.{moment}.pyc").write_bytes(b"compiled")
    return target


@pytest.mark.processes
@with_builder
@pytest.mark.parametrize(("project", "name"), [(".", "fleetcount"), ("client", "fleetcount_client")])
def test_two_builds_at_other_places_and_times_give_the_same_bytes_and_another_source_does_not(
    project: str, name: str, tmp_path: Path
) -> None:
    one = changed(ROOT, tmp_path / "one", 0o644, 1_600_000_000)
    two = changed(ROOT, tmp_path / "a" / "deeper" / "place", 0o600, 1_700_000_001)

    first, second = (wheel.build(tree, tmp_path / tree.name, project) for tree in (one, two))
    (two / project / "README.md").write_text("Another.\n")
    third = wheel.build(two, tmp_path / "dist-3", project)

    digests = [hashlib.sha256(built.read_bytes()).hexdigest() for built in (first, second, third)]
    assert first.name == second.name == f"{name}-{PROJECT['version']}-py3-none-any.whl"
    assert digests[0] == digests[1] != digests[2]
    with zipfile.ZipFile(first) as archive:
        assert [entry for entry in archive.namelist() if entry.endswith(".pyc")] == []
