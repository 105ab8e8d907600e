"""scripts/bench.py: broken benchmarks are told, and what is kept and written is whole."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import page
import peers
import pytest
from rows import Row, Taken

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "bench.py"


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_script"] = module
    spec.loader.exec_module(module)
    return module


bench = _module()
NAMES = [script.stem for script in bench.every_benchmark()]


def benchmark(directory: Path, program: str) -> Path:
    """Return a benchmark made of a row and these lines."""
    script = directory / "bench_made.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT / 'benchmarks')!r})\n"
        "from rows import Row, report, smoke\n"
        "report(Row(path='before', ours=1.0, unit='s', note='small' if smoke() else 'large'))\n" + program
    )
    return script


@pytest.mark.processes
def test_rows_come_back_under_the_name_of_their_benchmark(tmp_path: Path) -> None:
    ended = bench.run(benchmark(tmp_path, ""), "smoke", tmp_path / "rows")
    [one] = ended.taken
    assert (one.benchmark, one.row.path, one.row.note) == ("made", "before", "small; smoke run")
    assert (ended.name, ended.broke) == ("made", "")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("sys.exit('the disk is full')", "exit code 1: the disk is full"),
        ("raise ValueError('no such grid')", "exit code 1: ValueError: no such grid"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "exit code -9"),
    ],
)
def test_a_benchmark_that_breaks_keeps_its_rows_and_says_why(program: str, why: str, tmp_path: Path) -> None:
    ended = bench.run(benchmark(tmp_path, program), "smoke", tmp_path / "rows")
    assert [one.row.path for one in ended.taken] == ["before", "made: what is left of it"]
    assert ended.taken[-1].row.verdict == "not run"
    assert why in ended.taken[-1].row.note
    assert why in ended.broke


@pytest.mark.processes
def test_a_benchmark_without_rows_is_broken(tmp_path: Path) -> None:
    script = tmp_path / "bench_silent.py"
    script.write_text("print('hello')")
    ended = bench.run(script, "smoke", tmp_path / "rows")
    assert ended.broke == "it gave no row"


@pytest.mark.processes
def test_a_benchmark_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.LIMIT_S, "smoke", 1)
    script = tmp_path / "bench_slow.py"
    script.write_text("import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); signal.pause()")
    ended = bench.run(script, "smoke", tmp_path / "rows")
    assert ended.broke == "it took longer than 1 s and was ended"


@pytest.mark.processes
def test_the_children_of_a_benchmark_end_with_it() -> None:
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        bench.end(process)
    assert gone(child)


def test_an_interruption_in_the_middle_of_a_start_ends_what_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def interrupted(*arguments: Any, **named: Any) -> Any:
        process = popen(*arguments, **named)
        started.append(process.pid)
        signal.raise_signal(signal.SIGINT)  # It is not known yet to whom this one belongs.
        return process

    popen = subprocess.Popen
    monkeypatch.setattr(bench.subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.run(benchmark(tmp_path, "import signal; signal.pause()"), "smoke", tmp_path / "rows")

    assert len(started) == 1
    assert gone(started[0])


def gone(process: int) -> bool:
    """Whether a process ends within a while."""
    for _ in range(100):
        try:
            status = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if status == "Z":
            return True
        time.sleep(0.1)
    os.kill(process, 9)
    return False


@pytest.mark.parametrize(
    ("sizes", "chosen", "name"),
    [
        ("full", False, "bench.json"),
        ("full", True, "bench-chosen.json"),
        ("quick", False, "bench-quick.json"),
        ("smoke", True, "bench-smoke-chosen.json"),
    ],
)
def test_only_a_full_run_of_all_benchmarks_is_kept_as_the_figures(sizes: str, chosen: bool, name: str) -> None:
    assert bench.default_output(sizes, chosen).name == name


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["million"], ["bench_million"]),
        (["bench_million"], ["bench_million"]),
        (["mill"], ["bench_million", "bench_million_postgres"]),
        (["million", "over"], ["bench_million", "bench_takeover"]),
        (["nothing"], []),
    ],
)
def test_a_name_means_its_benchmark_and_a_part_of_names_all_that_hold_it(words: list[str], names: list[str]) -> None:
    assert [one.stem for one in bench.chosen(words)] == names


def test_an_unknown_benchmark_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["teapot"]) == 2
    error = capsys.readouterr().err
    assert "teapot" in error
    assert "kernel" in error


def test_help_says_what_every_benchmark_measures(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--help"])

    told = capsys.readouterr().out
    for one in bench.every_benchmark():
        assert f"  {bench.name_of(one)} " in told
    assert "at most 3 minutes on two quiet cores" in " ".join(told.split())
    assert "window            What a window of a question over a question of one such window costs a device" in told


def kept_run(path: Path, **changes: Any) -> Path:
    """Keep a run of all benchmarks with a row each."""
    taken = [
        Taken(benchmark=bench.name_of(one), row=Row(path=one.stem, ours=2.0, unit="s"), cpu_s=1.0, load=0.1)
        for one in bench.every_benchmark()
    ]
    ended = [bench.Ended(name=one.benchmark, taken=[one], seconds=1.0, cpu_s=1.0, broke="") for one in taken]
    bench.keep(path, bench.machine.facts(ROOT), changes.pop("sizes", "full"), ended)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


@pytest.mark.parametrize("sizes", ["full", "quick"])
def test_the_page_is_written_beside_a_kept_run(sizes: str, tmp_path: Path) -> None:
    assert bench.main(["--write-page", "--output", str(kept_run(tmp_path / "kept.json", sizes=sizes))]) == 0
    text = (tmp_path / "kept.md").read_text()
    assert all(name.replace("_", "\\_") in text for name in NAMES)
    assert f"a {sizes} run" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.json", "kept.md"]


def test_rows_of_a_later_run_of_some_stand_in_place_of_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, later = kept_run(tmp_path / "kept.json"), kept_run(tmp_path / "later.json")
    values = json.loads(later.read_text())
    values["benchmarks"] = [one for one in values["benchmarks"] if one["name"] == "kernel"]
    values["rows"] = [one | {"ours": 3.25} for one in values["rows"] if one["benchmark"] == "kernel"]
    later.write_text(json.dumps(values))

    assert bench.main(["--write-page", "--output", str(kept), "--again", str(later)]) == 0

    text = (tmp_path / "kept.md").read_text()
    assert text.count("3.25 s") == 1
    assert text.count("| 2 s ") == len(NAMES) - 1
    assert "Of it again" in text
    later.write_text(json.dumps(values | {"sizes": "quick"}))
    assert bench.main(["--write-page", "--output", str(kept), "--again", str(later)]) == 2
    assert "is of other sizes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sizes": "smoke"}, "it is a smoke run"),
        ({"benchmarks": [{"name": "kernel"}]}, "it has nothing of"),
        ({"rows": [{"path": "a"}]}, "other names than it should"),
    ],
)
def test_a_run_that_does_not_tell_all_leaves_the_page_alone(
    changes: dict[str, Any], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept.md").write_text("an earlier page")
    assert bench.main(["--write-page", "--output", str(kept_run(tmp_path / "kept.json", **changes))]) == 2
    assert why in capsys.readouterr().err
    assert (tmp_path / "kept.md").read_text() == "an earlier page"


def test_no_kept_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--write-page", "--output", str(tmp_path / "absent.json")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_quick_run_runs_every_benchmark_but_those_that_need_a_long_one_unless_they_are_named() -> None:
    left_out = {one.stem.removeprefix("bench_") for one in bench.every_benchmark()} - {
        bench.name_of(one) for one in bench.chosen([], "quick")
    }

    assert left_out == set(bench.LEFT_OUT)
    assert bench.chosen([], "full") == bench.every_benchmark()
    assert [bench.name_of(one) for one in bench.chosen(["takeover"], "quick")] == ["takeover"]


def test_the_kept_runs_are_whole_and_make_the_page(tmp_path: Path) -> None:
    for path in bench.RESULTS.glob("2026-11-24*.json"):
        shutil.copy(path, tmp_path)
    kept, again = tmp_path / "2026-11-24.json", tmp_path / "2026-11-24-again.json"

    assert bench.main(["--write-page", "--output", str(kept), "--again", str(again)]) == 0
    assert "| intake over gRPC, mutual TLS, durable, receipts | 51,683 /s |" in kept.with_suffix(".md").read_text()


def test_every_row_of_a_full_run_that_a_left_out_benchmark_gives_is_of_that_one_alone() -> None:
    rows = bench.kept_names()
    found = {
        name: [row for row in rows if re.match(rows_begin, row)] for name, (_, rows_begin) in bench.LEFT_OUT.items()
    }

    assert [name for name, of_it in found.items() if not of_it] == []
    every = [row for of_it in found.values() for row in of_it]
    assert sorted(set(every)) == sorted(every)
    assert set(every) < set(rows)


def ended_with(*rows: Row) -> Any:
    """Return a benchmark that gave these rows in a quick run."""
    taken = [Taken(benchmark="made", row=row, cpu_s=1.0, load=0.1) for row in rows]
    return bench.Ended(name="made", taken=taken, seconds=1.0, cpu_s=1.0, broke="")


def test_what_a_quick_run_leaves_out_is_named_with_its_reason_and_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = (
        *("fast", "of 1,000 devices", "a_b", "compiled", "takes long", "at 10", "at 20"),
        "a shard of 1,048,576 reports taken over, 8 ms",
    )
    taken = [Taken(benchmark="full", row=Row(path=row, ours=1.0, unit="s"), cpu_s=1.0, load=0.1) for row in rows]
    nowhere = Taken(benchmark="full", row=Row(path="nowhere", ours=None, unit="s"), cpu_s=1.0, load=0.1)
    ended = ended_with(
        Row(path="fast", ours=1.0, unit="s"),
        Row(path="of 10 devices", ours=1.0, unit="s"),
        Row(path="a_b", ours=1.0, unit="s"),
        Row(path="at 10", ours=1.0, unit="s"),
        Row(path="compiled", ours=None, unit="s", note="not in a quick run: it compiles anew; quick run"),
    )

    bench.say_left_out(page.names_of([*taken, nowhere]), [ended])

    assert capsys.readouterr().out.splitlines() == [
        "bench: of the 8 rows of a full run this one measured 4, 1 of them at the smaller size that its name gives, "
        "and left out 4:",
        "bench: left out, since it compiles anew, 1 row:",
        "bench:     compiled",
        "bench: left out, since its benchmark gave no such row, or says above why it did not, 2 rows:",
        "bench:     takes long",
        "bench:     at 20",
        "bench: left out, since it fills a server with reports: takeover (`make bench ARGS=takeover`), 1 row:",
        "bench:     a shard of 1,048,576 reports taken over, 8 ms",
    ]


def test_rows_without_the_library_beside_them_are_named_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "opendp", None)
    missing, why = peers.opendp()
    note = f"least of 3 batches; {why}; quick run"
    ended = ended_with(Row(path="alone", ours=1.0, unit="s", note=note), Row(path="fast", ours=1.0, unit="s"))

    bench.say_without_peers([ended])

    assert missing is None
    assert capsys.readouterr().out.splitlines() == [
        "bench: OpenDP was not run: it is not installed (`make nightly` installs it); "
        "left out is what should stand beside 1 row:",
        "bench:     alone",
    ]


def made(folder: Path, **programs: str) -> Path:
    """Write benchmarks made of a row and a program each."""
    folder.mkdir()
    for name, program in programs.items():
        benchmark(folder, program).rename(folder / f"bench_{name}.py")
    return folder


@pytest.mark.processes
def test_a_broken_benchmark_of_a_quick_run_is_named_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "BENCHMARKS", made(tmp_path / "made", broken="sys.exit('no disk')", whole=""))

    code = bench.main(["--quick", "--output", str(tmp_path / "kept.json")])

    assert code == 1
    told = capsys.readouterr()
    assert told.err.splitlines()[-1] == "bench: broke: broken"
    assert "[2/2] bench_whole.py" in told.out
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert [bool(one["broke"]) for one in kept["benchmarks"]] == [True, False]


STAYS = """
import subprocess, signal
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
signal.pause()
"""


@pytest.mark.processes
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_ends_its_benchmark_and_says_so_in_one_line(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); import bench; from pathlib import Path\n"
        f"bench.BENCHMARKS = Path({str(made(tmp_path / 'made', stays=STAYS))!r})\n"
        f"sys.exit(bench.command(['--quick', '--output', {str(tmp_path / 'kept.json')!r}]))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = next(int(line) for line in process.stdout if line.strip().isdigit())
        process.send_signal(number)
        _, error = process.communicate()

    assert process.returncode == code
    assert error == "bench: interrupted; nothing is kept\n"
    assert gone(child)
    assert not (tmp_path / "kept.json").exists()


@pytest.mark.processes
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_quick_run_takes_at_most_three_minutes_of_cpu_and_accounts_for_every_row(tmp_path: Path) -> None:
    """On two quiet cores the clock shows about as much: a few benchmarks wait, and a few use both."""
    command = [sys.executable, str(SCRIPT), "--quick", "--output", str(tmp_path / "kept.json")]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert {one["name"] for one in kept["benchmarks"]} | set(bench.LEFT_OUT) == {
        bench.name_of(one) for one in bench.every_benchmark()
    }
    assert sum(one["cpu_s"] for one in kept["benchmarks"]) < 180
    assert "bench: of the " in done.stdout
