#!/usr/bin/env python3
"""Write `locks/`: every distribution that an installation needs, with its version and the SHA-256 of each of its files.

    scripts/lock.py             renew the locks and the SBOM from pyproject.toml and constraints.txt
    scripts/lock.py --sbom      only the SBOM, from the locks as they are

A lock file starts where the one that it contains ends (`-r`, the first name of its row in `TREE`), so that no
distribution stands twice in what one of them brings. They name no index: `pip install --require-hashes -r
locks/aggregator.txt` takes files from wherever pip is told to look, and refuses each that is not one of them. Renewing
needs uv (`pip install uv`), which asks an index for the digests of files for all platforms and Python versions; a
version that constraints.txt lacks is an error, for it would be one that nobody tested.

Each distribution has the size of its file for Linux on x86-64 and Python 3.11, from which `scripts/bootstrap.py` says
how much it fetches; that of another machine is about as large.

`locks/sbom.cdx.json` is the same for programs that look for known weaknesses (CycloneDX 1.6), and what browsers run:
the files of others in `site/`. What runs where fleetcount runs has its licence there (`locks/licences.toml`) and the
digests of its files.
"""

import argparse
import hashlib
import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from packaging import tags
from packaging.utils import parse_wheel_filename

ROOT: Final = Path(__file__).resolve().parent.parent
LOCKS: Final = "locks"
SBOM: Final = "sbom.cdx.json"
LICENCES: Final = "licences.toml"
VENDOR: Final = Path("site/src/fleetcount_site/vendor")
"""The files of others that pages load; `MANIFEST.toml` says what they are."""
TREE: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "build": ("", ()),
    "device": ("build", ("grpc", "mqtt")),
    "aggregator": ("device", ("aggregator", "postgres")),
    "all": ("aggregator", ("all",)),
    "test": ("all", ("test",)),
    "check": ("test", ("check",)),
    "nightly": ("test", ("nightly",)),
}
"""The lock files: for each the one that it contains, and the extras that it adds. What is contained stands before."""
HEAD: Final = "# Written by scripts/lock.py; do not edit.\n"
INSTALLER: Final = "installer"
"""The lock of uv alone, which `scripts/bootstrap.py` fetches where there is none: the one that wrote the others."""
BESIDE: Final[Mapping[str, str]] = {"flower": "flwr[simulation]==1.42.0"}
"""The locks of programs that benchmarks run beside ours, each in an environment of its own, and what each is of."""
BUILD: Final = "the build"
SHIPPED: Final = ("device", "aggregator", "all")
"""What runs where fleetcount runs; the rest builds, tests and checks it."""
_PINNED: Final = re.compile(r"([A-Za-z0-9._-]+)==([^\s;]+)(?: ; ([^\\\n]+?))? ?\\?$", re.MULTILINE)
_DIGEST: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_WANTED_BY: Final = re.compile(r"^ +# (?:via |  |(?:\d+ bytes, )?needed by )([A-Za-z0-9].*)$", re.MULTILINE)
_SIZE: Final = re.compile(r"^ +# (\d+) bytes, ", re.MULTILINE)
_OURS: Final = ("--constraint", "constraints.txt")
_PLATFORMS: Final = [
    *(f"manylinux_2_{minor}_x86_64" for minor in range(40, 4, -1)),
    *(f"manylinux{name}_x86_64" for name in ("2014", "2010", "1")),
]
MEASURED: Final = [
    *tags.cpython_tags((3, 11), platforms=_PLATFORMS),
    *tags.compatible_tags((3, 11), platforms=_PLATFORMS),
]
"""Whose files have their sizes in the locks, best first: one machine, so that all write the same."""


class LockError(Exception):
    """The locks cannot be written or read; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """One distribution: its pinned version, where it is needed, the digests of its files, its size, who needs it."""

    name: str
    version: str
    marker: str
    digests: tuple[str, ...]
    wanted_by: tuple[str, ...]
    size: int
    """Bytes of its file for one machine (`MEASURED`)."""

    @property
    def pin(self) -> str:
        """Name and version as constraints.txt has them, the name in its normal form."""
        return f"{plain(self.name)}=={self.version}"

    @property
    def text(self) -> str:
        """Its lines in a lock file."""
        first = f"{self.pin} ; {self.marker}" if self.marker else self.pin
        digests = [f"    --hash=sha256:{digest}" for digest in self.digests]
        needed = f"    # {self.size} bytes, needed by {', '.join(self.wanted_by) or BUILD}\n"
        return " \\\n".join([first, *digests]) + "\n" + needed


def plain(name: str) -> str:
    """Return a distribution's name in its normal form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse(text: str) -> list[Locked]:
    """Return the distributions of a lock file, in order.

    Raises:
        LockError: a line that is none of a lock file, or a distribution without digests.
    """
    found = []
    for block in re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]:
        pinned = _PINNED.match(block)
        digests = tuple(sorted(_DIGEST.findall(block)))
        if pinned is None or not digests:
            raise LockError(f"{block.splitlines()[0]!r} is no version with digests of its files")
        name, version, marker = pinned.groups()
        wanted_by = tuple(sorted({one for row in _WANTED_BY.findall(block) for one in row.split(", ")} - {BUILD}))
        size = _SIZE.search(block)
        found.append(
            Locked(
                name=name,
                version=version,
                marker=marker or "",
                digests=digests,
                wanted_by=wanted_by,
                size=int(size[1]) if size else 0,
            )
        )
    return found


def read_locks(root: Path = ROOT) -> dict[str, list[Locked]]:
    """Return what each lock file adds to the one that it contains."""
    return {name: parse((root / LOCKS / f"{name}.txt").read_text()) for name in TREE}


def contained(name: str) -> list[str]:
    """Return a lock file and those that it contains, itself last."""
    within = TREE[name][0]
    return [*contained(within), name] if within else [name]


def pins(root: Path = ROOT) -> set[str]:
    """Return the versions of constraints.txt."""
    rows = [line.strip() for line in (root / "constraints.txt").read_text().splitlines()]
    return {f"{plain(name)}=={version}" for name, _, version in (row.partition("==") for row in rows) if version}


def renewed(root: Path) -> dict[str, str]:
    """Ask uv for every distribution of each file of the chain; return the new texts.

    Raises:
        LockError: uv is missing or fails, or it chose a version that constraints.txt does not name.
    """
    known = pins(root)
    found: dict[str, dict[str, Locked]] = {}
    for name in TREE:
        found[name] = {one.pin: one for one in parse(_resolved(root, _extras(name)))}
        if unknown := sorted(found[name].keys() - known):
            raise LockError(f"constraints.txt lacks {', '.join(unknown)}: test them and write them down first")
    measured = sizes(root, sorted({pin for one in found.values() for pin in one}))
    texts: dict[str, str] = {}
    for name, (within, _) in TREE.items():
        start = f"-r {within}.txt\n" if within else ""
        held = {pin for one in contained(name)[:-1] for pin in found[one]}
        added = [pin for pin in found[name] if pin not in held]
        texts[name] = HEAD + start + "".join(joined(name, pin, found, measured[pin]).text for pin in added)
    own = {INSTALLER: f"uv=={importlib.metadata.version('uv')}", **BESIDE}
    return texts | {name: apart(root, wanted) for name, wanted in own.items()}


def joined(name: str, pin: str, found: Mapping[str, Mapping[str, Locked]], size: int) -> Locked:
    """Return a distribution as a lock file has it: needed wherever one of the files that contain this one needs it."""
    last = [one for one in TREE if name in contained(one) and one not in {within for within, _ in TREE.values()}]
    markers = sorted({found[one][pin].marker for one in last if pin in found[one]} or {found[name][pin].marker})
    marker = "" if "" in markers else markers[0] if len(markers) == 1 else " or ".join(f"({one})" for one in markers)
    wanted_by = {parent for one in found.values() if pin in one for parent in one[pin].wanted_by}
    return replace(found[name][pin], marker=marker, wanted_by=tuple(sorted(wanted_by)), size=size)


def _extras(name: str) -> list[str]:
    """Return the extras of a lock file, with those of the files that it contains."""
    return [extra for one in contained(name) for extra in TREE[one][1]]


def apart(root: Path, wanted: str) -> str:
    """Return the lock of what shares no environment with fleetcount, and none of its versions."""
    found = parse(_compiled(root, [wanted], constraints=()))
    rows = [f"{one.pin} ; {one.marker}" if one.marker else one.pin for one in found]
    measured = sizes(root, rows, constraints=())
    return HEAD + "".join(replace(one, size=measured[one.pin]).text for one in found)


def sizes(root: Path, pinned: Sequence[str], constraints: Sequence[str] = _OURS) -> dict[str, int]:
    """Return the bytes of the file of each distribution that one machine (`MEASURED`) takes; of its source without one.

    `pinned` are versions, each with the marker of where it is needed if there is one.

    Raises:
        LockError: uv fails, or the index does not say how large a file is.
    """
    with tempfile.TemporaryDirectory() as directory:
        described = Path(directory) / "pylock.toml"
        _compiled(root, pinned, "--no-deps", "--output-file", str(described), constraints=constraints)
        packages = tomllib.loads(described.read_text())["packages"]
    found = {f"{plain(one['name'])}=={one['version']}": _size(one) for one in packages}
    wanted = {row.partition(" ;")[0] for row in pinned}
    if unknown := sorted(wanted - {pin for pin, size in found.items() if size}):
        raise LockError(f"the index does not say how large the files of {', '.join(unknown)} are: ask another one")
    return found


def _size(package: Mapping[str, Any]) -> int:
    ranks = {tag: rank for rank, tag in enumerate(MEASURED)}
    fitting = []
    for file in package.get("wheels", ()):
        found = parse_wheel_filename(file.get("name") or unquote(file["url"].rpartition("/")[2]))[3]
        fitting += [(ranks[tag], int(file.get("size", 0))) for tag in found if tag in ranks]
    return min(fitting)[1] if fitting else int(package.get("sdist", {}).get("size", 0))


def _resolved(root: Path, extras: Sequence[str]) -> str:
    """Return uv's lock of some extras, or of what builds the wheel without one."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    wanted = [f"fleetcount[{','.join(extras)}] @ ."] if extras else [*project["build-system"]["requires"], "editables"]
    return _compiled(root, wanted)


def _compiled(root: Path, wanted: Sequence[str], *more: str, constraints: Sequence[str] = _OURS) -> str:
    command = [sys.executable, "-m", "uv", "pip", "compile", "-", *constraints]
    options = ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-header", "--quiet"]
    leave_out = ["--no-emit-package", "fleetcount"]
    done = subprocess.run(
        [*command, *options, *leave_out, *more],
        cwd=root,
        input="\n".join(wanted),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise LockError(f"uv pip compile failed (pip install uv, if it is missing):\n{done.stderr}")
    return done.stdout


def sbom(locks: Mapping[str, Sequence[Locked]], version: str) -> str:
    """Return the CycloneDX description of what each lock file brings; the same locks give the same bytes.

    Raises:
        LockError: a distribution without a licence in `licences`, or one too many there.
    """
    where: dict[str, list[str]] = {}
    for name, added in locks.items():
        for one in added:
            where.setdefault(one.pin, []).append(name)
    first = {one.pin: one for added in locks.values() for one in added}
    known = licences()
    shipped = {plain(first[pin].name) for pin, files in where.items() if files[0] in SHIPPED}
    if wrong := sorted(shipped ^ known.keys()):
        raise LockError(f"{LOCKS}/{LICENCES} names what runs where fleetcount runs; too many or too few: {wrong}")
    components = [_component(first[pin], files, known.get(plain(first[pin].name), "")) for pin, files in where.items()]
    browsers = [_browser_component(one) for one in vendored()]
    every = {plain(one.name): one for added in locks.values() for one in added}
    own = f"pkg:pypi/fleetcount@{version}"
    needs: dict[str, set[str]] = {own: set()} | {_purl(one): set() for one in every.values()}
    for one in every.values():
        for parent in one.wanted_by:
            needs[_purl(every[plain(parent)]) if plain(parent) in every else own].add(_purl(one))
    for component in browsers:
        needs[own].add(component["bom-ref"])
        needs[component["bom-ref"]] = set()
    described: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "bom-ref": own, "name": "fleetcount", "version": version, "purl": own}
        },
        "components": components + browsers,
        "dependencies": [{"ref": ref, "dependsOn": sorted(parts)} for ref, parts in sorted(needs.items())],
    }
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
    described["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}"
    return json.dumps(described, indent=1, sort_keys=True) + "\n"


def _purl(one: Locked) -> str:
    return f"pkg:pypi/{plain(one.name)}@{one.version}"


def licences(root: Path = ROOT) -> dict[str, str]:
    """Return the licence of each distribution that runs where fleetcount runs, as an SPDX expression."""
    return tomllib.loads((root / LOCKS / LICENCES).read_text())


def components_page(described: Mapping[str, Any]) -> str:
    """Return what an SBOM lists of what runs where fleetcount runs, and in browsers, as a table of Markdown."""
    rows = [
        f"| {one['name']} | {one['version']} | {_licence_of(one)} | {_digests_of(one)} |"
        for one in described["components"]
        if one["scope"] == "required"
    ]
    head = ["| component | version | licence | SHA-256 of its files |", "|---|---|---|---|"]
    title = f"# Components of fleetcount {described['metadata']['component']['version']}"
    return "\n".join([title, "", f"From `{LOCKS}/{SBOM}`, which has the digests.", "", *head, *rows]) + "\n"


def _licence_of(component: Mapping[str, Any]) -> str:
    [one] = component["licenses"]
    return str(one.get("expression") or one["license"]["id"])


def _digests_of(component: Mapping[str, Any]) -> int:
    held = [component, *component.get("externalReferences", ()), *component.get("components", ())]
    return sum(len(one.get("hashes", ())) for one in held)


def _component(one: Locked, files: Sequence[str], licence: str) -> dict[str, Any]:
    properties = [{"name": "fleetcount:lock", "value": file} for file in files]
    if one.marker:
        properties.append({"name": "fleetcount:where", "value": one.marker})
    described: dict[str, Any] = {
        "type": "library",
        "bom-ref": _purl(one),
        "name": plain(one.name),
        "version": one.version,
        "purl": _purl(one),
        "scope": "required" if files[0] in SHIPPED else "excluded",
        "properties": properties,
    }
    if files[0] not in SHIPPED:
        return described
    # A component's own digest is that of one file; of a distribution there is a file for each platform and Python.
    files_of_it = {"type": "distribution", "url": _purl(one), "hashes": [_sha256(digest) for digest in one.digests]}
    return described | {"licenses": [{"expression": licence}], "externalReferences": [files_of_it]}


def vendored(root: Path = ROOT) -> list[dict[str, Any]]:
    """Return what `MANIFEST.toml` says of the packages that pages load."""
    packages: list[dict[str, Any]] = tomllib.loads((root / VENDOR / "MANIFEST.toml").read_text())["package"]
    return packages


def _browser_component(package: Mapping[str, Any]) -> dict[str, Any]:
    """Return an npm package that pages load, its files below it (package URL: the at sign of a scope is escaped)."""
    purl = f"pkg:npm/{package['name'].replace('@', '%40')}@{package['version']}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": package["name"],
        "version": package["version"],
        "purl": purl,
        "scope": "required",
        "licenses": [{"license": {"id": package["licence"]}}],
        "hashes": [_sha256(package["archive_sha256"])],
        "properties": [{"name": "fleetcount:where", "value": "readers' browsers"}],
        "components": [
            {"type": "file", "name": f"{VENDOR}/{package['folder']}/{name}", "hashes": [_sha256(digest)]}
            for name, digest in package["files"].items()
        ],
    }


def _sha256(digest: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": digest}


def project_version(root: Path = ROOT) -> str:
    """Return the version in pyproject.toml."""
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def main(arguments: Sequence[str]) -> int:
    """Write the locks and the SBOM; return the exit code."""
    parser = argparse.ArgumentParser(prog="lock", description="Write locks/*.txt and the SBOM.")
    parser.add_argument("--sbom", action="store_true", help="write the SBOM from the locks as they are")
    options = parser.parse_args(arguments)
    try:
        texts = {} if options.sbom else renewed(ROOT)
        (ROOT / LOCKS).mkdir(exist_ok=True)
        for name, text in texts.items():
            (ROOT / LOCKS / f"{name}.txt").write_text(text)
        (ROOT / LOCKS / SBOM).write_text(sbom(read_locks(), project_version()))
    except (LockError, OSError) as error:
        print(f"lock: {error}", file=sys.stderr)
        return 5
    count = len({one.pin for added in read_locks().values() for one in added})
    print(f"lock: {count} distributions in {len(TREE)} files and the SBOM")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
