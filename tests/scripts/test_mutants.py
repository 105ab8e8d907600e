"""Planted bugs are caught by the tests named for them, and the run fails when one is not, or cannot be planted."""

import json
import os
import py_compile
import re
import runpy
import signal
import subprocess
import sys
import time
import tomllib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
from passed import state_of

from tests.support.postgres import reached_by_all

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "mutants"
mutants = SimpleNamespace(**runpy.run_path(str(SCRIPT), run_name="imported"))
SOUND = "def double(number):\n    return 2 * number\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree of one package with one test, beside an empty directory for temporary files."""
    root = tmp_path / "tree"
    (root / "toy" / "src").mkdir(parents=True)
    (root / "toy" / "src" / "toy_package.py").write_text(SOUND)
    (root / "tests").mkdir()
    (root / "tests" / "test_toy.py").write_text(
        "import subprocess, sys\nfrom toy_package import double\n\n\n"
        "def test_two():\n    assert double(1) == 2\n\n\n"
        "def test_zero():\n    assert double(0) == 0\n\n\n"
        "def test_in_another_process():\n"
        "    program = 'import toy_package; print(toy_package.double(1))'\n"
        "    assert subprocess.check_output([sys.executable, '-c', program]) == b'2\\n'\n"
    )
    (tmp_path / "temporary").mkdir()
    return root


def bug(name: str = "tripled", old: str = "2 *", new: str = "3 *", test: str = "::test_two") -> str:
    tests = f'["tests/test_toy.py{test}"]'
    return (
        f'[[bug]]\nname = "{name}"\npromise = "it doubles"\nfile = "toy/src/toy_package.py"\n'
        f'old = "{old}"\nnew = "{new}"\ntests = {tests}\n'
    )


def start(tree: Path, bugs: str, *options: str) -> "subprocess.Popen[str]":
    listed = tree.parent / "bugs.toml"
    listed.write_text(bugs)
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), "--tree", str(tree), "--bugs", str(listed), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(tree.parent / "temporary")},
    )


def run(tree: Path, bugs: str, *options: str) -> tuple[int, str]:
    with start(tree, bugs, *options) as process:
        output, _ = process.communicate(timeout=100)
    assert list((tree.parent / "temporary").iterdir()) == [], "nothing is left behind"
    assert (tree / "toy" / "src" / "toy_package.py").read_text() == SOUND, "the tree is not touched"
    return process.returncode, output


def test_what_passed_on_this_very_tree_is_not_run_again_without_a_bug_but_for_the_quickest_of_a_file(
    tree: Path,
) -> None:
    with (tree / "tests" / "test_toy.py").open("a") as file:
        file.write("\n\ndef test_that_fails():\n    assert False\n")
    (tree / ".gitignore").write_text("out\n__pycache__\n")
    subprocess.run(["git", "init", "--quiet"], cwd=tree, check=True)
    (tree / "out").mkdir()
    ended = [
        {"ends": f"tests/test_toy.py::{name}", "outcome": "passed", "seconds": seconds}
        for name, seconds in (("test_two", 0.1), ("test_zero", 0.2), ("test_that_fails", 0.3))
    ]
    rows = [{"tree": state_of(tree)}, {"begins": "tests/test_toy.py::test_two"}, *ended]
    record = "".join(json.dumps(row) + "\n" for row in rows)
    bugs = bug() + bug("said-to-pass", test="::test_that_fails")

    (tree / "out" / "tests.jsonl").write_text(record)
    known = run(tree, bugs)
    (tree / "out" / "tests.jsonl").write_text(record.replace("0.3}", "0.01}"))
    quickest = run(tree, bugs)
    (tree / "out" / "tests.jsonl").write_text(record)
    (tree / "toy" / "src" / "new.py").write_text("")
    changed = run(tree, bugs)

    assert (known[0], "2 of 2 caught" in known[1]) == (0, True), known[1]
    for code, output in (quickest, changed):
        assert (code, "these tests do not pass WITHOUT a bug" in output) == (1, True), output


CAUGHT = bug() + bug("in-a-child", test="::test_in_another_process")


def test_a_bug_is_printed_with_the_test_that_caught_it_and_one_that_none_caught_fails_the_run(tree: Path) -> None:
    code, output = run(tree, CAUGHT + bug("unseen", test="::test_zero") + bug("broken", new="2 2"))

    assert code == 1
    assert re.search(
        r"^tripled +\| it doubles \| tests/test_toy.py::test_two \| \d+\.\d \| \d+\.\d\d\n", output, re.MULTILINE
    )
    assert "tests/test_toy.py::test_in_another_process" in output, "a child process sees the copy too"
    assert re.search(r"^unseen .*!! SURVIVED", output, re.MULTILINE)
    assert re.search(r"^broken .*!! pytest ended with", output, re.MULTILINE), "no test has caught what does not run"
    assert "2 of 4 caught" in output
    assert output.count("mutants: the dearest, in seconds of CPU: ") == 1


def test_what_was_compiled_of_a_file_is_not_there_while_it_has_a_bug_and_then_is_as_before(
    tree: Path, tmp_path: Path
) -> None:
    source = tree / "toy" / "src" / "toy_package.py"
    compiled = Path(py_compile.compile(str(source)) or "")
    planted = mutants.Bug(name="", file="toy/src/toy_package.py", old="2 *", new="3 *", promise="", tests=())

    copy = mutants.Copy(tree, tmp_path / "copy", libraries=False)
    copied, kept = (copy.root / one.relative_to(tree) for one in (source, compiled))
    with copy.planted(planted):
        assert copied.read_text() == SOUND.replace("2 *", "3 *")
        assert not kept.exists(), "it might be taken for what is compiled of the bug"
        py_compile.compile(str(copied))

    assert (copied.read_text(), copied.stat().st_mtime_ns) == (SOUND, source.stat().st_mtime_ns)
    assert kept.read_bytes() == compiled.read_bytes()


def test_machine_code_that_the_tree_has_kept_is_that_of_its_copy(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numba: Any = import_module("numba.core.caching")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    kept = tmp_path / "kept" / "fleetcount" / "kernel-1"
    for source in (tree / "toy" / "src", tmp_path / "elsewhere"):
        folder = kept / numba._CacheLocator.get_suitable_cache_subpath(str(source / "toy_package.py"))
        folder.mkdir(parents=True)
        (folder / "code.nbc").write_text("code")

    copy = mutants.Copy(tree, tmp_path / "copy", libraries=False)

    source = copy.root / "toy" / "src" / "toy_package.py"
    folder = numba._CacheLocator.get_suitable_cache_subpath(str(source))
    taken = tmp_path / "copy" / "caches" / "numba"
    assert [str(one.relative_to(taken)) for one in taken.rglob("*.nbc")] == [f"fleetcount/kernel-1/{folder}/code.nbc"]


def test_the_dearest_bugs_are_named_first() -> None:
    bugs = [
        mutants.Bug(name=name, file="", old="", new="", promise="", tests=()) for name in ("light", "heavy", "middling")
    ]
    outcomes = [mutants.Outcome(caught_by="a test", why="", seconds=9.0, cpu_s=cpu_s) for cpu_s in (0.2, 5.0, 1.25)]

    assert mutants.dearest(bugs, outcomes).endswith(": heavy 5.00, middling 1.25, light 0.20")


def test_a_run_of_pytest_says_what_it_took_of_cpu(tree: Path, tmp_path: Path) -> None:
    (tree / "tests" / "test_toy.py").write_text(
        "import time\n\n\ndef test_two():\n    begun = time.process_time()\n"
        "    while time.process_time() < begun + 0.3:\n        pass\n"
    )
    asked = {"arguments": ["-q", "tests/test_toy.py"], "output": str(tmp_path / "output"), "timeout_s": 60}

    command = [sys.executable, str(SCRIPT.parent / "forked_pytest.py")]
    said = subprocess.check_output(command, cwd=tree, input=json.dumps(asked) + "\n", text=True, timeout=60)

    ended = json.loads(said.splitlines()[1])
    assert ended["code"] == 0
    assert ended["cpu_s"] >= 0.3


@pytest.mark.nightly  # `make test` plants some, and would fail.
def test_a_run_whose_bugs_are_all_caught_ends_with_zero(tree: Path) -> None:
    code, output = run(tree, CAUGHT)

    assert code == 0
    assert "2 of 2 caught" in output


def test_a_bug_that_cannot_be_planted_fails_the_run(tree: Path) -> None:
    wrong = {
        "occurs 0 times": bug(old="4 *"),
        "occurs 2 times": bug("twice", old="number"),
        "the old text is the new one": bug("same", new="2 *"),
        "no test file": bug("untested", test="x.py"),
    }

    code, output = run(tree, "".join(wrong.values()))

    assert code == 1
    assert [said for said in wrong if said not in output] == []
    code, output = run(tree, bug() + bug())
    assert code == 1
    assert "comes twice" in output


def test_tests_that_fail_without_the_bug_prove_nothing(tree: Path) -> None:
    (tree / "tests" / "test_toy.py").write_text("def test_two():\n    assert False\n")

    code, output = run(tree, bug())

    assert code == 1
    assert "do not pass WITHOUT a bug" in output
    assert "mutants: none was planted" in output


@pytest.mark.nightly
@pytest.mark.parametrize(("hangs", "code"), [("true", 0), ("false", 1)])
def test_a_hang_is_caught_only_where_it_is_declared(tree: Path, hangs: str, code: int) -> None:
    endless = bug(old="return 2 *", new="while True: number =").replace("[[bug]]", f"[[bug]]\nhangs = {hangs}")

    assert run(tree, endless, "--timeout", "15")[0] == code


def test_options_choose_and_an_unknown_name_is_refused(tree: Path) -> None:
    both = bug() + bug("quick-one").replace("[[bug]]", "[[bug]]\nquick = true")

    assert "tripled" not in run(tree, both, "--list", "--quick")[1]
    assert "quick-one" not in run(tree, both, "--list", "--only", "tripled")[1]
    assert len(run(tree, both, "--list", "--package", "toy")[1].splitlines()) == 2
    assert run(tree, both, "--list", "--only", "nobody") == (1, "mutants: no bug 'nobody'\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process_and_no_file(tree: Path, number: signal.Signals) -> None:
    # The test starts a process in a session of its own, as tests of real fleets do, and waits for ever.
    pid_file = tree.parent / "pid"
    (tree / "tests" / "test_toy.py").write_text(
        "import subprocess, sys\nfrom pathlib import Path\n\n\ndef test_two():\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        f"    Path({str(pid_file)!r}).write_text(str(child.pid))\n"
        "    child.wait()\n"
    )
    with start(tree, bug()) as process:
        deadline = time.monotonic() + 60
        while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        process.communicate(timeout=60)

    assert process.returncode == 130
    # Ended, though whoever has adopted it may not have taken note yet.
    status = Path(f"/proc/{pid_file.read_text()}/stat")
    while status.exists() and status.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not status.exists() or status.read_text().split()[2] == "Z"
    assert list((tree.parent / "temporary").iterdir()) == []


def test_every_bug_of_ours_can_be_planted_and_names_tests_of_this_run(request: pytest.FixtureRequest) -> None:
    root = SCRIPT.parent.parent
    bugs = tomllib.loads((root / "scripts" / "mutants.toml").read_text())["bug"]
    texts = {file: (root / file).read_text() for file in {bug["file"] for bug in bugs}}
    named = {test for bug in bugs for test in bug["tests"]}
    ids = {item.nodeid for item in request.session.items}
    functions = {one.partition("[")[0] for one in ids}
    files = {one.partition("::")[0] for one in ids}
    # A run that was asked for single tests has not collected the others. A file whose library is missing skips itself.
    folders = all((root / argument).is_dir() for argument in request.config.args)
    whole = folders and not request.config.option.keyword

    assert [bug["name"] for bug in bugs if texts[bug["file"]].count(bug["old"]) != 1] == []
    assert [test for test in named if not (root / test.partition("::")[0]).exists()] == []
    if whole:
        collected = {test for test in named if test.partition("::")[0] in files}
        assert sorted(collected - ids - functions - files) == []


def test_a_place_below_one_that_lets_nobody_through_is_no_place_for_the_server_of_another_user(tmp_path: Path) -> None:
    within = tmp_path / "private" / "within"
    within.mkdir(parents=True)
    within.chmod(0o755)
    within.parent.chmod(0o700)  # As of the private copies in which bugs are planted.

    assert not reached_by_all(within)
    assert reached_by_all(Path("/"))
