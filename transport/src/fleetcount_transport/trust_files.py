"""The aggregators that a party's configuration trusts: keys in it, and files with the successions of keys.

It must not decide what a trusted aggregator may do.
"""

from collections.abc import Iterable
from pathlib import Path

from fleetcount_protocol.errors import DecodeError, QuestionError, SignatureError
from fleetcount_protocol.window.signing import TrustedAggregator
from fleetcount_protocol.window.succession import (
    MAX_SUCCESSION_FILE_BYTES,
    SignedSuccession,
    decode_signed_succession,
    with_successions,
)

from fleetcount_transport.toml_table import ConfigError


def read_succession(path: Path) -> SignedSuccession:
    """Return the succession of a file, whose signature is not verified here.

    Raises:
        ConfigError: it cannot be read, or is no succession.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SUCCESSION_FILE_BYTES + 1)
        return decode_signed_succession(data)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except DecodeError as error:
        raise ConfigError(f"{path} is no succession of a signing key: {error}") from error


def succeeded(trusted: TrustedAggregator, files: Iterable[Path]) -> TrustedAggregator:
    """Return an aggregator that is trusted under the successors of its key, by the files in their order.

    Raises:
        ConfigError: a file cannot be read, is no succession, or does not follow the one before; the message names it.
    """
    for path in files:
        signed = read_succession(path)
        try:
            trusted = with_successions(trusted, [signed])
        except (QuestionError, SignatureError) as error:
            raise ConfigError(f"{path} is not trusted: {error}") from error
    return trusted
