"""A party's request for a certificate, and the folder in which a party begins.

A request (PKCS #10) says by whose key it is made, for which purpose, and under which name and hosts a party listens;
the operator who admits it decides. It must not issue a certificate.
"""

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

import click
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount_protocol.channel.certificates import Purpose, general_name, public_key_digest, save_private_key
from fleetcount_protocol.errors import MachineError, UsageError
from fleetcount_protocol.ids import Digest

from fleetcount.command.base import one_line
from fleetcount.command.options import PATH, Count, check_output_directory, read_bytes, write_file

MIN_BATCH: Final = click.option(
    "--min-batch",
    type=Count(2, 10**9),
    default=10,
    show_default=True,
    help="Refuse questions that may count fewer devices.",
)
"""The option of a party that says how few devices a question may count."""
HOST: Final = click.option("--host", required=True, metavar="HOST[:PORT]", help="Where others reach it.")
OUTPUT: Final = click.option("--output", type=PATH, metavar="DIR", help="A new folder (NAME).")
DESCRIPTORS: Final = click.argument("descriptors", metavar="DESCRIPTOR...", nargs=-1, required=True, type=PATH)
"""What every operator of the deployment handed out, the leader's first."""
SHOWN_DIGITS: Final = 16
"""So many digits of a key's digest are shown to who asks and to who admits, for the two to compare."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_MAX_REQUEST_BYTES: Final = 16 * 1024
_UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm, x509.UnsupportedGeneralNameType)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A signing request: the key it is for, and what it asks for; `purpose` is None where it does not say."""

    key: ec.EllipticCurvePublicKey
    purpose: Purpose | None = None
    name: str = ""
    hosts: tuple[str, ...] = ()

    @property
    def digest(self) -> Digest:
        """The digest of the key: whom a certificate for it counts as."""
        return public_key_digest(self.key)


def make_request(key: ec.EllipticCurvePrivateKey, purpose: Purpose | None, name: str, hosts: Sequence[str]) -> bytes:
    """Return the request of a party, PEM; "" is the name of a device, whom its operator names at random.

    Raises:
        UsageError: a name or a host that no certificate can have.
    """
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    if purpose is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose.value]), critical=False)
    if names := [general_name(one) for one in dict.fromkeys((name, *hosts)) if one]:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def read_request(path: Path) -> Request:
    """Return a certificate signing request (PKCS #10, PEM).

    Raises:
        UsageError: it is none, its key is not P-256, or it is not signed by its key.
    """
    data = read_bytes(path, largest=_MAX_REQUEST_BYTES)
    try:
        request = x509.load_pem_x509_csr(data)
        key = request.public_key()
        genuine = request.is_signature_valid
        found = {type(one.value): one.value for one in request.extensions}
    except _UNREADABLE as error:
        raise UsageError(f"{path} holds no readable signing request ({type(error).__name__})") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UsageError(f"{path} is for a {type(key).__name__}, allowed: a P-256 key")
    if not genuine:
        raise UsageError(f"{path} is not signed by the key it names")
    usages, names = found.get(x509.ExtendedKeyUsage, ()), found.get(x509.SubjectAlternativeName, ())
    purposes = [one for one in Purpose if one.value in usages]
    name, *hosts = [str(one.value) for one in names] or [""]
    return Request(key=key, purpose=purposes[0] if len(purposes) == 1 else None, name=name, hosts=tuple(hosts))


@contextlib.contextmanager
def new_directory(target: Path) -> Generator[Path]:
    """Give a hidden directory beside a new or empty one, mode 0700; on success it appears there whole, else nothing.

    Raises:
        UsageError: the target is there and not empty, or cannot be written to.
        MachineError: the disk does not take it.
    """
    check_output_directory(target, fresh=True)
    stage = target.absolute().with_name(f".{target.absolute().name}.{secrets.token_hex(4)}")
    try:
        stage.mkdir(mode=0o700, parents=True)
        yield stage
        stage.replace(target)
    except FileExistsError as error:
        raise UsageError(f"{error.filename} exists already; nothing is overwritten") from error
    except OSError as error:
        raise MachineError(f"{error.filename or target}: {error.strerror}") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def begin_party(
    output: Path, purpose: Purpose, name: str, hosts: Sequence[str], files: Mapping[str, bytes], config: str
) -> bool:
    """Make the folder of a party: NAME.key (mode 0600), NAME.request and its files, of which one is `config`.

    Returns False where the folder has been made with these very files before: then nothing changes.

    Raises:
        UsageError: the folder is there with another content of one of them, or a name or host that no certificate can
            have.
        MachineError: the disk does not take it.
    """
    made = output / config
    if made.is_file() and os.access(made, os.R_OK):
        for file, content in files.items():
            if read_bytes(output / file) != content:
                raise UsageError(f"{output / file} exists already and says something else; nothing was changed")
        return False
    key = ec.generate_private_key(ec.SECP256R1())
    request = make_request(key, purpose, "" if purpose is Purpose.DEVICE else name, hosts)
    with new_directory(output) as stage:
        save_private_key(stage / f"{name}.key", key)
        for file, content in {**files, f"{name}.request": request}.items():
            write_file(stage / file, content, overwrite=False)
    return True


def sample(name: str) -> str:
    """Return a shipped file, with which a party begins."""
    return resources.files("fleetcount.samples").joinpath(name).read_text(encoding="utf-8")


def check_file_name(name: str) -> None:
    """Refuse the name of a party that cannot name its files.

    Raises:
        UsageError: it is not 1 to 64 of letters, digits, '-', '_' and '.', beginning with a letter or digit.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"NAME is {name[:40]!a}; it must be 1 to 64 of letters, digits, '-', '_' and '.'")


def say_made(output: Path, name: str, made: bool, rows: Sequence[tuple[str, str]]) -> None:
    """Print what the folder of a party has, what to hand over and what comes next."""
    if not made:
        click.echo(f"{output} was made before: nothing was changed")
    asked = output / f"{name}.request"
    key = read_request(asked).digest.hex()[:SHOWN_DIGITS]
    handed = f"key {key}: hand it to one of the operators (fleetcount operator admit), and put {name}.crt, its reply,"
    for what, text in (*rows, (str(asked), f"{handed} beside it")):
        click.echo(one_line(f"{what}: {text}"))
