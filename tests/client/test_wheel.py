"""What a car installs: fleetcount-client alone, small, complete, without a server, and enough to answer."""

import ast
import asyncio
import importlib.metadata
import marshal
import math
import tomllib
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleetcount_client.timer import SystemTimer
from fleetcount_protocol.channel.certificates import CertificateAuthority

from tests.client.deployment import Deployment
from tests.client.shells import grpc_servers
from tests.client.test_process import write_device
from tests.scripts.test_supply import wheel as builder
from tests.support.installed import Installed, install, metadata_of, needed_by, with_builder
from tests.support.processes import pace

ROOT = Path(__file__).resolve().parents[2]
LARGEST = 1_500_000
"""Bytes of our own code in a car."""
LARGEST_INSTALLED = 40_000_000
"""Bytes of all files with the transport of most cars, MQTT, bytecode included."""
CAR_PACKAGES = "/opt/fleetcount/lib/python3.11/site-packages"
CAR, ALL = ROOT / "client" / "pyproject.toml", ROOT / "pyproject.toml"
BUILDS = tomllib.loads(ALL.read_text())["tool"]["hatch"]["build"]

pytestmark = [with_builder, pytest.mark.processes]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wheel: Path = builder.build(ROOT, tmp_path_factory.mktemp("dist"), "client")
    return wheel


@pytest.fixture(scope="module")
def car(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("car") / "venv", built, ["grpc"])


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def module_of(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield every module that code imports, at once or later; what only a type checker reads is none."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from imported(other)
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        yield from imported(node)


def test_it_holds_every_module_of_ours_that_its_modules_import(built: Path) -> None:
    held = {module_of(name): text for name, text in contents(built).items() if name.endswith(".py")}
    ours = {
        module_of(str(path.relative_to(ROOT / one)))
        for one in BUILDS["dev-mode-dirs"]
        for path in (ROOT / one).rglob("*.py")
    }
    wanted = {name for text in held.values() for name in imported(ast.parse(text))} & ours

    assert {"fleetcount_client.device", "fleetcount_protocol.vdaf.prio3", "fleetcount.command.base"} <= wanted
    assert wanted - set(held) == set()


def test_it_is_small_and_without_servers_and_tools(built: Path) -> None:
    files = contents(built)
    size = sum(len(text) for name, text in files.items() if ".dist-info/" not in name)

    print(f"\nour own code in a car: {size} bytes (limit {LARGEST}), the wheel {built.stat().st_size}")
    assert size <= LARGEST
    assert {name.partition("/")[0].partition("-")[0] for name in files} == {
        "fleetcount",
        "fleetcount_client",
        "fleetcount_mechanisms",
        "fleetcount_protocol",
        "fleetcount_transport",
    }
    assert [name for name in files if "/admission/" in name or "/listening" in name or "/logs" in name] == []
    assert [name for name in files if name.endswith((".pyc", ".db", ".key"))] == []


def test_all_that_it_installs_with_mqtt_stays_below_its_limit(built: Path) -> None:
    files = list(contents(built).items())
    for name in needed_by(metadata_of(built).get_all("Requires-Dist", ()), ["mqtt"]):
        held = importlib.metadata.distribution(name)
        paths = [file for file in held.files or () if ".." not in file.parts and file.suffix != ".pyc"]
        files += [(str(path), path.read_binary()) for path in paths]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # What others' code says when it is compiled.
        # Bytecode repeats the path of its source: that of a car, however long the one of this checkout.
        code = [
            marshal.dumps(compile(text, f"{CAR_PACKAGES}/{name}", "exec"))
            for name, text in files
            if name.endswith(".py")
        ]
    size = sum(len(text) for _, text in files) + sum(16 + len(one) for one in code)

    print(f"\ninstalled with MQTT: {size} bytes (limit {LARGEST_INSTALLED}), {sum(map(len, code))} of them bytecode")
    assert size <= LARGEST_INSTALLED


def test_its_requirements_are_those_of_the_whole() -> None:
    car, whole = (tomllib.loads(path.read_text())["project"] for path in (CAR, ALL))
    extras = car["optional-dependencies"]

    assert car["dependencies"] == whole["dependencies"]
    assert car["requires-python"] == whole["requires-python"]
    assert set(extras) == {"grpc", "mqtt", "kuksa"}
    for name, rows in extras.items():
        assert [row.replace("fleetcount-client", "fleetcount") for row in rows] == whole["optional-dependencies"][name]


def test_it_starts_alone_and_says_where_the_other_commands_are(car: Installed, tmp_path: Path) -> None:
    version = tomllib.loads(ALL.read_text())["project"]["version"]

    assert car.run("-c", "import numpy", folder=tmp_path)[0] == 1
    assert car.run("-m", "fleetcount", "--version", folder=tmp_path) == (0, f"fleetcount {version}\n", "")
    commands = car.run("-m", "fleetcount", "--help", folder=tmp_path)[1].partition("Commands:")[2].splitlines()
    assert next(line.split()[0] for line in commands if line.startswith("  ")) == "device"
    code, _, err = car.run("-m", "fleetcount", "demo", folder=tmp_path)
    assert (code, len(err.splitlines())) == (2, 1), err
    assert "'demo' comes with fleetcount, and this is fleetcount-client alone: install fleetcount" in err
    assert list(tmp_path.iterdir()) == []


def test_a_transport_that_is_not_installed_is_named(car: Installed, tmp_path: Path) -> None:
    config = write_device(Deployment(), tmp_path / "d", CertificateAuthority.create("test"))
    text = config.read_text().replace('transport = "grpc"', 'transport = "mqtt"').replace("[grpc]", "[mqtt]")
    config.write_text(text.replace("ca_file", 'broker = "127.0.0.1:1"\nca_file'))

    code, _, err = car.run("-m", "fleetcount", "device", "run", "--config", str(config), folder=tmp_path)

    assert (code, len(err.splitlines())) == (2, 1), err
    assert "fleetcount-client[mqtt]" in err


@pytest.mark.timeout(240)  # The two windows are 16 s, three times that on a loaded machine.
async def test_a_car_with_nothing_else_installed_answers_a_question(car: Installed, tmp_path: Path) -> None:
    world = Deployment(timer=SystemTimer())  # type: ignore[arg-type]
    authority = CertificateAuthority.create("test aggregators")
    async with grpc_servers(world, authority):
        length = math.ceil(8 * pace())
        window = world.ask(int(world.timer.now()) + 1, round_one_s=length, round_two_s=length)
        config = write_device(world, tmp_path / "car", authority)

        process = await asyncio.create_subprocess_exec(
            *(str(car.python.with_name("fleetcount")), "device", "run", "--once", "--config", str(config)),
            cwd=tmp_path,
            env=car.variables(tmp_path),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()

    assert (process.returncode, b"delivered" in out) == (0, True), (out, err)
    [report_id] = world.report_ids(window, 2)
    world.verifies(window, report_id)
