"""Run every benchmark, show one table of all rows at the end, and keep them as JSON; or write a kept run as a page.

    scripts/bench.py [WORD ...] [--quick | --smoke] [--output FILE]     those whose name holds a word; all without one
    scripts/bench.py --write-page [--output FILE] [--again FILE]        FILE.md beside FILE.json, a run kept before; of
                                                                        some of it rows of a later run of some

Each benchmark runs ours and the peer in one process; this adds the machine and its load. A figure never decides the
exit code: 1 means that a benchmark broke, 2 that the command or the file is wrong, 130 and 143 that Ctrl-C or SIGTERM
ended the run, and with it the benchmark that ran; nothing is kept then.
"""

import argparse
import ast
import contextlib
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
BENCHMARKS: Final = ROOT / "benchmarks"
RESULTS: Final = BENCHMARKS / "results"
"""The runs that docs/performance.md tells of, as they were kept."""
sys.path.insert(0, str(BENCHMARKS))

import machine  # noqa: E402 - beside the benchmarks
import page  # noqa: E402
import peers  # noqa: E402
import table  # noqa: E402
from rows import NOT_QUICK, ROWS_VARIABLE, SIZES_VARIABLE, Row, Taken  # noqa: E402

LIMIT_S: Final = {"full": 3600, "quick": 600, "smoke": 600}
"""Seconds after which a benchmark is taken to hang and is ended: many times what it needs."""
GRACE_S: Final = 15
LEFT_OUT: Final = {
    "attack_load": ("every stage is a flood that lasts", r"attack load: "),
    "lifecycle": (
        "it waits beside ten thousand ended windows",
        r"(start|memory) with |a core, idle|longest stall|peak memory of the benchmark|.* ended window, retired",
    ),
    "million": ("its sums are those of a fleet", r"two aggregators, [\d,]+ devices, L = \d+: "),
    "million_postgres": ("it is that of a fleet again, over PostgreSQL", r"two aggregators, .* PostgreSQL: "),
    "network": ("it starts a fleet of clients", r"network: "),
    "question": ("it watches aggregators that wait", r"aggregator: .* open questions, idle"),
    "takeover": ("it fills a server with reports", r"a shard of .* taken over|lanes of .* reports|SIG"),
    "workers": (
        "it starts the processes of an aggregator over PostgreSQL",
        r".* (leased|remote) worker|of it: reading",
    ),
}
"""What a quick run leaves out unless it is named: why its figures need a long run, and how names of its rows begin."""
SIZES_TOLD: Final = {
    "full": "a full run",
    "quick": "a quick run: fewer repetitions and smaller sizes, so the figures are rougher and some verdicts unfair",
    "smoke": "a smoke run: the smallest sizes, which say nothing about speed",
}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How one benchmark ended: its rows, the seconds, the CPU of all its processes, and why it broke, if it did."""

    name: str
    taken: list[Taken]
    seconds: float
    cpu_s: float
    broke: str

    def to_json(self) -> dict[str, Any]:
        """Return what the file keeps beside the rows."""
        return {
            "name": self.name,
            "seconds": round(self.seconds, 1),
            "cpu_s": round(self.cpu_s, 1),
            "broke": self.broke,
        }


_INTERRUPTIONS: Final = (signal.SIGINT, signal.SIGTERM)


class LastWords:
    """Passes on what a program says on its standard error, unless it is `silent`, and remembers the last line."""

    def __init__(self) -> None:
        self.line = ""
        self.silent = False
        self._thread: threading.Thread | None = None

    def read(self, stream: IO[str]) -> None:
        """Begin to pass on what comes."""
        self._thread = threading.Thread(target=self._pass_on, args=(stream,), daemon=True)
        self._thread.start()

    def _pass_on(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                if not self.silent:
                    sys.stderr.write(line)
                    sys.stderr.flush()
                self.line = line.strip() or self.line

    def end(self) -> str:
        """Return the last line; a child that outlives the program may keep its standard error open, so do not wait."""
        if self._thread is not None:
            self._thread.join(1)
        return self.line


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Let an interruption wait for the end of the block: one in the middle of a start would lose what was started."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda got, _: came.append(got)) for number in _INTERRUPTIONS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came[:1]:
        signal.raise_signal(number)


def name_of(script: Path) -> str:
    """Return a benchmark's name: bench_store.py is "store"."""
    return script.stem.removeprefix("bench_")


def subject(script: Path) -> str:
    """Return what a benchmark measures: the first paragraph of its text, which is read and not run."""
    told = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    return " ".join(told.partition("\n\n")[0].split())


def run(script: Path, sizes: str, collected: Path) -> Ended:
    """Run one benchmark to its end; a row that says so stands for what it could not measure."""
    started, cpu = time.perf_counter(), _cpu_of_children()
    environment = {**os.environ, SIZES_VARIABLE: sizes, ROWS_VARIABLE: str(collected)}
    # Where it is set every process compiles all it imports, and starts are three times as long.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process: subprocess.Popen[str] | None = None
    words = LastWords()
    try:
        with held_back():
            process = subprocess.Popen(
                [sys.executable, str(script)],
                cwd=ROOT,
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            words.read(process.stderr or io.StringIO())
        broke = _wait(process, LIMIT_S[sizes])
    except BaseException:
        words.silent = True  # Where it was interrupted helps nobody.
        if process is not None:
            end(process)
        raise
    last_words = words.end()
    if broke and last_words:
        broke = f"{broke}: {last_words}"
    taken = _rows_of(name_of(script), collected)
    if broke or not taken:
        broke = broke or "it gave no row"
        row = Row(path=f"{name_of(script)}: what is left of it", ours=None, unit="", note=broke)
        taken.append(Taken(benchmark=name_of(script), row=row, cpu_s=0.0, load=round(os.getloadavg()[0], 2)))
    seconds = time.perf_counter() - started
    return Ended(name=name_of(script), taken=taken, seconds=seconds, cpu_s=_cpu_of_children() - cpu, broke=broke)


def _wait(process: "subprocess.Popen[str]", limit_s: float) -> str:
    """Wait for a benchmark; return why it broke, or nothing."""
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        end(process)
        return f"it took longer than {limit_s:.0f} s and was ended"
    return f"it ended with exit code {code}" if code else ""


def end(process: "subprocess.Popen[str]") -> None:
    """End a benchmark and its children, which are its group: as Ctrl-C does, and by force what is left of it.

    Who presses Ctrl-C again does not wait for it: the force comes at once.
    """
    try:
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGINT)
            process.wait(GRACE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _rows_of(benchmark: str, collected: Path) -> list[Taken]:
    """Return the rows that a benchmark left, under its name."""
    lines = collected.read_text(encoding="utf-8").splitlines() if collected.exists() else []
    return [Taken.from_json(json.loads(line) | {"benchmark": benchmark}) for line in lines]


def run_all(scripts: Sequence[Path], sizes: str) -> list[Ended]:
    """Run the benchmarks one after the other, and say which one and how far."""
    ended: list[Ended] = []
    with tempfile.TemporaryDirectory() as directory:
        for place, script in enumerate(scripts, 1):
            print(f"\n[{place}/{len(scripts)}] {script.name}, load {os.getloadavg()[0]:.2f}", flush=True)
            ended.append(run(script, sizes, Path(directory) / f"{name_of(script)}.jsonl"))
            print(f"    {ended[-1].seconds:.1f} s, {ended[-1].cpu_s:.1f} s of CPU{_because(ended[-1])}", flush=True)
    return ended


def _because(one: Ended) -> str:
    return f"; BROKE: {one.broke}" if one.broke else ""


def show(ended: Sequence[Ended], about: str) -> None:
    """Print the one table."""
    taken = [row for one in ended for row in one.taken]
    print(f"\n{about}\n\n{table.text_table(taken)}\n\n{len(taken)} rows: {table.verdicts(taken)}", flush=True)


def say_left_out(full: Sequence[str], ended: Sequence[Ended]) -> None:
    """Print which rows of a full run a quick run did not measure, below the reason of each."""
    taken = [row for one in ended for row in one.taken]
    rows = page.measured(full, taken)
    resized = sum(bool(measured) and measured != row for row, measured in rows.items())
    reasons = left_out_rows([row for row, measured in rows.items() if not measured], taken)
    missing = sum(len(names) for names in reasons.values())
    whose = "its name gives" if resized == 1 else "their names give"
    print(
        f"bench: of the {len(rows)} rows of a full run this one measured {len(rows) - missing}, {resized} of "
        f"them at the smaller size that {whose}, and left out {missing}:"
    )
    for why, names in reasons.items():
        print(f"bench: left out, since {why}, {_rows(len(names))}:")
        print("".join(f"bench:     {name}\n" for name in names), end="")


def left_out_rows(rows: Sequence[str], taken: Sequence[Taken]) -> dict[str, list[str]]:
    """Return rows of a full run that were not measured, by the reason: that of the row or of its benchmark."""
    notes = {one.row.path: one.row.note.removeprefix(NOT_QUICK).removesuffix("; quick run") for one in taken}
    found: dict[str, list[str]] = {}
    for row in rows:
        for name, (why, beginning) in LEFT_OUT.items():
            if re.match(beginning, row):
                reason = f"{why}: {name} (`make bench ARGS={name}`)"
                break
        else:
            reason = notes.get(row) or "its benchmark gave no such row, or says above why it did not"
        found.setdefault(reason, []).append(row)
    return found


def say_without_peers(ended: Sequence[Ended]) -> None:
    """Print which rows stand without the library beside them, since `make test` does not install it."""
    alone: dict[str, list[str]] = {}
    for one in (row.row for each in ended for row in each.taken):
        for part in one.note.split("; "):
            if part.endswith(peers.NOT_INSTALLED):
                alone.setdefault(part, []).append(one.path)
    for why, paths in alone.items():
        print(f"bench: {why}; left out is what should stand beside {_rows(len(paths))}:")
        print("".join(f"bench:     {path}\n" for path in paths), end="")


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def keep(path: Path, found: dict[str, Any], sizes: str, ended: Sequence[Ended]) -> None:
    """Write the run as JSON, whole or not at all."""
    values = {
        "machine": found,
        "sizes": sizes,
        "seconds": round(sum(one.seconds for one in ended), 1),
        "benchmarks": [one.to_json() for one in ended],
        "rows": [row.to_json() for one in ended for row in one.taken],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, json.dumps(values, indent=2) + "\n")


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


_TABLES_OF_THEIR_OWN: Final = {"hostile"}
"""Benchmarks whose rows stand in a table of docs/performance.md that is written by hand."""


def write_page(source: Path, again: Path | None = None) -> int:
    """Write a run that was kept as a page beside it; a run of some benchmarks only is refused.

    `again`: a later run of some, on the same machine, whose rows stand in place of theirs.
    """
    target = source.with_suffix(".md")
    try:
        values = json.loads(source.read_text(encoding="utf-8"))
        about, rows = f"{_about(values)}.", _kept_rows(values)
        if again is not None:
            later = json.loads(again.read_text(encoding="utf-8"))
            if later["sizes"] != values["sizes"] or later["machine"]["system"] != values["machine"]["system"]:
                raise ValueError(f"{again} is of other sizes or of another machine")
            rows |= _kept_rows(later)
            about += f" Of it again, {_about(later)}: {', '.join(_kept_rows(later))}."
        taken = [one for kept in rows.values() for one in kept]
        missing = {name_of(one) for one in every_benchmark()} - rows.keys() - _TABLES_OF_THEIR_OWN
        if missing:
            raise ValueError(f"it has nothing of {', '.join(sorted(missing))}")
        if values["sizes"] == "smoke":
            raise ValueError("it is a smoke run")
    except (OSError, ValueError, KeyError) as error:
        print(f"bench: {source} makes no page: {error}", file=sys.stderr)
        return 2
    _replace(target, page.page_of(taken, about))
    print(f"bench: {target} written: {len(taken)} rows, {table.verdicts(taken)}")
    return 0


def kept_names() -> list[str]:
    """Return the names of all rows of the runs in `RESULTS` that are of this source's benchmarks, each once."""
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    return page.names_of(one for values in kept for rows in _kept_rows(values).values() for one in rows)


def _kept_rows(values: dict[str, Any]) -> dict[str, list[Taken]]:
    """Return the rows of a kept run by their benchmark, in its order."""
    taken = [Taken.from_json(row) for row in values["rows"]]
    return {one["name"]: [row for row in taken if row.benchmark == one["name"]] for one in values["benchmarks"]}


def _about(values: dict[str, Any]) -> str:
    return f"{machine.describe(values['machine'])}; {SIZES_TOLD[values['sizes']]}, {values['seconds']:.0f} s"


def every_benchmark() -> list[Path]:
    """Return the benchmarks, sorted by name."""
    return sorted(BENCHMARKS.glob("bench_*.py"))


def chosen(words: Sequence[str], sizes: str = "full") -> list[Path]:
    """Return the benchmarks that are meant, by words: the one of a word's name, or all whose names hold it.

    Without words all; but in a quick run those of `LEFT_OUT` are not meant.
    """
    every = every_benchmark()
    found = set[Path]() if words else {one for one in every if sizes != "quick" or name_of(one) not in LEFT_OUT}
    for word in words:
        exact = [one for one in every if word in (one.stem, name_of(one))]
        found.update(exact or [one for one in every if word in one.stem])
    return [one for one in every if one in found]


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options; wrong ones end the program with 2."""
    listed = "\n".join(f"  {name_of(one):<18}{subject(one)}" for one in every_benchmark())
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"benchmarks:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="run the benchmark of this name, or all that hold it")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--quick",
        action="store_const",
        dest="sizes",
        const="quick",
        help="smaller sizes: all of it takes at most 3 minutes on two quiet cores, without "
        f"{', '.join(list(LEFT_OUT)[:-1])} and {list(LEFT_OUT)[-1]} unless they are named, and ends with the rows of "
        "a full run that it left out, and why",
    )
    how.add_argument("--smoke", action="store_const", dest="sizes", const="smoke", help="only whether they run")
    how.add_argument("--write-page", action="store_true", help="write a kept run as a page beside its file")
    parser.add_argument("--output", type=Path, help="the JSON file (default out/bench.json or one named after the run)")
    parser.add_argument("--again", type=Path, help="a later run of some benchmarks, for --write-page")
    parser.set_defaults(sizes="full")
    options = parser.parse_args(arguments)
    if options.write_page and options.words:
        parser.error("--write-page takes no words: the page tells of a run of all benchmarks")
    if options.again and not options.write_page:
        parser.error("--again is of --write-page")
    return options


def default_output(sizes: str, chosen: bool) -> Path:
    """Return where a run is kept: only one of all benchmarks in full is out/bench.json."""
    parts = ["bench", *([] if sizes == "full" else [sizes]), *(["chosen"] if chosen else [])]
    return ROOT / "out" / f"{'-'.join(parts)}.json"


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; exit 1 if a benchmark broke, 2 if none is meant."""
    options = read_arguments(arguments)
    output = options.output or default_output(options.sizes, bool(options.words))
    if options.write_page:
        return write_page(output, options.again)
    scripts = chosen(options.words, options.sizes)
    if not scripts:
        names = ", ".join(name_of(one) for one in every_benchmark())
        print(f"bench: no benchmark is named {' or '.join(options.words)}; there are {names}", file=sys.stderr)
        return 2
    found = machine.facts(ROOT)
    ended = run_all(scripts, options.sizes)
    keep(output, found, options.sizes, ended)
    seconds = sum(one.seconds for one in ended)
    show(ended, _about({"machine": found, "sizes": options.sizes, "seconds": seconds}))
    if options.sizes == "quick" and not options.words:
        say_left_out(kept_names(), ended)
    if options.sizes == "quick":
        say_without_peers(ended)
    print(f"bench: kept in {output}")
    broke = [one.name for one in ended if one.broke]
    if broke:
        print(f"bench: broke: {', '.join(broke)}", file=sys.stderr)
    return 1 if broke else 0


def command(arguments: Sequence[str]) -> int:
    """Do the same as a program: Ctrl-C and SIGTERM end it, and the benchmark that runs, with one line."""
    # Also where a shell that started this in the background had Ctrl-C ignored: the benchmarks inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        return main(arguments)
    except (KeyboardInterrupt, Terminated) as interruption:
        print("bench: interrupted; nothing is kept", file=sys.stderr)
        return 128 + (signal.SIGTERM if isinstance(interruption, Terminated) else signal.SIGINT)


class Terminated(BaseException):
    """SIGTERM came."""


def _terminated(*_: object) -> None:
    raise Terminated


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
