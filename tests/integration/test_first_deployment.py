"""docs/first-deployment.md, played line by line.

Each party has a folder of its own and processes of its own, and nothing is shared but what the page hands over. Where
the tests run as root each party is a user of its own, to whom the folders of all others are closed.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fleetcount_simulator.network.brokers import find_mosquitto
from fleetcount_simulator.network.ports import free_ports

from tests.support.processes import pace, wait_until, without_numba
from tests.support.users import ran_as, under, user_of, why_one_user

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

PAGE = Path(__file__).parents[2] / "docs" / "first-deployment.md"
PARTIES = ("alpha", "beta", "broker", "relay", "ana", "car-17", "car-18", "car-19")
CAPS = {"alpha": 7, "beta": 7, "ana": 5, "relay": 2, "broker": 2, "car-17": 2, "car-18": 2, "car-19": 2}
"""The most commands of `fleetcount` (and of mosquitto) that the page may ask of a party."""
HANDED = re.compile(r"(?P<giver>\S+) -> (?P<takers>[^:]+): (?P<file>\S+)(?: into (?P<place>\S+))?")
SPOKEN = re.compile(r"(?P<who>\S+)\$ (?P<command>.+)")


def page_lines() -> list[str]:
    """Return the lines of the page's blocks, all of which are played."""
    blocks = re.findall(r"^```\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


@dataclass
class Stage:
    """The parties' folders below `root`, what was said so far, and the commands that stay.

    `users` has the user of each party, and is empty where all are one.
    """

    root: Path
    environment: dict[str, str]
    users: dict[str, int] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    staying: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def play(self, line: str) -> None:
        """Do what a line of the page says."""
        if handed := HANDED.fullmatch(line):
            for taker in handed["takers"].split():
                place = self.root / taker / (handed["place"] or "")
                assert place.is_dir(), line
                self.own(taker, Path(shutil.copy(self.root / handed["giver"] / handed["file"], place)))
            return
        spoken = SPOKEN.fullmatch(line)
        assert spoken is not None, line
        if spoken["who"] == "all":
            assert spoken["command"].startswith("export "), line
        elif spoken["command"].endswith(" &"):
            self.begin(spoken["who"], spoken["command"].removesuffix(" &"))
        else:
            self.said[line] = self.run(spoken["who"], spoken["command"], self.answer(line))

    def run(self, who: str, command: str, typed: str = "", *, expect: int = 0) -> str:
        done = subprocess.run(
            self.as_typed(who, command),
            cwd=self.root / who,
            env=self.environment_of(who),
            input=typed,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == expect, (who, command, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def begin(self, who: str, command: str) -> None:
        with (self.root / f"{who}.{len(self.staying)}.log").open("wb") as log:
            self.staying[f"{who}$ {command}"] = subprocess.Popen(
                self.as_typed(who, f"exec {command}"),
                cwd=self.root / who,
                env=self.environment_of(who),
                stdout=log,
                stderr=log,
            )

    def as_typed(self, who: str, command: str) -> list[str]:
        user = self.users.get(who)
        return [*(() if user is None else under(user, self.root, who)), "sh", "-c", command]

    def environment_of(self, who: str) -> dict[str, str]:
        return {**self.environment, "HOME": str(self.root / who)} if self.users else self.environment

    def own(self, who: str, path: Path) -> None:
        """Let a party own a file of its own machine."""
        if (user := self.users.get(who)) is not None:
            os.chown(path, user, user)

    def answer(self, line: str) -> str:
        """Return what a person types: what the other operator reads out, and yes."""
        if joined := re.search(r"operator join (\w+)\.descriptor", line):
            began = f"{joined[1]}$ fleetcount operator new"
            made = next(text for said, text in self.said.items() if said.startswith(began))
            found = re.search(r"^fingerprint: ((?:[0-9a-f]{4} ){7}[0-9a-f]{4})", made, re.MULTILINE)
            assert found is not None, made
            return found[1] + "\n"
        return "y\n" if "operator admit" in line else ""

    def logs(self) -> str:
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in self.root.glob("*.log"))


def addresses() -> dict[str, str]:
    """Return the page's names, on free ports: operators reach each other ten above their devices."""
    free = set(free_ports("127.0.0.1", 40))
    pairs = sorted(port for port in free if port + 10 in free)
    alpha = pairs[0]
    beta = next(port for port in pairs if not {port, port + 10} & {alpha, alpha + 10})
    broker, relay = sorted(free - {alpha, alpha + 10, beta, beta + 10})[:2]
    return {
        "ALPHA": f"127.0.0.1:{alpha}",
        "BETA": f"127.0.0.1:{beta}",
        "BROKER": f"localhost:{broker}",
        "RELAY": f"localhost:{relay}",
        "WINDOW": f"{round(20 * pace())} s",
    }


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    program = find_mosquitto()
    if program is None:
        pytest.skip("mosquitto is not on this machine (Debian: apt install mosquitto): the page was NOT played")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "fleetcount").write_text(f'#!/bin/sh\nexec {sys.executable} -m fleetcount "$@"\n')
    (tools / "fleetcount").chmod(0o755)
    (tools / "mosquitto").symlink_to(program)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    here = Stage(tmp_path, {**os.environ, **without_numba(), **addresses(), "PATH": path})
    if not why_one_user(*several(tmp_path)):
        here.users = {party: user_of(place) for place, party in enumerate(PARTIES)}
        here.environment.pop("TMPDIR", None)
    for party in PARTIES:
        (tmp_path / party).mkdir(mode=0o700)
        here.own(party, tmp_path / party)
    try:
        yield here
    finally:
        for child in here.staying.values():
            child.terminate()
        for child in here.staying.values():
            child.wait(60)


def several(root: Path) -> tuple[Path, dict[str, str]]:
    """Return a folder of the test's with other users' rights, and what they have as environment."""
    root.chmod(0o755)
    return root, {**os.environ, "HOME": str(root)}


def private_files(folder: Path) -> dict[bytes, Path]:
    """Return the private files of a party, by content."""
    return {
        path.read_bytes(): path
        for path in folder.rglob("*")
        if path.is_file() and (path.suffix in {".key", ".seed"} or b"PRIVATE KEY" in path.read_bytes())
    }


def log_of(stage: Stage, begins: str) -> Path:
    """Return what the command that stays and begins so has said."""
    number = next(number for number, line in enumerate(stage.staying) if line.startswith(begins))
    return stage.root / f"{begins.partition('$')[0]}.{number}.log"


def says(stage: Stage, begins: str, word: str) -> Callable[[], bool]:
    return lambda: word in log_of(stage, begins).read_text(errors="replace")


def test_the_page_leads_from_nothing_to_a_published_count(stage: Stage) -> None:
    devices = []
    for line in page_lines():
        if "device run" in line:
            devices.append(line.removesuffix(" &"))
            for server in ("alpha", "beta"):
                wait_until(
                    says(stage, f"{server}$ fleetcount aggregator serve", "window_announced"), "the question is there"
                )
        if "question release" in line:
            answered_by_all(stage, devices)
        stage.play(line)
        for command in stage.staying:
            if "serve" in command or "relay --config" in command:
                wait_until(says(stage, command, '"ready"'), command, 60)

    shown = next(text for said, text in stage.said.items() if "question release" in said)
    published = next(text for said, text in stage.said.items() if "publish" in said)
    assert "95 % interval" in shown
    assert "signed by all 2 aggregators" in shown
    assert "every signature checked" in published
    assert (stage.root / "ana/site/index.html").exists()

    owners = {party: private_files(stage.root / party) for party in PARTIES}
    assert all(owners[party] for party in PARTIES)
    for party, files in owners.items():
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files.values()), party
        for other in set(PARTIES) - {party}:
            assert not files.keys() & owners[other].keys(), (party, other)
    for party, user in stage.users.items():
        assert {path.stat().st_uid for path in ((stage.root / party), *(stage.root / party).rglob("*"))} == {user}
        for other in set(PARTIES) - {party}:
            assert "Permission denied" in stage.run(party, f"ls ../{other}", expect=2), (party, other)


def test_the_parties_of_the_page_are_users_of_their_own_where_the_machine_lets_them(tmp_path: Path) -> None:
    """What the test above plays with; where it cannot, it plays all parties as one user, and this one says so."""
    if why := why_one_user(*several(tmp_path)):
        pytest.skip(f"{why}: the page was played with ONE user for all parties")
    for party in ("alpha", "beta"):
        (tmp_path / party).mkdir(mode=0o700)
        (tmp_path / party / "own").write_text(party)
    environment = {**os.environ, "LC_ALL": "C"}
    for place, party in enumerate(("alpha", "beta")):
        for path in ((tmp_path / party), (tmp_path / party / "own")):
            os.chown(path, user_of(place), user_of(place))

    own, other = (ran_as(user_of(0), tmp_path, ["cat", f"{one}/own"], environment) for one in ("alpha", "beta"))

    assert (own.returncode, own.stdout) == (0, "alpha")
    assert (other.returncode, other.stdout, "Permission denied" in other.stderr) == (1, "", True)


def answered_by_all(stage: Stage, devices: list[str]) -> None:
    for line in devices:
        ended, said = stage.staying[line].wait(300), log_of(stage, line).read_text()
        assert (ended, "delivered" in said) == (0, True), said + stage.logs()


def test_the_page_asks_little_of_everybody_and_is_short() -> None:
    asked = dict.fromkeys(PARTIES, 0)
    for line in page_lines():
        if (spoken := SPOKEN.fullmatch(line)) and spoken["command"].startswith(("fleetcount ", "mosquitto ")):
            asked[spoken["who"]] += 1

    assert all(count <= CAPS[party] for party, count in asked.items()), asked
    assert len(PAGE.read_text(encoding="utf-8").split()) <= 1500
