"""Real clients to signed releases, beside Flower's SecAgg+: seconds, CPU of all processes, and none lost or doubled.

Starts aggregators, a broker and client processes of its own on free ports; see `fleetcount_simulator.network.engine`.
Flower runs in the same sitting, in turns with ours, in its simulation engine (`flower_sums.py`): one process for the
server and one a core for the clients, which hand messages over in memory. Ours have certificates, TLS, durable spools
and two servers. Both add up the same vectors, once or twice.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
import peers
from fleetcount_protocol.question.fields import Coin
from fleetcount_simulator.model import AnswerSpace, Case, Epochs, Integers, Mechanism
from fleetcount_simulator.network.engine import NetworkEngine
from fleetcount_simulator.network.run import WindowAsked
from fleetcount_simulator.standing import StandingQuestion, schedule_of
from meter import Below
from numpy.typing import NDArray
from rows import Row, quick, report, smoke

AIM_MANY_S: Final = 120.0
MUST_MIB: Final = 8 * 1024.0
FLOWER_LIMIT_S: Final = 900
"""Many times what a thousand clients need."""
VALUES: Final = 9


@dataclass(frozen=True)
class Fleet:
    """Devices whose values go round, 0 included."""

    devices: int
    epochs: int = 1

    @property
    def question(self) -> AnswerSpace:
        """Nine values."""
        return AnswerSpace(title="nine values", labels=tuple(f"value {value}" for value in range(1, VALUES + 1)))

    def truths(self, epoch: int, start: int, stop: int) -> NDArray[np.uint16]:
        """Device i holds i modulo 10."""
        return (np.arange(start, stop) % (VALUES + 1)).astype(np.uint16)

    def histogram(self, epoch: int) -> Integers:
        """How many hold each value."""
        return np.bincount(self.truths(epoch, 0, self.devices), minlength=VALUES + 1).astype(np.int64)

    def reachable(self, epoch: int, round_number: int, start: int, stop: int) -> None:
        """Everybody always is."""
        return


@dataclass(frozen=True)
class Taken:
    """What one run took, from nothing to the last sum: seconds, CPU seconds and peak memory of all processes."""

    wall_s: float
    cpu_s: float
    mib: float


class Taking:
    """Measures a block of this process and all that descend from it; `took` is there at its end."""

    def __enter__(self) -> "Taking":
        self._below = Below(os.getpid())
        self._below.__enter__()
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *ended: object) -> None:
        wall_s, own_s = time.perf_counter() - self._wall_s, time.process_time() - self._cpu_s
        self._below.__exit__()
        self.took = Taken(wall_s, own_s + self._below.cpu_s, self._below.memory / 2**20)


def ask(devices: int, transport: str, windows: int = 1) -> tuple[list[WindowAsked], Taken]:
    """Ask a fleet a question of one window or more, with new processes; return what came of each, and what it took."""
    mechanism = Mechanism(name="m", kind="sampling", sampling_rate=Fraction(1, 20), noise_epsilon=Fraction(1))
    asking = StandingQuestion(
        schedule=schedule_of(windows, 60, 0), coin=Coin.WINDOW, epsilon=None, delta=Fraction(1, 10**9)
    )
    epochs = Epochs(count=windows, question=asking if windows > 1 else None)
    case = Case(index=0, point={}, population=Fleet(devices, windows), mechanism=mechanism, epochs=epochs)
    with Taking() as taking:
        network = NetworkEngine(transport=transport, progress=_show)
        got = [network.ask(case, at, [0], np.random.SeedSequence(1, spawn_key=(0, at)))[0] for at in range(windows)]
    return got, taking.took


def flower_sums(python: Path, clients: int, sums: int) -> tuple[list[dict[str, Any]], Taken]:
    """Let Flower add up the same vectors; return what it says of each sum, and what it took.

    Raises:
        SystemExit: it failed, or a sum is not that of all clients.
    """
    program = Path(__file__).with_name("flower_sums.py")
    with tempfile.TemporaryDirectory() as home, Taking() as taking:
        quiet = {"HOME": home, "FLWR_HOME": home, "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        done = subprocess.run(
            [str(python), str(program), str(clients), str(sums)],
            env={"PATH": os.environ.get("PATH", ""), **quiet},
            cwd=home,
            capture_output=True,
            text=True,
            timeout=FLOWER_LIMIT_S,
            check=False,
        )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise SystemExit(f"Flower with {clients} clients ended with {done.returncode}: {done.stderr[-500:]}")
    told: list[dict[str, Any]] = json.loads(lines[-1])
    expected = Fleet(clients).histogram(0)[1:].tolist()
    for one in told:
        if one["clients"] != clients or not np.allclose(one["values"], expected, atol=clients / 1000):
            raise SystemExit(f"Flower's sum of {one['clients']} of {clients} clients is {one['values']}")
    return told, taking.took


def _show(stage: str, done: int, total: int) -> None:
    """Show progress on a terminal, in one line that is written over; nothing in a file."""
    if sys.stderr.isatty():
        print(f"\r{stage}: {done:,} of {total:,}      ", end="", file=sys.stderr, flush=True)


def _note(asked: list[WindowAsked]) -> str:
    last = asked[-1]
    seconds = " and ".join(f"{one.stages['asked']:.1f}" for one in asked)
    counted = " and ".join(f"{int(one.account.counted.sum()):,}" for one in asked)
    return (
        f"counted {counted}, lost {sum(one.account.missing for one in asked)}, counted twice"
        f" {sum(one.account.tallies['counted_twice'] for one in asked)}; {last.stages['ready']:.1f} s until all"
        f" processes were there, {seconds} s from the opening of the window to the record"
        f"{f'; MQTT through {last.broker}' if last.broker else ''}"
    )


def beside_flower(clients: int, windows: int, python: Path | None, about: str) -> bool:
    """Report ours and Flower's for so many sums; return whether nobody was lost or counted twice."""
    asked, ours = ask(clients, "grpc", windows)
    theirs: Taken | None = None
    if python is None:
        note = about
    else:
        told, theirs = flower_sums(python, clients, windows)
        note = f"Flower {about}, its sums after {' and '.join(format(one['after_s'], '.1f') for one in told)} s"
    sums = "one sum" if windows == 1 else f"{windows} sums"
    for what, unit, own, peer in (
        ("", "s", ours.wall_s, theirs and theirs.wall_s),
        (", CPU of all processes", "s", ours.cpu_s, theirs and theirs.cpu_s),
        (", memory of all processes", "MiB", ours.mib, theirs and theirs.mib),
    ):
        report(
            Row(
                path=f"network: {clients:,} clients, {VALUES} values, {sums}{what}",
                ours=own,
                unit=unit,
                peer="Flower" if peer else "",
                peer_value=peer,
                ratio=own / peer if peer else None,
                must=1.0 if peer and unit == "s" else None,
                larger_is_better=False,
                note=note if what else f"k = 2; {_note(asked)}. {note}",
            )
        )
    return all(map(_complete, asked))


def many(clients: int) -> bool:
    """Report what many clients take; return whether nobody was lost or counted twice."""
    asked, took = ask(clients, "both")
    name, full = f"network: {clients:,} clients, gRPC and MQTT", clients == 20_000
    report(
        Row(
            path=name,
            ours=took.wall_s,
            unit="s",
            peer="limit" if full else "",
            peer_value=AIM_MANY_S if full else None,
            ratio=took.wall_s / AIM_MANY_S if full else None,
            aim=1.0 if full else None,
            larger_is_better=False,
            note=_note(asked),
        )
    )
    report(Row(path=f"{name}, CPU of all processes", ours=took.cpu_s, unit="s"))
    report(
        Row(
            path=f"{name}, memory of all processes",
            ours=took.mib,
            unit="MiB",
            peer="8 GiB",
            peer_value=MUST_MIB,
            ratio=took.mib / MUST_MIB,
            must=1.0,
            larger_is_better=False,
        )
    )
    return all(map(_complete, asked))


def main() -> int:
    """Run all measurements; exit 1 when a device was lost or counted twice."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", default="30" if smoke() else "200" if quick() else "200,1000", help="N,N,...")
    parser.add_argument("--sums", default="1" if quick() else "1,2", help="N,N,...: windows, or rounds of Flower")
    parser.add_argument("--many", type=int, default=0 if smoke() else 400 if quick() else 20_000, help="0: leave out")
    options = parser.parse_args()
    python, about = (None, "Flower was not run: a smoke run fetches nothing") if smoke() else peers.flower()
    good = True
    for clients in map(int, options.clients.split(",")):
        for windows in map(int, options.sums.split(",")):
            good = beside_flower(clients, windows, python, about) and good
    if options.many:
        good = many(options.many) and good
    return 0 if good else 1


def _complete(asked: WindowAsked) -> bool:
    return asked.record is not None and asked.account.missing == 0 and asked.account.tallies["counted_twice"] == 0


if __name__ == "__main__":
    sys.exit(main())
