"""Every file of deploy/ is one that works: read by the program it is for where this machine has it, and checked here.

What they name exists, fits together and is what the command takes. mosquitto's files are run by
tests/integration/test_broker_rules.py, the rules of monitoring/ by tests/scripts/test_alerts.py.
"""

import base64
import dataclasses
import fnmatch
import re
import shutil
import stat
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from fleetcount.__main__ import run_command
from fleetcount.keys.describing import fingerprint_of
from fleetcount_aggregator.config import load_config
from fleetcount_aggregator.host.role import ALL_ROLES, Role, read_roles
from fleetcount_relay.config import load_relay_config

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
LOADERS: Mapping[str, Any] = {"aggregator": load_config, "relay": lambda path, _: load_relay_config(path)}
PROGRAM = "/opt/fleetcount/.venv/bin/fleetcount"


def accepted(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> bool:
    """Return whether the command takes these arguments, all but the configuration, which is not there."""
    at = arguments.index("--config") + 1
    absent = "/absent/" + Path(arguments[at]).name
    code = run_command([*arguments[:at], absent, *arguments[at + 1 :]])
    return code == 2 and absent in capsys.readouterr().err


@pytest.mark.processes
def test_every_file_is_looked_at_by_a_test() -> None:
    looked_at = {
        *UNITS,
        *(
            DEPLOY / name
            for name in (
                "Dockerfile",
                "compose.yaml",
                "compose-operator.yaml",
                "compose-several.yaml",
                "mosquitto.acl",
                "mosquitto.conf",
            )
        ),
        *(DEPLOY / "monitoring" / name for name in ("alerts.yml", "alerts_test.yml", "grafana.json", "prometheus.yml")),
        *(DEPLOY / "sample" / f"{name}.toml" for name in ("aggregator", "device", "relay")),
        *(path for path in (DEPLOY / "kustomize").rglob("*.*") if path.suffix in {".toml", ".yaml"}),
    }
    listed = subprocess.run(["git", "ls-files", "deploy"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no checkout: whether every file of deploy/ has its test was NOT looked at")

    assert {ROOT / name for name in listed.stdout.split()} == looked_at


# systemd.


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_what_the_command_takes(unit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(rf"^Exec(?:Start|StartPre)=-?{PROGRAM} (.+)$", unit.read_text(), re.MULTILINE)

    assert commands
    assert [command for command in commands if not accepted(command.split(), capsys)] == []


CONFINED = {
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "PrivateUsers": "yes",
    "PrivateDevices": "yes",
    "RestrictNamespaces": "yes",
    "SystemCallArchitectures": "native",
    "LimitCORE": "0",
    "MemorySwapMax": "0",
}
LARGEST_EXPOSURE = 2.0


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_is_confined_keeps_secrets_off_the_disk_and_waits_for_the_clock(unit: Path) -> None:
    rows = [line.partition("=")[::2] for line in unit.read_text().splitlines() if not line.startswith("#")]
    found = dict(rows)

    assert {name: found.get(name) for name in CONFINED} == CONFINED
    assert {"@system-service", "~@privileged @resources"} == {
        value for name, value in rows if name == "SystemCallFilter"
    }
    assert "time-sync.target" in found["Wants"].split()
    assert "time-sync.target" in found["After"].split()
    # Numba writes code and runs it, and keeps it between starts.
    assert "MemoryDenyWriteExecute" not in found
    assert (" aggregator serve " not in found["ExecStart"]) or found["CacheDirectory"] == "fleetcount"
    program = shutil.which("systemd-analyze")
    if program is None:
        return
    said = subprocess.run(
        [program, "security", "--offline=true", "--no-pager", str(unit)], capture_output=True, text=True, check=False
    )
    if level := re.search(r"Overall exposure level for \S+: ([0-9.]+)", said.stdout):  # Since systemd 250.
        assert float(level[1]) <= LARGEST_EXPOSURE, said.stdout


def test_no_unit_starts_again_what_a_newer_process_has_ended() -> None:
    servers = [unit for unit in UNITS if " aggregator serve " in unit.read_text()]

    assert len(servers) == 2
    for unit in servers:
        assert re.search(r"^RestartPreventExitStatus=2 3$", unit.read_text(), re.MULTILINE), unit.name


@pytest.mark.processes
def test_systemd_understands_every_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not on this machine (Debian: apt install systemd): units NOT verified")
    for unit in UNITS:  # Where the program is, is the operator's: here it must only be one.
        (tmp_path / unit.name).write_text(unit.read_text().replace(PROGRAM, "/bin/true"))

    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / unit.name) for unit in UNITS)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    said = [line for line in ran.stderr.splitlines() if any(unit.name in line for unit in UNITS)]
    assert said == []


# The image.


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", " ", (DEPLOY / "Dockerfile").read_text())
    rows = [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest.strip()) for name, rest in rows]


def reaches_the_builder(path: str) -> bool:
    """Return whether .dockerignore lets a file through: the last pattern that matches it, or a folder of it, says."""
    verdict = True
    parents = [path, *(str(one) for one in Path(path).parents if str(one) != ".")]
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!").removeprefix("**/")
            names = [Path(one).name for one in parents] if "**/" in line else parents
            if any(fnmatch.fnmatchcase(name, pattern) for name in names):
                verdict = line.startswith("!")
    return verdict


def test_the_image_is_made_of_every_package_and_of_locked_distributions_alone() -> None:
    copied = [rest.split()[:-1] for name, rest in instructions() if name == "COPY" and not rest.startswith("--from")]
    sources = {source for row in copied for source in row}
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]

    assert {package.split("/")[0] for package in packages["packages"]} <= sources
    assert [source for source in sources if not (ROOT / source).exists()] == []
    for source in sources:
        files = [ROOT / source] if (ROOT / source).is_file() else list((ROOT / source).rglob("*"))
        assert any(reaches_the_builder(str(one.relative_to(ROOT))) for one in files), source
    installs = [rest for name, rest in instructions() if name == "RUN" and "pip install" in rest]
    assert all("--require-hashes -r locks/aggregator.txt" in rest or "--no-index ." in rest for rest in installs)
    assert len(installs) == 2
    locked = (ROOT / "locks" / "aggregator.txt").read_text()
    assert all(f"\n{name}==" in locked for name in ("numba", "psycopg", "prometheus-client"))


@pytest.mark.parametrize(
    ("path", "reaches"),
    [
        ("relay/src/fleetcount_relay/app.py", True),
        ("locks/build.txt", True),
        ("deploy/deployment/alpha/keys/signing.key", False),
        ("relay/src/relay.key", False),
        (".venv/bin/python", False),
        ("tests/conftest.py", False),
        (".git/config", False),
    ],
)
def test_no_key_and_nothing_needless_reaches_the_builder(path: str, reaches: bool) -> None:
    assert reaches_the_builder(path) is reaches


def test_the_image_says_whether_it_lives_and_runs_as_nobody_in_particular(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = dict(instructions())
    check = re.search(r"CMD (\[.*\])", rows["HEALTHCHECK"])
    assert check is not None
    command = yaml.safe_load(check[1])

    assert command[0] == yaml.safe_load(rows["ENTRYPOINT"])[0] == "fleetcount"
    assert accepted(command[1:], capsys)
    assert accepted(yaml.safe_load(rows["CMD"]), capsys)
    assert rows["USER"] == "fleetcount"
    assert "/var/cache/fleetcount" in rows["VOLUME"]


# Compose.


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first lines of compose.yaml make, at ./deployment of the directory that is returned."""
    here = tmp_path_factory.mktemp("compose")
    [line] = re.findall(r"^#   fleetcount (keys init .*)$", (DEPLOY / "compose.yaml").read_text(), re.MULTILINE)
    arguments = line.replace("deploy/deployment", str(here / "deployment")).split()
    assert run_command(arguments) == 0
    password = here / "deployment" / "alpha" / "keys" / "postgresql.password"
    password.write_text("secret\n")
    password.chmod(0o600)
    for shipped in ("mosquitto.conf", "mosquitto.acl", "monitoring"):
        (here / shipped).symlink_to(DEPLOY / shipped)
    return here


def mounts(service: Mapping[str, Any], here: Path) -> dict[str, Path]:
    """Return what a container sees of this directory: where, and which file or directory it is."""
    rows = [row.split(":") for row in service.get("volumes", ()) if row.startswith("./")]
    return {row[1]: here / row[0] for row in rows}


def paths(value: Any) -> Iterator[Path]:
    """Yield every path of a configuration."""
    if isinstance(value, Path):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from paths(one)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from paths(getattr(value, field.name))


def test_compose_mounts_what_keys_init_makes_and_every_configuration_fits(
    compose: dict[str, Any], deployment: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ours = {name: one for name, one in compose["services"].items() if one["image"] == "fleetcount"}
    assert set(ours) == {"alpha", "beta", "relay"}
    for name, service in compose["services"].items():
        assert [str(one) for one in mounts(service, deployment).values() if not one.exists()] == [], name
    for service in ours.values():
        command = service["command"]
        assert accepted(command, capsys)
        assert accepted(service["healthcheck"]["test"][2:], capsys)
        # As the container sees it: every path below /deployment is one that is mounted, and is there.
        seen = mounts(service, deployment)
        inside = Path(command[command.index("--config") + 1])
        root = tmp_path / service["command"][-1].split("/")[2]
        for place, source in seen.items():
            target = root / place.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)
        environment = {
            key: value.replace("/deployment", f"{root}/deployment")
            for key, value in service.get("environment", {}).items()
        }
        config = LOADERS[command[0]](root / str(inside).lstrip("/"), environment)
        assert [str(path) for path in paths(config) if not path.exists()] == []
        assert config.metrics is not None


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first lines of compose-operator.yaml make, at ./operator of the directory that is returned."""
    here = tmp_path_factory.mktemp("operator")
    beta = here / "beta" / "beta.descriptor.toml"
    made = ["operator", "new", "beta", "--host", "beta.example", "--output", str(here / "beta")]
    assert run_command(made) == 0
    text = (DEPLOY / "compose-operator.yaml").read_text()
    for line in re.findall(r"^#   fleetcount (operator .*)$", text, re.MULTILINE):
        said = line.replace("deploy/operator", str(here / "operator")).replace("beta.descriptor.toml", str(beta))
        joins = ["--fingerprint", fingerprint_of(beta)] if " join " in line else []
        assert run_command([*said.split(), *joins]) == 0
    return here


def test_one_operator_s_compose_runs_what_operator_new_makes(
    operator: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [service] = yaml.safe_load((DEPLOY / "compose-operator.yaml").read_text())["services"].values()
    assert accepted(service["command"], capsys)
    assert accepted(service["healthcheck"]["test"][2:], capsys)
    [(place, source)] = mounts(service, operator).items()
    inside = Path(service["command"][-1]).relative_to(place)

    config = load_config(source / inside, service["environment"])

    assert [str(path) for path in paths(config) if not path.exists()] == []
    assert all(path.is_relative_to(source) for path in paths(config)), "nothing of it lies elsewhere"
    assert config.metrics is not None


def test_several_processes_of_compose_are_one_aggregator_behind_its_balancer(
    compose: dict[str, Any], deployment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several = yaml.safe_load((DEPLOY / "compose-several.yaml").read_text())
    base, services = compose["services"]["alpha"], several["services"]
    alpha = deployment / "deployment" / "alpha"
    lines = (DEPLOY / "compose.yaml").read_text().partition("[store]\n")[2].splitlines()[:2]
    table = "\n".join(["[store]", *(line.removeprefix("#").strip() for line in lines)])
    (alpha / "several.toml").write_text(f"{(alpha / 'aggregator.toml').read_text()}\n{table}\n")
    roles: dict[str, list[frozenset[Role]]] = {}
    listens: list[str] = []
    pages: list[str] = []
    for name, service in services.items():
        if name == "balancer":
            continue
        assert name == "alpha" or service["extends"] == {"file": "compose.yaml", "service": "alpha"}
        command = service["command"]
        assert command[: len(base["command"])] == base["command"]
        assert accepted(command, capsys)
        environment = {**base["environment"], **service["environment"]}
        environment = {
            key: value.replace("/deployment/", f"{deployment}/deployment/") for key, value in environment.items()
        }
        config = load_config(alpha / "several.toml", environment)
        assert config.store.url is not None
        assert config.metrics is not None
        assert str(config.aggregator.state_directory) == "/state"
        assert any(one.startswith("/state:") for one in service["tmpfs"])
        own = read_roles(command[-1])
        roles.setdefault(command[-1], []).append(own)
        pages.append(config.metrics.listen)
        if Role.INTAKE in own:
            listens.append(config.grpc.device_listen)
    assert {name: len(found) for name, found in roles.items()} == {"intake": 2, "worker": 1, "coordinator": 2}
    assert len({*pages, *listens}) == 7, "of one machine each has a port of its own"
    balancer = several["configs"]["balancer"]["content"]
    assert re.findall(r"server \S+ (\S+) check", balancer) == listens
    assert re.findall(r"bind (\S+)", balancer) == [load_config(alpha / "aggregator.toml", {}).grpc.device_listen]
    assert "mode tcp" in balancer, "TLS is passed through"


@pytest.mark.processes
def test_compose_s_broker_gets_every_file_that_its_configuration_names(
    compose: dict[str, Any], deployment: Path, tmp_path: Path
) -> None:
    service = compose["services"]["broker"]
    script = service["command"][-1].replace("exec mosquitto", "true")
    for place, source in mounts(service, deployment).items():
        script = script.replace(place, str(source))
    etc = tmp_path / "etc"
    etc.mkdir()
    subprocess.run(["sh", "-ec", script.replace("/etc/fleetcount", str(etc))], check=True, timeout=30)

    named = re.findall(r"^\w+file \S*/(\S+)$|^acl_file \S*/(\S+)$", (etc / "mosquitto.conf").read_text(), re.MULTILINE)
    wanted = {one or other for one, other in named}
    assert wanted == {"clients.crt", "clients.crl", "broker.crt", "broker.key", "mosquitto.acl"}
    assert wanted <= {path.name for path in etc.iterdir()}
    assert "DEPLOYMENT" not in (etc / "mosquitto.acl").read_text().partition("\n\n")[2]
    config = load_config(deployment / "deployment" / "alpha" / "aggregator.toml", {})
    assert f"/{config.aggregator.deployment}/" in (etc / "mosquitto.acl").read_text()
    listener = re.search(r"^listener (\d+)$", (DEPLOY / "mosquitto.conf").read_text(), re.MULTILINE)
    assert config.mqtt is not None
    assert listener is not None
    assert config.mqtt.broker == f"localhost:{listener[1]}"


def test_compose_s_database_is_the_one_that_its_first_lines_name(compose: dict[str, Any], deployment: Path) -> None:
    lines = (DEPLOY / "compose.yaml").read_text().partition("[store]\n")[2].splitlines()[:2]
    service, alpha = compose["services"]["postgresql"], deployment / "deployment" / "alpha"
    before = (alpha / "aggregator.toml").read_text()
    table = "\n".join(["[store]", *(line.removeprefix("#").strip() for line in lines)])
    (alpha / "on-postgresql.toml").write_text(f"{before}\n{table}\n")
    store = load_config(alpha / "on-postgresql.toml", {}).store

    user, name = (service["environment"][key] for key in ("POSTGRES_USER", "POSTGRES_DB"))
    assert store.url == f"postgresql://{user}@127.0.0.1:5432/{name}"
    assert "listen_addresses=127.0.0.1" in service["command"]
    assert {f"{key}=on" for key in ("fsync", "synchronous_commit", "full_page_writes")} <= set(service["command"])
    assert store.password_file is not None
    secret = deployment / compose["secrets"]["postgresql"]["file"]
    assert store.password_file.read_text() == secret.read_text()


@pytest.mark.processes
def test_compose_s_prometheus_asks_every_page_and_reads_the_shipped_rules(
    compose: dict[str, Any], deployment: Path, tmp_path: Path
) -> None:
    content = compose["configs"]["prometheus"]["content"]
    (tmp_path / "prometheus.yml").write_text(content)
    shutil.copy(DEPLOY / "monitoring" / "alerts.yml", tmp_path)
    jobs = yaml.safe_load(content)["scrape_configs"]
    asked = {target for job in jobs for config in job["static_configs"] for target in config["targets"]}

    listens = {compose["services"][name]["environment"]["FLEETCOUNT_METRICS__LISTEN"] for name in ("alpha", "beta")}
    relay = load_relay_config(deployment / "deployment" / "relay" / "relay.toml")
    assert relay.metrics is not None
    assert asked == listens | {relay.metrics.listen}
    shipped = yaml.safe_load((DEPLOY / "monitoring" / "prometheus.yml").read_text())
    assert [job["job_name"] for job in jobs] == [job["job_name"] for job in shipped["scrape_configs"]]
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on this machine (Debian: apt install prometheus): configurations NOT read by it")
    for file in (tmp_path / "prometheus.yml", DEPLOY / "monitoring" / "prometheus.yml"):
        ran = subprocess.run([promtool, "check", "config", file], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.processes
def test_promtool_finds_the_bounds_of_the_rules_where_they_are_said_to_be() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on this machine (Debian: apt install prometheus): bounds of alerts NOT tested")
    command = [promtool, "test", "rules", "alerts_test.yml"]
    ran = subprocess.run(command, cwd=DEPLOY / "monitoring", capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stdout + ran.stderr


# The samples.


def test_the_samples_of_servers_are_read_by_what_they_are_for(deployment: Path) -> None:
    """Those of devices: tests/client/test_config.py; of questions: tests/cli/test_question_files.py."""
    root = deployment / "deployment"
    for name, load in LOADERS.items():
        text = (DEPLOY / "sample" / f"{name}.toml").read_text().replace("base64 of 32 bytes", "A" * 43 + "=")
        (root / f"{name}.toml").write_text(text)
        assert load(root / f"{name}.toml", {})


# Kubernetes.

CLUSTER = {"kustomize.config.k8s.io/v1beta1", "apps/v1", "v1", "networking.k8s.io/v1", "policy/v1"}
KINDS = {"Kustomization", "StatefulSet", "Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget"}
POD = {
    "automountServiceAccountToken",
    "enableServiceLinks",
    "terminationGracePeriodSeconds",
    "securityContext",
    "initContainers",
    "containers",
    "volumes",
}
CONTAINER = {
    "name",
    "image",
    "command",
    "args",
    "ports",
    "startupProbe",
    "livenessProbe",
    "readinessProbe",
    "resources",
    "env",
    "securityContext",
    "volumeMounts",
}
CHECKS = {
    "serving",
    "store",
    "keys",
    "certificate",
    "deny_list",
    "peers",
    "broker",
    "clock",
    "background",
    "aggregators",
}
"""The names of /readyz (tests/aggregator/roles/test_readiness.py, tests/relay/test_readiness.py)."""


def documents(folder: str) -> list[dict[str, Any]]:
    files = sorted((DEPLOY / "kustomize" / folder).glob("*.yaml"))
    return [document for file in files for document in yaml.safe_load_all(file.read_text())]


FOLDERS = ["aggregator", "relay", "replicated"]
WORKLOADS = ("StatefulSet", "Deployment")


@pytest.mark.parametrize("folder", FOLDERS)
def test_kubernetes_files_name_what_is_there(folder: str) -> None:
    found = documents(folder)
    [kustomization] = [one for one in found if one["kind"] == "Kustomization"]
    templates = [one["spec"]["template"] for one in found if one["kind"] in WORKLOADS]
    claims = {row["metadata"]["name"] for one in found for row in one.get("spec", {}).get("volumeClaimTemplates", ())}

    assert {one["apiVersion"] for one in found} <= CLUSTER
    assert {one["kind"] for one in found} <= KINDS
    assert {*kustomization["resources"], "kustomization.yaml"} == {
        path.name for path in (DEPLOY / "kustomize" / folder).glob("*.yaml")
    }
    chosen = [one for one in found if one["kind"] in (*WORKLOADS, "PodDisruptionBudget")]
    services = [one for one in found if one["kind"] == "Service"]
    selectors = [one["spec"]["selector"] for one in services]
    selectors += [one["spec"]["selector"]["matchLabels"] for one in chosen]
    selectors += [one["spec"]["podSelector"]["matchLabels"] for one in found if one["kind"] == "NetworkPolicy"]
    labels = [template["metadata"]["labels"] for template in templates]
    assert [selector for selector in selectors if selector not in labels] == []
    for template in templates:
        pod = template["spec"]
        assert set(pod) <= POD
        volumes = claims | {one["name"] for one in pod["volumes"]}
        maps = {one["configMap"]["name"] for one in pod["volumes"] if "configMap" in one}
        assert maps == {one["name"] for one in kustomization.get("configMapGenerator", ())}
        secrets = {one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one}
        assert secrets == {one["name"] for one in kustomization["secretGenerator"]}
        ports = {port["name"] for container in pod["containers"] for port in container["ports"]}
        own = [one for one in services if one["spec"]["selector"] == template["metadata"]["labels"]]
        assert {port["targetPort"] for one in own for port in one["spec"]["ports"]} <= ports
        for container in (*pod["initContainers"], *pod["containers"]):
            assert set(container) <= CONTAINER
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["image"] == kustomization["images"][0]["name"]


def listens(folder: str, config: Any) -> dict[str, str]:
    """Return where a configuration listens, by the name of the port."""
    if folder == "relay":
        return {"metrics": config.metrics.listen, "devices": config.relay.listen}
    return {
        "metrics": config.metrics.listen,
        "devices": config.grpc.device_listen,
        "peers": config.grpc.peer_listen,
    }


@pytest.fixture(scope="module")
def folders(operator: Path) -> Path:
    """The folders of an operator and a relay at operator/ and relay/, for kustomize/replicated with what it adds."""
    descriptors = [
        str(operator / "operator" / "alpha.descriptor.toml"),
        str(operator / "beta" / "beta.descriptor.toml"),
    ]
    made = ["relay", "new", "relay", "--host", "relay.example", "--output", str(operator / "relay"), *descriptors]
    assert run_command(made) == 0
    request, directory = str(operator / "relay" / "relay.request"), str(operator / "operator")
    assert run_command(["operator", "admit", request, "--directory", directory, "--yes"]) == 0
    keys = operator / "operator" / "keys"
    (keys / "postgresql.password").write_text("secret\n")
    (keys / "postgresql.password").chmod(0o600)
    (keys / "postgresql.crt").write_bytes((keys / "aggregator.crt").read_bytes())
    return operator


def packed(folder: str, folders: Path, here: Path) -> Path:
    """Return deploy/kustomize/FOLDER in a directory `here`, with the file that its first lines make."""
    copy = here / "kustomize" / folder
    shutil.copytree(DEPLOY / "kustomize" / folder, copy)
    for name in ("operator", "relay"):
        (here / name).symlink_to(folders / name)
    [line] = re.findall(r"^#   (tar .*)$", (copy / "kustomization.yaml").read_text(), re.MULTILINE)
    subprocess.run(["sh", "-ec", f"umask 077; {line}"], cwd=copy, check=True, timeout=30)
    return copy


def places(pod: Mapping[str, Any], copy: Path, root: Path) -> dict[str, Path]:
    """Return where a pod of a folder has which directory: volumes below `root`, secret and configuration of `copy`."""
    rows = {
        row["mountPath"]: row["name"]
        for one in (*pod["initContainers"], *pod["containers"])
        for row in one["volumeMounts"]
    }
    return {
        place: copy
        if next((one for one in pod["volumes"] if one["name"] == name), {}).keys() & {"secret", "configMap"}
        else root / name
        for place, name in rows.items()
    }


def moved(text: str, seen: Mapping[str, Path]) -> str:
    """Return a text of a pod with the places that it names where this machine has them."""
    return re.sub(
        rf"(?<![\w./])({'|'.join(map(re.escape, sorted(seen, key=len, reverse=True)))})(?=[/\s]|$)",
        lambda found: str(seen[found[1]]),
        text,
    )


def started(folder: str, pod: Mapping[str, Any], copy: Path, root: Path) -> Any:
    """Return the configuration that a pod's process reads, once its first container has run."""
    seen = places(pod, copy, root)
    for place in seen.values():
        place.mkdir(parents=True, exist_ok=True)
    [first], [container] = pod["initContainers"], pod["containers"]
    subprocess.run([*first["command"], moved(first["args"][0], seen)], check=True, timeout=30)
    config = seen[str(Path(container["args"][container["args"].index("--config") + 1]).parent)]
    environment = {one["name"]: moved(one["value"], seen) for one in container.get("env", ())}
    name = "relay" if folder == "relay" else "aggregator"
    return LOADERS[name](config / f"{name}.toml", environment)


def pods(folder: str) -> list[Mapping[str, Any]]:
    return [one["spec"]["template"]["spec"] for one in documents(folder) if one["kind"] in WORKLOADS]


@pytest.mark.processes
@pytest.mark.parametrize("folder", FOLDERS)
def test_what_runs_on_kubernetes_is_what_the_command_and_its_configuration_say(
    folder: str, folders: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    copy, roles = packed(folder, folders, tmp_path), set()

    for number, pod in enumerate(pods(folder)):
        [container] = pod["containers"]
        root = tmp_path / f"pod{number}"
        config = started(folder, pod, copy, root)
        assert accepted(container["args"], capsys)
        if "--roles" in container["args"]:
            roles |= read_roles(container["args"][-1])
        for port in container["ports"]:
            assert int(listens(folder, config)[port["name"]].rpartition(":")[2]) == port["containerPort"]
        own = [root / row["name"] for row in container["volumeMounts"]]
        named = [path for path in paths(config) if path.name != "state"]  # Made at the start.
        assert [str(path) for path in named if not path.exists()] == []
        assert [str(path) for path in paths(config) if not any(path.is_relative_to(one) for one in own)] == []
        private = [path for path in root.rglob("*") if path.suffix in {".key", ".password"}]
        assert private
        assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
        assert not {"devices.key", "aggregators.key"} & {path.name for path in private}
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe := container.get(kind, {}).get("httpGet"):
                path, _, query = probe["path"].partition("?")
                assert (path, probe["port"]) == ("/readyz" if kind == "readinessProbe" else "/healthz", "metrics")
                assert {one.removeprefix("exclude=") for one in query.split("&") if one} <= CHECKS
        assert (getattr(config, "store", None) is not None and config.store.url is not None) == (folder == "replicated")
        if folder == "relay":
            assert [one.id for one in config.aggregators] == ["alpha", "beta"]
        else:
            assert [peer.id for peer in config.peers] == ["beta"]
            assert (config.keys.rotate_s is None) == (folder == "replicated"), "copies of sealing keys do not rotate"
    assert roles == (ALL_ROLES if folder == "replicated" else set())


@pytest.mark.processes
def test_a_pod_takes_a_peer_that_joined_later_and_keeps_the_sealing_keys_of_its_volume(
    folders: Path, tmp_path: Path
) -> None:
    shutil.copytree(folders / "operator", tmp_path / "own" / "operator")
    shutil.copytree(folders / "relay", tmp_path / "own" / "relay")
    [pod], root = pods("aggregator"), tmp_path / "pod"
    first = started("aggregator", pod, packed("aggregator", tmp_path / "own", tmp_path / "1"), root)
    hpke = first.keys.hpke_key_directory.resolve()
    (hpke / "1.key").rename(hpke / "2.key")  # As a rotation leaves it.
    gamma = tmp_path / "gamma" / "gamma.descriptor.toml"
    assert run_command(["operator", "new", "gamma", "--host", "gamma.example", "--output", str(gamma.parent)]) == 0
    joins = ["operator", "join", str(gamma), "--directory", str(tmp_path / "own" / "operator")]
    assert run_command([*joins, "--fingerprint", fingerprint_of(gamma)]) == 0

    again = started("aggregator", pod, packed("aggregator", tmp_path / "own", tmp_path / "2"), root)

    assert [peer.id for peer in again.peers] == ["beta", "gamma"]
    assert again.peers[1].ca_file is not None
    assert again.peers[1].ca_file.is_file()
    assert {path.name for path in again.keys.hpke_key_directory.iterdir()} == {"2.key"}


@pytest.mark.processes
@pytest.mark.parametrize("folder", FOLDERS)
def test_kustomize_builds_it(folder: str, folders: Path, tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not on this machine: kustomize did NOT build deploy/kustomize")
    copy = packed(folder, folders, tmp_path)
    ran = subprocess.run([kubectl, "kustomize", copy], capture_output=True, text=True, timeout=60, check=False)

    assert ran.returncode == 0, ran.stderr
    built = list(yaml.safe_load_all(ran.stdout))
    [secret] = [one for one in built if one["kind"] == "Secret"]
    maps = {one["metadata"]["name"] for one in built if one["kind"] == "ConfigMap"}
    assert {one["metadata"]["namespace"] for one in built} == {"fleetcount"}
    [(name, content)] = secret["data"].items()
    assert base64.b64decode(content) == (copy / name).read_bytes()
    for pod in [one["spec"]["template"]["spec"] for one in built if one["kind"] in WORKLOADS]:
        images = {container["image"] for container in (*pod["initContainers"], *pod["containers"])}
        assert images == {"registry.example.org/fleetcount:0.1.0"}
        assert {one["configMap"]["name"] for one in pod["volumes"] if "configMap" in one} == maps
        # With its content its name changes, and with it the pod.
        assert {one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one} == {
            secret["metadata"]["name"]
        }
        assert f"/secret/{name}" in pod["initContainers"][0]["args"][0]
