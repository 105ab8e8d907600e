"""`fleetcount keys store`, `succeed`, `wrap` and `descriptor`: keys of one aggregator, and its public description.

Writes files and prints their names; it must not print a key.
"""

import os
import time
from dataclasses import replace
from pathlib import Path

import click
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_aggregator.config import load_config
from fleetcount_aggregator.host.key_rotation import wrap_keys
from fleetcount_aggregator.host.keys import load_signing_key
from fleetcount_aggregator.host.token_keys import PKCS11_SCHEME, load_wrapping_key
from fleetcount_protocol.channel.certificates import key_pem
from fleetcount_protocol.errors import MachineError, UsageError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.window.fields import HpkeKey
from fleetcount_protocol.window.succession import Succession, encode_signed_succession, sign_succession
from fleetcount_simulator.network.deployments import write_store_key

from fleetcount.command.base import StrictCommand
from fleetcount.command.options import PATH, Count, config_option, write_file
from fleetcount.keys.describing import encode_descriptor
from fleetcount.keys.descriptors import read_whole_descriptor


@click.command("store", cls=StrictCommand)
@click.option("--output", required=True, type=PATH, metavar="FILE", help="A new file.")
def store(output: Path) -> None:
    """Write a new at-rest key, mode 0600: for [keys] store_key_file of one aggregator.

    A store that has none yet is sealed under a key that follows from its signing key; it moves to this one when the
    aggregator is started with it for the first time, under the same signing key. Keep a copy apart from the store's.
    """
    try:
        write_store_key(output)
    except FileExistsError:
        raise UsageError(f"--output {output} exists already; nothing is overwritten") from None
    except OSError as error:
        raise MachineError(f"{output}: {error.strerror}") from error
    click.echo(f"{output}: the key of one store; name it in [keys] store_key_file, and keep a copy of it apart")


@click.command("succeed", cls=StrictCommand)
@config_option("aggregator.toml.", metavar="FILE")
@click.option("--new-key", required=True, metavar="FILE", help="The new key's file; or the pkcs11: URI of one.")
@click.option("--overlap-days", type=Count(1, 3650), default=90, show_default=True, help="How long both are valid.")
@click.option("--output", required=True, type=PATH, metavar="FILE", help="The statement's file.")
def succeed(config: Path, new_key: str, overlap_days: int, output: Path) -> None:
    """Make a new signing key, and the statement by which the present one names it: public, for parties that trust it.

    Whoever has it in succession_files takes what the new key signs, and until the overlap ends what the old one does.
    """
    settings, now = load_config(config, os.environ), int(time.time())
    if settings.keys.store_key_file is None:
        raise UsageError(
            "keys.store_key_file is missing: the store's key follows from the signing key; give it one of its own first"
            ' ("fleetcount keys store"), and start the aggregator with it once'
        )
    in_token = new_key.startswith(PKCS11_SCHEME)
    old = load_signing_key(settings.keys.signing_key_file)
    new = load_signing_key(new_key) if in_token else Ed25519PrivateKey.generate()
    succession = Succession(
        aggregator_id=AggregatorId(settings.aggregator.id),
        old_key=old.public_key().public_bytes_raw(),
        new_key=new.public_key().public_bytes_raw(),
        not_before=now,
        not_after=now + overlap_days * 86_400,
    )
    if output.exists():
        raise UsageError(f"--output {output} exists already; nothing is overwritten")
    if not in_token:
        write_file(Path(new_key), key_pem(new), mode=0o600, overwrite=False)
    try:
        write_file(output, encode_signed_succession(sign_succession(succession, old)), overwrite=False)
    except BaseException:
        if not in_token:
            Path(new_key).unlink()  # Nobody knows it, and it would be in the way of the next try.
        raise
    click.echo(f"{output}: for succession_files of everybody who trusts {settings.aggregator.id!r}, itself included")
    click.echo(f"{new_key}: its new signing_key_file, once they have it")


@click.command("wrap", cls=StrictCommand)
@config_option("aggregator.toml.", metavar="FILE")
def wrap(config: Path) -> None:
    """Encrypt the files of an aggregator's sealing keys under the AES key in a token that [keys] wrapping_key names.

    Once, before the aggregator is started with wrapping_key; keys that it makes itself are wrapped already. The plain
    bytes are overwritten where they lay. Copies elsewhere stay what they are: better let rotate_s replace such keys.
    """
    keys = load_config(config, os.environ).keys
    if keys.wrapping_key is None:
        raise UsageError(f"{config} names no keys.wrapping_key: the pkcs11: URI of the AES-256 key to wrap under")
    try:
        wrapped = wrap_keys(keys.hpke_key_directory, load_wrapping_key(keys.wrapping_key))
    except OSError as error:
        raise MachineError(f"{error.filename}: {error.strerror}") from error
    named = ", ".join(map(str, wrapped))
    click.echo(f"{keys.hpke_key_directory}: " + (f"wrapped {named}" if wrapped else "nothing to wrap"))


@click.command("descriptor", cls=StrictCommand)
@config_option("aggregator.toml.", metavar="FILE")
@click.option("--from", "source", required=True, type=PATH, metavar="FILE", help="The old one.")
@click.option("--output", required=True, type=PATH, metavar="FILE", help="The new descriptor.")
def descriptor(config: Path, source: Path, output: Path) -> None:
    """Write an aggregator's descriptor anew, with its present signing key and the sealing keys valid now, newest first.

    After a rotation or a succession: authors of questions need it. They take sealing keys from the aggregator itself.
    """
    settings, whole, now = load_config(config, os.environ), read_whole_descriptor(source), time.time()
    before = whole.aggregator
    if before.aggregator_id != settings.aggregator.id:
        raise UsageError(f"--from describes {before.aggregator_id!r}, --config is of {settings.aggregator.id!r}")
    ring = settings.keys.key_ring()
    valid = [one for one in ring.listed() if one[2].not_before <= now < one[2].not_after]
    if not valid:
        raise UsageError(f"{settings.keys.hpke_key_directory} holds no sealing key that is valid now")
    newest = sorted(valid, key=lambda one: one[2].not_before, reverse=True)
    signing = load_signing_key(settings.keys.signing_key_file).public_key().public_bytes_raw()
    described = replace(
        before,
        signing_public_key=signing,
        hpke_keys=tuple(HpkeKey(key_id=key_id, public_key=public_key) for key_id, public_key, _ in newest),
    )
    write_file(output, encode_descriptor(described, whole.operator_parts).encode())
    click.echo(f"{output}: {before.aggregator_id}, sealing keys {', '.join(str(one[0]) for one in newest)}")
