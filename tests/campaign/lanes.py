"""The deployments that trials go through, set up and ended: SQLite files, PostgreSQL, a leader of several processes."""

import asyncio
import importlib.util
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from fleetcount_simulator.network.ports import free_ports

from tests.campaign.trials import Lane, write_deny_list
from tests.support.broker import embedded_broker
from tests.support.deployment import NAMES, LiveDeployment
from tests.support.live_relay import LiveRelay
from tests.support.postgres import Cluster, find_postgres, own_cluster
from tests.support.processes import pace
from tests.support.replicas import Balancer, Replicas, balanced

STORES: Final = ("SQLite", "PostgreSQL", "SQLite", "replicas")
"""What the lanes have below them, in turn."""
ROLES: Final = {
    "intake-1": "intake",
    "intake-2": "intake",
    "worker": "worker",
    "coordinator-1": "coordinator",
    "coordinator-2": "coordinator",
}
_DISK_MIB: Final = 256
_GIVE_UP_S: Final = 40.0
"""A helper waits twice as long for a silent leader, and only then a window would be stuck."""


def stores_here() -> Sequence[str]:
    """Return what lanes on this machine can have below them."""
    has = find_postgres() is not None and importlib.util.find_spec("psycopg") is not None
    return STORES if has else ("SQLite",)


@asynccontextmanager
async def lane(root: Path, store: str, seed: int) -> AsyncIterator[Lane]:
    """Start a lane below a directory of its own; as root, the files of SQLite lie on a small disk of their own."""
    fleets = root.with_name(f"{root.name}-fleets")
    for directory in (root, fleets):
        directory.mkdir(parents=True)
    async with AsyncExitStack() as stack:
        blocking = stack.enter_context(ExitStack())
        small = store == "SQLite" and os.geteuid() == 0 and _mounted(root, blocking)
        cluster = None if store == "SQLite" else blocking.enter_context(own_cluster())
        broker = await asyncio.to_thread(embedded_broker, root)
        blocking.callback(broker.stop)
        deployment = LiveDeployment(
            root / "lane", 2, name=root.name, broker=broker.started, give_up_s=_GIVE_UP_S * pace(), compiled=True
        )
        deny_list = _follow_deny_list(deployment)
        relay = LiveRelay(deployment, root)
        blocking.callback(relay.child.reap)
        for child in deployment.children:
            blocking.callback(child.reap)
        replicas = balancer = None
        lines: dict[str, Balancer] = {}
        if store == "replicas":
            assert cluster is not None
            replicas = Replicas(deployment, cluster.url("postgres"))
            balancer = await stack.enter_async_context(balanced(deployment.written.plans[0].device_port))
            for name, roles in ROLES.items():
                [port] = free_ports("127.0.0.1", 1)
                lines[name] = await stack.enter_async_context(balanced(port, cluster.socket))
                url = cluster.url("postgres", host="127.0.0.1", port=str(port))
                blocking.callback(replicas.add(name, roles, url=url).reap)
        elif cluster is not None:
            _put_stores(deployment, cluster)
        made = Lane(
            root, deployment, broker, relay, fleets=fleets, cluster=cluster, replicas=replicas, balancer=balancer,
            deny_list=deny_list, disk=small, seed=seed, lines=lines, owned=blocking,
        )  # fmt: skip
        await asyncio.gather(*(made.start(name) for name in (*made.aggregators, "relay")))
        yield made


def _put_stores(deployment: LiveDeployment, cluster: Cluster) -> None:
    for position in range(deployment.count):
        cluster.run(f"CREATE DATABASE {NAMES[position]}")
        with deployment.config(position).open("a") as file:
            file.write(f'\n[store]\nurl = "{cluster.url(NAMES[position])}"\n')


def _follow_deny_list(deployment: LiveDeployment) -> Path:
    """Give all aggregators one deny list, with nobody on it."""
    path = deployment.written.root / "deny-list"
    write_deny_list(path, deployment, [])
    for position in range(deployment.count):
        config = deployment.config(position)
        text = config.read_text().replace("\n[grpc]\n", f'deny_list_file = "{path}"\n\n[grpc]\n')
        config.write_text(text)
    return path


def _mounted(root: Path, stack: ExitStack) -> bool:
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m,mode=700", "none", str(root)],
        capture_output=True,
        check=False,
    )
    if made.returncode == 0:
        stack.callback(subprocess.run, ["umount", "-l", str(root)], check=False)
    return made.returncode == 0
