"""Set up .venv in the repository: the one step between a fresh clone and `make demo`, `make test` or `make check`.

Runs on the bare python3 of the machine with nothing but the standard library. Never needs root, never writes outside
the repository, and does nothing when nothing has changed.

    python3 scripts/bootstrap.py EXTRA      EXTRA is all (to run it), test (to test it) or check (to change it)

Kept to the syntax of Python 3.6, so that an old interpreter is refused by name and not by a syntax error.
"""

import hashlib
import json
import os
import platform
import shutil
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
EXTRAS = ("all", "test", "check")  # each contains the ones before it
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


def wanted(extra):
    """Return what the stamp must say for this interpreter, this pyproject.toml and these pinned versions."""
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + PINNED.read_bytes()).hexdigest()
    return {"project": digest, "python": platform.python_version(), "root": str(ROOT), "extra": extra}


def installed():
    """Return the stamp of the last complete setup, or nothing."""
    try:
        found = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and VENV_PYTHON.exists() else {}


def up_to_date(extra):
    """Whether the environment already holds `extra` or an extra that contains it."""
    have, want = installed(), wanted(extra)
    same = all(have.get(key) == want[key] for key in ("project", "python", "root"))
    return same and have.get("extra") in EXTRAS[EXTRAS.index(extra) :]


def run(command, what):
    """Run a command quietly; on failure show the end of what it said."""
    with PIP_LOG.open("ab") as log:
        done = subprocess.Popen(
            [str(part) for part in command], cwd=str(ROOT), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            output = done.communicate()[0]
        except KeyboardInterrupt:
            done.terminate()
            done.wait()
            raise
        log.write(output)
    if done.returncode != 0:
        tail = "\n    ".join(output.decode("utf-8", "replace").strip().splitlines()[-12:])
        raise SetupError(f"{what} failed:\n    {tail}\n  (all of it: {PIP_LOG})")


def works(command):
    """Whether a command runs and succeeds."""
    try:
        return (
            subprocess.call([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
        )
    except OSError:
        return False


def venv_is_sound():
    """Whether .venv holds a working interpreter of this version, in this place, with pip."""
    version = f"import platform, sys; sys.exit(platform.python_version() != {platform.python_version()!r})"
    return works([VENV_PYTHON, "-c", version]) and works([VENV_PYTHON, "-m", "pip", "--version"])


def make_venv():
    """Create .venv with pip inside, by the first way this machine allows."""
    if VENV.is_symlink() or VENV.exists():
        say("the old .venv does not fit this Python; making it anew")
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


def remove_old():
    """Remove an old .venv, whatever it is; a symbolic link is removed, not followed."""
    if VENV.is_symlink() or not VENV.is_dir():
        VENV.unlink()
    else:
        shutil.rmtree(str(VENV))


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


def install(extra):
    """Install the project and what `extra` needs into .venv, and leave the stamp last."""
    if not venv_is_sound():
        say(f"making .venv for Python {platform.python_version()}")
        make_venv()
    say(f"installing fleetcount[{extra}] (the first time this takes a minute or two)")
    started = time.time()
    pip = [VENV_PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    target = ["--editable", f".[{extra}]"]
    try:
        run([*pip, "--constraint", PINNED, *target], "pip install")
    except SetupError:
        say(f"the versions of {PINNED.name} cannot be had here; taking the newest that pyproject.toml allows")
        run([*pip, *target], "pip install")
    unfinished = STAMP.with_suffix(".new")
    unfinished.write_text(json.dumps(wanted(extra)))
    unfinished.replace(STAMP)
    say(f"done in {time.time() - started:.0f} s")


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
    sys.exit(main(sys.argv[1:]))
