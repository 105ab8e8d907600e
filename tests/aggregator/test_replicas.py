"""What a process of an aggregator of several is given by its roles."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

from fleetcount_aggregator.config import load_config
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.role import Role
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.process.replicas import Replica
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.transport.mqtt_withdrawing import Withdrawing
from fleetcount_protocol.channel.certificates import (
    CertificateAuthority,
    Purpose,
    save_certificates,
    save_private_key,
)
from fleetcount_transport.toml_table import ConfigError

from tests.aggregator.test_config import GOOD, write
from tests.support.aggregators import Network


@asynccontextmanager
async def process(url: str, root: Path, mqtt: str, role: Role) -> AsyncIterator[Callable[[], Replica]]:
    """What makes one process of an aggregator over a database, with more lines of [mqtt]."""
    tables = f'[mqtt]\nbroker = "127.0.0.1:1883"\n{mqtt}[store]\nurl = "{url}"\n'
    text = GOOD.replace('"signing.key"', '"signing.key"\nstore_key_file = "store.key"')
    text = text.replace("[grpc]", "[grpc]\ninsecure = true")
    config = load_config(write(root, text + tables), {})
    place = StorePlace(directory=root, url=url)
    engine = await asyncio.to_thread(lambda: open_engine(place, alone=False))
    store = Store.over(engine, root / "store.db", bytes(32))
    network = Network(1)
    await network.start_all()
    own = network.core(0).context
    context = Context.over(own.host, store, own.workers)
    with closing(store.engine):
        yield lambda: Replica(config, context, store, frozenset({role}))


async def test_an_intake_without_a_slot_s_certificate_is_not_started(postgres_url: str, tmp_path: Path) -> None:
    """Whichever process a slot comes to must be able to take it over: it is looked for at the start."""
    issued = CertificateAuthority.create("aggregators").issue_new(Purpose.AGGREGATOR, "alpha")
    files = 'slots = 3\nca_file = "alpha.crt"\ncertificate_file = "alpha.crt"\nkey_file = "alpha.key"\n'
    for name in ("alpha", "alpha-slot1"):
        save_certificates(tmp_path / f"{name}.crt", [issued.certificate])
        save_private_key(tmp_path / f"{name}.key", issued.private_key)

    async with process(postgres_url, tmp_path, files, Role.INTAKE) as made:
        replica = made()
        with pytest.raises(ConfigError, match=r"alpha-slot2\.crt"):
            replica.work()
        await replica.close()


async def test_a_coordinator_takes_outcomes_away_from_the_broker_without_the_intake_s_connection(
    postgres_url: str, tmp_path: Path
) -> None:
    async with process(postgres_url, tmp_path, "", Role.COORDINATOR) as made:
        replica = made()

        assert isinstance(replica.core.context.windows.outcomes.withdraw, Withdrawing)
        await replica.close()
