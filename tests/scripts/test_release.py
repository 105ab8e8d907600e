"""A release is built alike everywhere, holds what it should and no more, and is signed; the forge runs `.ci/run`."""

import shutil
import subprocess
import sys
import zipfile
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.support.installed import with_builder

ROOT = Path(__file__).resolve().parents[2]


def script() -> ModuleType:
    """Return scripts/release, which is a program without an ending."""
    loader = SourceFileLoader("scripts_release", str(ROOT / "scripts" / "release"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


release = script()
VERSION = release.lock.project_version()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This tree as it is, committed in a repository of its own, under a changelog that names the version."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is no git repository: a release was NOT tried")
    copy = tmp_path_factory.mktemp("release") / "tree"
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    changes = copy / "CHANGELOG.md"
    changes.write_text(changes.read_text().replace("## Unreleased\n", f"## Unreleased\n\n## {VERSION} - 2026-01-31\n"))
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *words], cwd=copy, check=True, capture_output=True)
    return copy


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What a release of this tree consists of; nothing is wrong with it."""
    files: list[Path] = release.built(ROOT, tmp_path_factory.mktemp("built"))
    release.check_contents(ROOT, files, VERSION)
    return files


@pytest.mark.processes
@pytest.mark.nightly  # Seven builds, eight seconds of a core.
@with_builder
def test_a_release_is_built_alike_three_times_checked_listed_and_signed(tree: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed: a release was NOT signed")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    (tree / "scratch.key").write_text("a secret that nobody committed")

    with pytest.raises(release.ReleaseError, match=r"1 files are not committed, the first 'scratch.key'"):
        release.release(tree, tmp_path / "dist", draft=False, ssh=key)
    (tree / "scratch.key").unlink()
    said = release.release(tree, tmp_path / "dist", draft=False, ssh=key)

    names = {str(path.relative_to(tmp_path / "dist")) for path in (tmp_path / "dist").rglob("*") if path.is_file()}
    assert {
        f"fleetcount-{VERSION}.tar.gz",
        f"fleetcount_client-{VERSION}-py3-none-any.whl",
        "locks/sbom.cdx.json",
        "components.md",
    } <= names
    assert "| leaflet | 1.9.4 | BSD-2-Clause | " in (tmp_path / "dist" / "components.md").read_text()
    checked = subprocess.run(
        ["sha256sum", "--check", "SHA256SUMS"], check=False, cwd=tmp_path / "dist", capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout
    assert len(checked.stdout.splitlines()) == len(names) - 2
    assert "SHA256SUMS.sig" in said[-1]
    allowed = tmp_path / "allowed"
    allowed.write_text(f"releases {key.with_suffix('.pub').read_text()}")
    verify = ["ssh-keygen", "-Y", "verify", "-f", str(allowed), "-I", "releases", "-n", release.NAMESPACE]
    verify += ["-s", str(tmp_path / "dist" / "SHA256SUMS.sig")]
    sums = (tmp_path / "dist" / "SHA256SUMS").read_bytes()
    assert subprocess.run(verify, input=sums, capture_output=True, check=False).returncode == 0
    assert subprocess.run(verify, input=sums + b"\n", capture_output=True, check=False).returncode != 0
    with pytest.raises(release.ReleaseError, match="exists"):
        release.release(tree, tmp_path / "dist", draft=False, ssh=key)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("CHANGELOG.md", f"## {VERSION} - 2026-01-31", f"## {VERSION}", "has no section"),
        ("cli/src/fleetcount/__init__.py", f'"{VERSION}"', '"9.9"', r"says 9\.9, pyproject"),
        ("locks/device.txt", "click==", "click==1", "run scripts/lock.py --sbom"),
    ],
)
def test_a_tree_that_does_not_say_the_same_everywhere_is_refused(
    tree: Path, file: str, old: str, new: str, said: str
) -> None:
    before = (tree / file).read_text()
    (tree / file).write_text(before.replace(old, new, 1))

    try:
        with pytest.raises(release.ReleaseError, match=said):
            release.check_tree(tree, VERSION, draft=False)
    finally:
        (tree / file).write_text(before)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fleetcount_client/state.db", "must not leave"),
        ("fleetcount/__pycache__/a.pyc", "must not leave"),
        ("other/__init__.py", "'other', which is no package"),
    ],
)
@with_builder
def test_an_archive_that_holds_too_much_is_refused(built: list[Path], name: str, said: str, tmp_path: Path) -> None:
    spoilt = Path(shutil.copy(built[2], tmp_path))
    with zipfile.ZipFile(spoilt, "a") as archive:
        archive.writestr(name, "")

    with pytest.raises(release.ReleaseError, match=said):
        release.check_contents(ROOT, [*built[:2], spoilt], VERSION)


def test_without_a_key_it_says_so_and_with_a_wrong_one_nothing_is_there(tmp_path: Path) -> None:
    sums = tmp_path / "SHA256SUMS"
    sums.write_text("")

    assert release.sign(sums, None, None).startswith("NOT SIGNED")
    with pytest.raises(release.ReleaseError, match="ssh-keygen"):
        release.sign(sums, tmp_path / "none", None)


def test_the_forge_runs_what_runs_here_and_nothing_else() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    [job] = workflow["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    actions = [step["uses"] for step in job["steps"] if "uses" in step]

    assert commands == [".ci/run"]
    assert (ROOT / commands[0]).stat().st_mode & 0o111
    assert {action.partition("@")[0] for action in actions} == {"actions/checkout", "actions/setup-python"}
    assert workflow["permissions"] == {"contents": "read"}
    assert job["timeout-minutes"] <= 90
    oldest = release.tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(
        ">="
    )
    assert oldest in job["strategy"]["matrix"]["python"]
