"""How another operator is joined, by an operator or by a broker: its descriptor is checked, its fingerprint compared.

Nothing is written here. It must not see a private key.
"""

import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from cryptography import x509
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.window.window import operator_key

from fleetcount.command.base import RefusedByPolicyError
from fleetcount.command.options import PATH
from fleetcount.keys.describing import fingerprint_of
from fleetcount.keys.descriptors import Descriptor, OperatorParts, read_whole_descriptor, same_fingerprint

JOINED: Final = click.argument("descriptor", metavar="PEER.descriptor.toml", type=PATH)
"""The descriptor of the operator that is joined, with `descriptor`."""
FINGERPRINT: Final = click.option(
    "--fingerprint", metavar="HEX", help="What the other operator reads to you, in place of typing it."
)
"""What its operator says by voice, with `fingerprint`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """An operator that is to be joined, and the file that describes it."""

    path: Path
    descriptor: Descriptor
    parts: OperatorParts

    @property
    def name(self) -> str:
        """The id of its aggregator."""
        return str(self.descriptor.aggregator.aggregator_id)

    @property
    def operator(self) -> str:
        """Who runs it, as questions name it."""
        return self.descriptor.aggregator.operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """What whoever joins has already: its deployment, its broker ("" for none), the operators and their authorities."""

    who: str
    deployment: str
    broker: str
    operators: Collection[str]
    authorities: Collection[x509.Certificate]


def read_joining(path: Path) -> Joining:
    """Return what a descriptor says of an operator with authorities of its own.

    Raises:
        UsageError: it cannot be used, or is of an aggregator without authorities.
    """
    found = read_whole_descriptor(path)
    if found.operator_parts is None:
        raise UsageError(f"{path} has no aggregator_authority; `fleetcount operator new` writes one that has")
    return Joining(path=path, descriptor=found, parts=found.operator_parts)


def refuse_another(where: Path, name: str, same: dict[str, bool], remedy: str) -> None:
    """Refuse a descriptor of somebody who is known by this id, and is another than it was.

    Raises:
        RefusedByPolicyError: a key of `same` is False; the message names it.
    """
    for key, unchanged in same.items():
        if not unchanged:
            raise RefusedByPolicyError(
                f"{where} has another {key} of {name!r} than its descriptor; nothing was changed: ask its operator by"
                f" voice, and {remedy} if it has begun anew"
            )


def check_joining(joining: Joining, here: Here) -> None:
    """Refuse an operator that cannot be one more of those who are here.

    Raises:
        UsageError: it is of another deployment or broker, or has an operator or an authority that is here already.
    """
    path, one, added = joining.path, joining.descriptor.aggregator, joining.parts
    if added.deployment != here.deployment:
        raise UsageError(f"{path} is of deployment {added.deployment!r}, this {here.who} of {here.deployment!r}")
    if operator_key(one.operator) in set(map(operator_key, here.operators)):
        raise UsageError(f"{path} has the operator {one.operator!r}, who is here already; operators must be distinct")
    if one.mqtt_broker and here.broker and one.mqtt_broker != here.broker:
        raise UsageError(f"{path} has the broker {one.mqtt_broker!r}, this {here.who} {here.broker!r}")
    if {added.aggregator_authority, added.device_authority} & {*here.authorities}:
        raise UsageError(f"{path} has an authority that is trusted here already; every operator has its own")


def confirm(joining: Joining, said: str | None) -> None:
    """Let whoever joins compare the fingerprint: `said`, or what is typed.

    Raises:
        RefusedByPolicyError: it is another one.
        UsageError: there is nobody to type it.
    """
    path, fingerprint = joining.path, fingerprint_of(joining.path)
    if said is None:
        asked = f"The fingerprint of {path.name} that the operator of {joining.name!r} reads to you"
        try:
            said = str(click.prompt(asked, type=str))
        except click.Abort:
            if sys.stdin.isatty():
                raise
            raise UsageError("nobody typed the fingerprint; give it with --fingerprint") from None
    if not same_fingerprint(said, fingerprint):
        raise RefusedByPolicyError(
            f"{path} has the fingerprint {fingerprint}, not {said[:60]!r}: it is not what its operator handed over;"
            " nothing was changed"
        )
