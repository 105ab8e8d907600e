"""The broker as an operator runs it: mosquitto, the files of deploy/, certificates of an enrolment directory."""

import asyncio
import os
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiomqtt
from fleetcount_simulator.network.brokers import find_mosquitto

DEPLOY = Path(__file__).parents[2] / "deploy"


@asynccontextmanager
async def mosquitto(root: Path, port: int, deployment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the shipped configuration, whose output goes to mosquitto.log; give the process.

    Nothing of it is changed but where files lie and the port.
    """
    for name in ("etc", "var"):
        (root / name).mkdir(exist_ok=True)
    for file in ("broker.crt", "broker.key", "PKI/clients.crt", "PKI/clients.crl"):
        shutil.copy(root / file, root / "etc" / Path(file).name)
    shutil.copy(DEPLOY / "mosquitto.acl", root / "etc")
    for name in ("mosquitto.acl", "mosquitto.conf"):
        text = (DEPLOY / name).read_text().replace("DEPLOYMENT", deployment)
        text = text.replace("/etc/fleetcount", str(root / "etc")).replace("/var/lib/mosquitto", str(root / "var"))
        (root / "etc" / name).write_text(text.replace("listener 8883", f"listener {port}"))
        (root / "etc" / name).chmod(0o600)
    if os.geteuid() == 0:  # It would give up the rights to its own directory below the test's private one.
        with (root / "etc" / "mosquitto.conf").open("a") as file:
            file.write("user root\n")
    async with running(root / "etc" / "mosquitto.conf", port, root / "mosquitto.log") as child:
        yield child


@asynccontextmanager
async def running(config: Path, port: int, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run mosquitto by a configuration until the block ends, its output in `log`; give the process once it answers."""
    program = find_mosquitto()
    assert program is not None
    with log.open("wb") as output:
        child = await asyncio.create_subprocess_exec(program, "-c", str(config), stdout=output, stderr=output)
    try:
        for _ in range(200):
            assert child.returncode is None, log.read_text()
            try:
                _, writer = await asyncio.open_connection("localhost", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            break
        yield child
    finally:
        if child.returncode is None:
            child.terminate()
        await child.wait()


def client(
    root: Path, port: int, name: str | None, identifier: str | None = None, *, clean_session: bool = True
) -> aiomqtt.Client:
    """Return a raw MQTT client with a party's certificate, or with none."""
    pair = None if name is None else (root / f"{name}.crt", root / f"{name}.key")
    return aiomqtt.Client(
        "localhost",
        port,
        tls_context=tls_to(root / "PKI" / "aggregators.crt", pair),
        timeout=30,
        identifier=identifier,
        clean_session=clean_session,
    )


def tls_to(authority: Path, pair: tuple[Path, Path] | None) -> ssl.SSLContext:
    """Return the TLS of a client: who certifies the broker, and the client's own certificate and key."""
    context = ssl.create_default_context(cafile=str(authority))
    if pair is not None:
        context.load_cert_chain(*pair)
    return context
