"""The command as the shell sees it: one line on stderr, a documented exit code, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "fleetcount"]

pytestmark = pytest.mark.processes


def run(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False, **settings)  # type: ignore[call-overload,no-any-return] # subprocess's own keywords


def one_error_line(done: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "Missing command"),
        (["nonsense"], "'nonsense'"),
        (["--nonsense"], "'--nonsense'"),
        (["vectors"], "FILE.json"),
        (["vectors", "--nonsense"], "'--nonsense'"),
        (["nonsense\nwith a line"], "nonsense"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(arguments: list[str], named: str) -> None:
    done = run(*arguments)

    assert done.returncode == 2
    assert named in one_error_line(done)


def test_help_names_the_exit_codes_and_every_command_without_importing_them() -> None:
    program = (
        "import sys\nfrom fleetcount.__main__ import run_command\nrun_command(['--help'])\nprint(sorted(sys.modules))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    help_text, _, modules = done.stdout.rpartition("\n[")
    assert "Exit codes: 0 done" in help_text
    assert "vectors" in help_text
    for heavy in ("numpy", "grpc", "rich", "matplotlib", "sqlite3", "aiomqtt", "cryptography", "google.protobuf"):
        assert f"'{heavy}'" not in modules, f"{heavy} is loaded by --help"


def test_a_reader_that_goes_away_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*COMMAND, "--help"], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(writing)

    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize("buffered", [True, False])
def test_a_full_disk_at_stdout_is_the_machines_fault(*, buffered: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    if not buffered:
        environment["PYTHONUNBUFFERED"] = "1"

    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            env=environment,
        )

    assert done.returncode == 5
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "environment", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"COLUMNS": "20"}]
)
def test_locale_width_and_a_name_that_is_not_utf8_make_no_traceback(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [*COMMAND, "vectors", b"\xff\xe9.json", "ä.json"],
        capture_output=True,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )

    assert done.returncode in (1, 2)
    assert b"Traceback" not in done.stderr


def test_grpc_does_nothing_at_forks_which_only_begin_other_programs() -> None:
    program = (
        "import atexit, os\nfrom fleetcount.__main__ import main\n"
        "atexit.register(lambda: print(os.environ['GRPC_ENABLE_FORK_SUPPORT']))\nmain(['--version'])"
    )
    unset = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True, env=unset
    )

    assert done.stdout.splitlines()[-1] == "0"


def test_a_command_that_loads_numpy_has_one_thread_and_leaves_what_an_operator_chose() -> None:
    """OpenBLAS begins one for each core at its import, which spins for a tenth of a second."""
    program = (
        "import os\nfrom fleetcount.__main__ import main\ntry:\n    main(['--version'])\nexcept SystemExit:\n    pass\n"
        "import numpy, scipy.optimize\nprint(len(os.listdir('/proc/self/task')), os.environ['OPENBLAS_NUM_THREADS'])"
    )
    unset = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    said = [
        subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60, env=unset | chosen)
        for chosen in (dict[str, str](), {"OPENBLAS_NUM_THREADS": "2"})
    ]

    assert said[0].splitlines()[-1] == "1 1"
    assert said[1].splitlines()[-1].endswith(" 2")


def test_the_debug_switch_shows_the_traceback() -> None:
    done = run("vectors", env={**os.environ, "FLEETCOUNT_DEBUG": "1"})

    assert "Traceback" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_as_the_readme_says(shell: str) -> None:
    script = run(env=os.environ | {"_FLEETCOUNT_COMPLETE": f"{shell}_source"})
    words = {"COMP_WORDS": "fleetcount pla", "COMP_CWORD": "1", "_FLEETCOUNT_COMPLETE": "bash_complete"}

    asked = run(env=os.environ | words)

    assert "_FLEETCOUNT_COMPLETE" in script.stdout, script.stderr
    assert asked.stdout.split() == ["plain,plan"]


def test_an_interruption_in_the_middle_of_an_import_ends_with_130_and_not_by_the_signal(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text(
        "from fleetcount import __main__ as command\n\n"
        "def interrupted(**_):\n    exec('raise KeyboardInterrupt')\n\n"
        "command.cli.main = interrupted\ncommand.main(['plan'])\n"
    )

    done = subprocess.run(
        [sys.executable, "-m", "interrupted"], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )

    assert (done.returncode, done.stderr) == (130, "fleetcount plan: interrupted\n")


def test_an_interruption_in_the_making_of_an_event_loop_says_nothing_of_the_loop(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text(
        "import asyncio, selectors\n\n"
        "from fleetcount import __main__ as command\n\n"
        "def interrupted(*_):\n    raise KeyboardInterrupt\n\n"
        "async def nothing():\n    pass\n\n"
        "def begins(**_):\n"
        "    selectors.DefaultSelector.register = interrupted\n"
        "    asyncio.run(nothing())\n\n"
        "command.cli.main = begins\ncommand.main(['serve'])\n"
    )

    done = subprocess.run(
        [sys.executable, "-m", "interrupted"], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )

    assert (done.returncode, done.stderr) == (130, "fleetcount serve: interrupted\n")
