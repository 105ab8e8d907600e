"""Set up .venv in the repository: the one step between a fresh clone and `make demo`, `make test` or `make check`.

Runs on the bare python3 of the machine with nothing but the standard library. Never needs root, never writes outside
the repository (but for the cache of the installer), and does nothing when nothing has changed. Installs with uv, which
takes seconds: the machine's, else the locked one that pip puts into .venv/installer. Where neither can be had or uv
fails, pip installs: the same locked files either way. Says first how much there is to fetch, then how far it is; what
was interrupted goes on where it ended.

    python3 scripts/bootstrap.py EXTRA      EXTRA is all (to run it), test (to test it), check (to change it) or nightly
                                            (what tests only compare with, drive or fuzz by: larger than all the rest)

Kept to the syntax of Python 3.6, so that an old interpreter is refused by name and not by a syntax error.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".fleetcount-setup.json"
PIP_LOG = VENV / "setup.log"
OLDEST = (3, 11)
PINNED = ROOT / "constraints.txt"
LOCKS = ROOT / "locks"
INSTALLER = VENV / "installer"
# How pip and uv say that they were given another file than the locked one.
OTHER_FILES = ("DO NOT MATCH THE HASHES", "Hash mismatch")
# The machine's own certificates, as pip takes them (the second name is that of older versions), and no other Python.
UV_ENVIRONMENT = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1", "UV_PYTHON_DOWNLOADS": "never"}
EXTRAS = {"all": (), "test": ("all",), "check": ("all", "test"), "nightly": ("all", "test")}  # and what each contains
PART = VENV / "setup-part.txt"
PARTS = 20  # of about the same size: an installer does not say how far it is, so it is given one after the other
ENDED_BY = (signal.SIGINT, signal.SIGTERM)
SAY_S = 5.0  # between two lines where there is no terminal
GET_PIP = "https://bootstrap.pypa.io/get-pip.py"


class SetupError(Exception):
    """Setting up cannot go on; the message says what the reader can do about it."""


def say(text):
    """Print one line of progress."""
    print("setup: " + text, flush=True)


def check_python():
    """Refuse an interpreter older than 3.11, by its version, and name a newer one if there is one."""
    if sys.version_info >= OLDEST:
        return
    newer = [name for name in ("python3.14", "python3.13", "python3.12", "python3.11") if shutil.which(name)]
    hint = f"run `make PYTHON={newer[0]} ...`" if newer else "install Python 3.11 (Debian 12: python3)"
    raise SetupError(f"{sys.executable} is Python {platform.python_version()}; fleetcount needs 3.11 or newer: {hint}")


def wanted():
    """Return what the stamp must say for this interpreter, this pyproject.toml and these locked versions."""
    files = [ROOT / "pyproject.toml", PINNED, *sorted(LOCKS.glob("*.txt"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return {"project": digest, "python": platform.python_version(), "root": str(ROOT)}


def installed():
    """Return the extras that the environment holds as they are wanted now, by the stamp of the last complete setup."""
    try:
        found = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return []
    if not isinstance(found, dict) or not VENV_PYTHON.exists():
        return []
    extras = found.pop("extras", [])
    return [one for one in extras if one in EXTRAS] if found == wanted() else []


def up_to_date(extra):
    """Whether the environment already holds `extra` or an extra that contains it."""
    return any(extra == one or extra in EXTRAS[one] for one in installed())


class Locked:
    """One distribution of a lock file: its name and version, where it is needed, its size in bytes, and its rows."""

    def __init__(self, rows):
        first = rows.splitlines()[0].partition(" --hash")[0].rstrip(" \\")
        named, _, self.marker = first.partition(" ; ")
        name, _, version = named.partition("==")
        self.pin = f"{plain(name)}=={version}"
        self.rows = rows
        size = re.search(r"^ +# (\d+) bytes", rows, re.MULTILINE)
        self.size = int(size.group(1)) if size else 0


def plain(name):
    """Return a distribution's name in its normal form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed_here(marker):
    """Whether a marker of a lock file (comparisons joined by `and` and `or`) holds on this machine."""
    here = {
        "implementation_name": sys.implementation.name,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "python_full_version": platform.python_version(),
        "sys_platform": sys.platform,
    }

    def holds(comparison):
        name, sign, value = comparison.strip(" ()").split(" ", 2)
        value = value.strip("'\"")
        if name not in here or sign not in ("==", "!=", "<", ">="):
            return True  # The installer knows; here it is only counted.
        if sign in ("==", "!="):
            return (here[name] == value) == (sign == "==")
        ours, theirs = ([int(part) for part in re.findall(r"\d+", one)[:3]] for one in (here[name], value))
        return (ours < theirs) == (sign == "<")

    return any(all(holds(one) for one in way.split(" and ")) for way in marker.split(" or "))


def locked(file):
    """Return the distributions that a lock file and those that it contains have for this machine, in their order."""
    text = file.read_text()
    found = []
    for inner in re.findall(r"^-r (\S+)$", text, re.MULTILINE):
        found += locked(file.parent / inner)
    found += [Locked(rows) for rows in re.findall(r"^[A-Za-z0-9].*(?:\n .*)*", text, re.MULTILINE)]
    return [one for one in found if not one.marker or needed_here(one.marker)]


def torn():
    """Return the pins of what an installer was at when it was interrupted: some of their files may be missing."""
    return {one.pin for one in locked(PART)} if PART.exists() else set()


def held():
    """Return the pins of what the environment holds, whole or torn."""
    places = VENV.glob("lib/python*/site-packages/*.dist-info")
    named = [place.name[: -len(".dist-info")].rpartition("-") for place in places]
    return {f"{plain(name)}=={version}" for name, _, version in named}


def parts_of(missing):
    """Return distributions in about PARTS parts of about the same number of bytes; a larger file is one alone."""
    most = sum(one.size for one in missing) / PARTS
    longest = 2 * len(missing) // PARTS + 1
    parts = []
    taken = 0
    for one in missing:
        if not parts or len(parts[-1]) == longest or taken + one.size > most:
            parts.append([])
            taken = 0
        parts[-1].append(one)
        taken += one.size
    return parts


def megabytes(size):
    """Return bytes in MB, as text."""
    return f"{size / 1e6:.{0 if size >= 10e6 else 1}f}"


class Bar:
    """How far the installer is: one line rewritten on a terminal, elsewhere a line every few seconds."""

    def __init__(self, missing):
        self.count = len(missing)
        self.size = sum(one.size for one in missing)
        self.done = 0
        self.fetched = 0
        self.started = time.time()
        self.said = self.started
        self.width = 0

    def text(self):
        """Return the line."""
        share = self.fetched / self.size if self.size else self.done / max(1, self.count)
        size = f"{megabytes(self.fetched)} of {megabytes(self.size)} MB"
        seconds = time.time() - self.started
        return f"setup: [{'#' * int(20 * share):<20}] {self.done} of {self.count}, {size}, {seconds:.0f} s"

    def show(self):
        """Say how far it is, where it is time to."""
        if sys.stdout.isatty():
            line = self.text()
            print("\r" + line.ljust(self.width), end="", flush=True)
            self.width = len(line)
        elif time.time() - self.said >= SAY_S:
            print(self.text(), flush=True)
            self.said = time.time()

    def add(self, part):
        """Count a part that is installed."""
        self.done += len(part)
        self.fetched += sum(one.size for one in part)
        self.show()

    def end(self):
        """Leave the line on the terminal as it is, and go to the next."""
        if self.width:
            print(flush=True)


def names_other_files(line):
    """Whether an installer says here that a file is not the locked one."""
    return any(words in line for words in OTHER_FILES)


def start(command):
    """Start a command in the repository."""
    return subprocess.Popen(
        [str(part) for part in command],
        cwd=str(ROOT),
        env=dict(os.environ, **UV_ENVIRONMENT),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def communicated(process, tick):
    """Return what a process says until it ends, with a `tick` every second."""
    while True:
        try:
            return process.communicate(timeout=1)[0]
        except subprocess.TimeoutExpired:
            if tick:
                tick()


def run(command, what, tick=None):
    """Run a command quietly, with a `tick` every second; on failure show the end of what it said."""
    VENV.mkdir(exist_ok=True)
    late = []
    with PIP_LOG.open("ab") as log:
        done = None
        # An interruption waits until there is a process that it can end: in the middle of a start it would leave one.
        before = {one: signal.signal(one, lambda number, _: late.append(number)) for one in ENDED_BY}
        try:
            try:
                done = start(command)
            finally:
                for one, handler in before.items():
                    signal.signal(one, handler)
            for one in late:
                os.kill(os.getpid(), one)
            output = communicated(done, tick)
        except KeyboardInterrupt:
            if done:
                done.terminate()
                done.wait()
            raise
        log.write(output)
    if done.returncode != 0:
        lines = output.decode("utf-8", "replace").strip().splitlines()
        tail = "\n    ".join([line for line in lines[:-12] if names_other_files(line)] + lines[-12:])
        raise SetupError(f"{what} failed:\n    {tail}\n  (all of it: {PIP_LOG})")


def works(command):
    """Whether a command runs and succeeds."""
    try:
        return (
            subprocess.call([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
        )
    except OSError:
        return False


def venv_fits():
    """Whether .venv holds a working interpreter of this version, in this place."""
    version = f"import platform, sys; sys.exit(platform.python_version() != {platform.python_version()!r})"
    return works([VENV_PYTHON, "-c", version])


def find_uv():
    """Return the beginning of a uv command, nothing where there is no uv that runs."""
    program = shutil.which("uv")
    ways = ([program] if program else [], [sys.executable, "-m", "uv"])
    return next((way for way in ways if way and works([*way, "--version"])), [])


def fetch_uv():
    """Let pip put the locked uv beside what is installed; return the beginning of its command, nothing without it.

    Raises SetupError for a file that is not the locked one.
    """
    lock, program = LOCKS / "installer.txt", INSTALLER / "bin" / "uv"
    if works([program, "--version"]):
        return [str(program)]
    if not lock.exists() or not works([sys.executable, "-m", "pip", "--version"]):
        return []
    if (VENV.is_symlink() or VENV.is_file()) and not venv_fits():
        remove_old()  # It would go before uv gets to work, and uv with it.
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    say(f"fetching uv, which installs faster than pip, about {megabytes(sum(one.size for one in locked(lock)))} MB")
    try:
        run([*pip, "--require-hashes", "--requirement", lock, "--target", INSTALLER, "--upgrade"], "pip install uv")
    except SetupError as error:
        if names_other_files(str(error)):
            raise
    return [str(program)] if works([program, "--version"]) else []


def make_venv():
    """Create .venv with pip inside, by the first way this machine allows."""
    if VENV.is_symlink() or VENV.exists():
        say("the old .venv does not fit; making it anew")
        remove_old()
    VENV.mkdir()
    if works([sys.executable, "-c", "import ensurepip, venv"]):
        run([sys.executable, "-m", "venv", VENV], "python3 -m venv")
    elif works([sys.executable, "-m", "virtualenv", "--version"]):
        run([sys.executable, "-m", "virtualenv", "--quiet", VENV], "virtualenv")
    elif works([sys.executable, "-c", "import venv"]):
        run([sys.executable, "-m", "venv", "--without-pip", VENV], "python3 -m venv --without-pip")
        install_pip()
    else:
        raise SetupError(
            f"{sys.executable} has neither venv nor virtualenv; install one (Debian, Ubuntu: python3-venv)"
        )


def remove_old(spared=None):
    """Remove an old .venv, whatever it is, but for what is `spared`; a symbolic link is removed, not followed."""
    if VENV.is_symlink() or VENV.is_file():
        VENV.unlink()
        return
    for path in VENV.iterdir() if VENV.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            if path != spared:
                shutil.rmtree(str(path))
        else:
            path.unlink()
    if spared is None:
        VENV.rmdir()


def pip_wheels():
    """Return the pip wheels already on this machine: in pip's own find-links, or where Debian keeps them."""
    places = [*os.environ.get("PIP_FIND_LINKS", "").split(), "/usr/share/python-wheels"]
    return sorted(str(wheel) for place in places if Path(place).is_dir() for wheel in Path(place).glob("pip-*.whl"))


def install_pip():
    """Put pip into a .venv made without it: from the machine's pip, from a wheel on it, or from pip's own site."""
    wheels = pip_wheels()
    if works([sys.executable, "-m", "pip", "--python", VENV_PYTHON, "--version"]):
        say("this Python has no ensurepip; taking pip from the machine's pip")
        run([sys.executable, "-m", "pip", "--python", VENV_PYTHON, "install", "--quiet", "pip"], "pip install pip")
    elif wheels:
        say(f"this Python has no ensurepip; taking pip from {wheels[-1]}")
        program = f"{wheels[-1]}/pip"
        run([VENV_PYTHON, program, "install", "--quiet", "--no-index", wheels[-1]], "installing pip from its wheel")
    else:
        download_pip()


def download_pip():
    """Fetch pip's own installer into .venv and run it there."""
    import urllib.request  # Only this last way needs the network stack.

    say(f"this Python has no pip at all; fetching it from {GET_PIP}")
    program = VENV / "get-pip.py"
    try:
        with urllib.request.urlopen(GET_PIP, timeout=60) as answer:
            program.write_bytes(answer.read())
    except OSError as error:
        raise SetupError(
            f"no ensurepip, no pip, no pip wheel here, and {GET_PIP} cannot be reached ({error}); install the package "
            "that brings pip into virtual environments (Debian, Ubuntu: python3-venv)"
        ) from None
    run([VENV_PYTHON, program, "--quiet"], "pip's installer")


def install_locked(command, extra):
    """Install what `extra` locks, part by part where it has several, and then all of it, which finds nothing to do.

    `command` is an installer's, up to its options. A part is installed without what it depends on: that is locked too.
    """
    every, have, left = locked(LOCKS / f"{extra}.txt"), held(), torn()
    repaired = [one for one in every if one.pin in left]
    missing = [one for one in every if one.pin not in have | left]
    bar = Bar(repaired + missing)
    if bar.count:
        size = megabytes(bar.size)
        say(f"{bar.count} distributions, about {size} MB; fetched is what the cache of the installer does not have")
    parts = parts_of(missing)
    try:
        for part in [repaired] * bool(repaired) + parts:
            PART.write_text("".join(f"{one.rows}\n" for one in part))
            if part is repaired or len(parts) > 1:
                again = ["--force-reinstall"] * (part is repaired)
                run([*command, "--no-deps", *again, "--require-hashes", "--requirement", PART], "installing", bar.show)
                bar.add(part)
        run([*command, "--require-hashes", "--requirement", LOCKS / f"{extra}.txt"], "installing", bar.show)
    finally:
        bar.end()


def install_by_uv(uv, extra):
    """Install with uv and return whether that went: where it did not, pip may know an index that uv does not.

    Raises SetupError for a file that is not the locked one.
    """
    command = [*uv, "pip", "install", "--quiet", "--python", VENV_PYTHON]
    try:
        if not venv_fits():
            remove_old(spared=INSTALLER)
            run([*uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, VENV], "uv venv")
        install_locked(command, extra)
        run([*command, "--no-deps", "--no-build-isolation", "--editable", "."], "uv pip install")
    except SetupError as error:
        if names_other_files(str(error)):
            raise
        say(f"uv cannot install here (why: {PIP_LOG}); taking pip")
        return False
    return True


def install_by_pip(extra):
    """Install with pip; where the locked files cannot be had, say so and take what pyproject.toml allows."""
    if not venv_fits() or not works([VENV_PYTHON, "-m", "pip", "--version"]):
        say(f"making .venv for Python {platform.python_version()}")
        make_venv()
    pip = [VENV_PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    try:
        install_locked(pip, extra)
        run([*pip, "--no-deps", "--no-build-isolation", "--editable", "."], "pip install")
    except SetupError as error:
        if names_other_files(str(error)):
            raise
        say(f"the files of {LOCKS.name}/{extra}.txt cannot be had here; taking UNLOCKED what pyproject.toml allows")
        run([*pip, "--editable", f".[{extra}]"], "pip install")


def install(extra):
    """Install the project and what `extra` needs into .venv, and leave the stamp last."""
    started = time.time()
    stamp = dict(wanted(), extras=sorted({extra, *installed()}))
    say(f"installing fleetcount[{extra}]")
    uv = find_uv() or fetch_uv()
    by_uv = bool(uv) and install_by_uv(uv, extra)
    if not by_uv:
        install_by_pip(extra)
    if PART.exists():
        PART.unlink()
    unfinished = STAMP.with_suffix(".new")
    unfinished.write_text(json.dumps(stamp))
    unfinished.replace(STAMP)
    say(f"done in {time.time() - started:.0f} s{' with uv' if by_uv else ''}")


def install_beside(name):
    """Install the program that locks/NAME.txt is of in an environment of its own, .venv/NAME; return its interpreter.

    Does nothing when nothing has changed. Raises SetupError where it cannot be installed.
    """
    place, lock = VENV / name, LOCKS / f"{name}.txt"
    python, stamp = place / "bin" / "python", place / "complete"
    holds = f"{platform.python_version()} {place} {hashlib.sha256(lock.read_bytes()).hexdigest()}"
    if stamp.exists() and stamp.read_text() == holds and works([python, "-c", ""]):
        return python
    size = megabytes(sum(one.size for one in locked(lock)))
    say(f"installing {name}, which runs beside fleetcount and shares nothing with it, about {size} MB")
    if place.exists():
        shutil.rmtree(str(place))
    uv = find_uv() or fetch_uv()
    if uv:
        run([*uv, "venv", "--quiet", "--python", sys.executable, place], "uv venv")
        install = [*uv, "pip", "install", "--compile-bytecode", "--python", python]
    else:
        run([sys.executable, "-m", "venv", place], "python3 -m venv")
        install = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    run([*install, "--quiet", "--require-hashes", "--requirement", lock], f"installing {name}")
    stamp.write_text(holds)
    return python


def main(arguments):
    """Bring .venv up to date for one extra; return the exit code."""
    extra = arguments[0] if arguments else "all"
    if len(arguments) > 1 or extra not in EXTRAS:
        print(f"setup: extra is {extra!r}; it must be one of {', '.join(EXTRAS)}", file=sys.stderr)
        return 2
    try:
        check_python()
        if not up_to_date(extra):
            install(extra)
    except (SetupError, OSError) as error:
        print(f"setup: {error}", file=sys.stderr)
        return 5
    except KeyboardInterrupt:
        print("setup: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # The installer ends with this program either way.
    sys.exit(main(sys.argv[1:]))
