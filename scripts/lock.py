#!/usr/bin/env python3
"""Write `locks/`: every distribution that an installation needs, with its version and the SHA-256 of each of its files.

    scripts/lock.py             renew the locks and the SBOM from pyproject.toml and constraints.txt
    scripts/lock.py --sbom      only the SBOM, from the locks as they are

A lock file starts where the one before it in `CHAIN` ends (`-r`), so that no distribution stands in two of them. They
name no index: `pip install --require-hashes -r locks/aggregator.txt` takes files from wherever pip is told to look,
and refuses each that is not one of them. Renewing needs uv (`pip install uv`), which asks an index for the digests of
files for all platforms and Python versions; a version that constraints.txt lacks is an error, for it would be one that
nobody tested.

`locks/sbom.cdx.json` is the same without digests for programs that look for known weaknesses (CycloneDX 1.6).
"""

import argparse
import hashlib
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
LOCKS: Final = "locks"
SBOM: Final = "sbom.cdx.json"
CHAIN: Final = {
    "build": (),
    "device": ("grpc", "mqtt"),
    "aggregator": ("aggregator", "postgres"),
    "all": ("all",),
    "test": ("test",),
    "check": ("check",),
}
"""The lock files in the order in which each contains the one before it, and the extras that each adds."""
HEAD: Final = "# Written by scripts/lock.py; do not edit.\n"
INSTALLER: Final = "installer"
"""The lock of uv alone, which `scripts/bootstrap.py` fetches where there is none: the one that wrote the others."""
BUILD: Final = "the build"
SHIPPED: Final = ("device", "aggregator", "all")
"""What runs where fleetcount runs; the rest builds, tests and checks it."""
_PINNED: Final = re.compile(r"([A-Za-z0-9._-]+)==([^\s;]+)(?: ; ([^\\\n]+?))? ?\\?$", re.MULTILINE)
_DIGEST: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_WANTED_BY: Final = re.compile(r"^ +# (?:via |  |needed by )([A-Za-z0-9].*)$", re.MULTILINE)


class LockError(Exception):
    """The locks cannot be written or read; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """One distribution: its pinned version, where it is needed, the digests of its files, and who needs it."""

    name: str
    version: str
    marker: str
    digests: tuple[str, ...]
    wanted_by: tuple[str, ...]

    @property
    def pin(self) -> str:
        """Name and version as constraints.txt has them, the name in its normal form."""
        return f"{plain(self.name)}=={self.version}"

    @property
    def text(self) -> str:
        """Its lines in a lock file."""
        first = f"{self.pin} ; {self.marker}" if self.marker else self.pin
        digests = [f"    --hash=sha256:{digest}" for digest in self.digests]
        needed = f"    # needed by {', '.join(self.wanted_by) or BUILD}\n"
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
        found.append(Locked(name=name, version=version, marker=marker or "", digests=digests, wanted_by=wanted_by))
    return found


def read_locks(root: Path = ROOT) -> dict[str, list[Locked]]:
    """Return what each lock file adds to the one before it."""
    return {name: parse((root / LOCKS / f"{name}.txt").read_text()) for name in CHAIN}


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
    every: dict[str, Locked] = {}
    new: dict[str, list[str]] = {}
    extras: list[str] = []
    for name, added in CHAIN.items():
        extras += added
        locked = parse(_resolved(root, extras))
        if unknown := sorted({one.pin for one in locked} - known):
            raise LockError(f"constraints.txt lacks {', '.join(unknown)}: test them and write them down first")
        new[name] = [one.pin for one in locked if one.pin not in every]
        for one in locked:  # What comes later in the chain may need it too.
            wanted_by = {*one.wanted_by, *(every[one.pin].wanted_by if one.pin in every else ())}
            every[one.pin] = replace(one, wanted_by=tuple(sorted(wanted_by)))
    before = [None, *CHAIN]
    texts = {
        name: HEAD + (f"-r {before[number]}.txt\n" if number else "") + "".join(every[pin].text for pin in pinned)
        for number, (name, pinned) in enumerate(new.items())
    }
    return texts | {INSTALLER: installer(root)}


def installer(root: Path) -> str:
    """Return the lock of the uv that runs here."""
    return HEAD + "".join(one.text for one in parse(_compiled(root, [f"uv=={importlib.metadata.version('uv')}"])))


def _resolved(root: Path, extras: Sequence[str]) -> str:
    """Return uv's lock of some extras, or of what builds the wheel without one."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    wanted = [f"fleetcount[{','.join(extras)}] @ ."] if extras else [*project["build-system"]["requires"], "editables"]
    return _compiled(root, wanted)


def _compiled(root: Path, wanted: Sequence[str]) -> str:
    command = [sys.executable, "-m", "uv", "pip", "compile", "-", "--constraint", "constraints.txt"]
    options = ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-header", "--quiet"]
    leave_out = ["--no-emit-package", "fleetcount"]
    done = subprocess.run(
        [*command, *options, *leave_out], cwd=root, input="\n".join(wanted), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise LockError(f"uv pip compile failed (pip install uv, if it is missing):\n{done.stderr}")
    return done.stdout


def sbom(locks: Mapping[str, Sequence[Locked]], version: str) -> str:
    """Return the CycloneDX description of what each lock file brings; the same locks give the same bytes."""
    components = [
        _component(one, "required" if name in SHIPPED else "excluded", name)
        for name, added in locks.items()
        for one in added
    ]
    every = {plain(one.name): one for added in locks.values() for one in added}
    own = f"pkg:pypi/fleetcount@{version}"
    needs: dict[str, set[str]] = {own: set()} | {_purl(one): set() for one in every.values()}
    for one in every.values():
        for parent in one.wanted_by:
            needs[_purl(every[plain(parent)]) if plain(parent) in every else own].add(_purl(one))
    described: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "bom-ref": own, "name": "fleetcount", "version": version, "purl": own}
        },
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": sorted(parts)} for ref, parts in sorted(needs.items())],
    }
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
    described["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}"
    return json.dumps(described, indent=1, sort_keys=True) + "\n"


def _purl(one: Locked) -> str:
    return f"pkg:pypi/{plain(one.name)}@{one.version}"


def _component(one: Locked, scope: str, lock: str) -> dict[str, Any]:
    properties = [{"name": "fleetcount:lock", "value": lock}]
    if one.marker:
        properties.append({"name": "fleetcount:where", "value": one.marker})
    return {
        "type": "library",
        "bom-ref": _purl(one),
        "name": plain(one.name),
        "version": one.version,
        "purl": _purl(one),
        "scope": scope,
        "properties": properties,
    }


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
    print(
        f"lock: {sum(len(added) for added in read_locks().values())} distributions in {len(CHAIN)} files and the SBOM"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
