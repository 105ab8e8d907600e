"""A device's next certificate: asked for in time, checked, and taken from a file beside the present one.

Whoever enrols devices puts it at `certificate_file` with ".new" behind its name; it must be for the device's own key.
Speaks to nobody: how the certificate comes here is the owner's command or function.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.errors import FleetcountError, UsageError
from fleetcount_transport.settings import setting, settings
from fleetcount_transport.toml_table import Table

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from fleetcount_protocol.channel.session import DeviceIdentity

_LOG: Final = logging.getLogger(__name__)
_DAY_S: Final = 86_400
_COMMAND_S: Final = 120.0
NEXT_FILE_VARIABLE: Final = "FLEETCOUNT_NEXT_CERTIFICATE"


def _command(table: Table, key: str) -> tuple[str, ...]:
    words = table.raw(key)
    listed = cast("list[object]", words) if isinstance(words, list) else []
    if not 1 <= len(listed) <= 64 or not all(isinstance(word, str) and word and "\0" not in word for word in listed):
        raise table.refuse(key, 'a program and its arguments: ["/usr/bin/fetch", "certificate"]')
    return tuple(map(str, listed))


@settings
class RenewalSettings:
    """[renewal]: when to ask for the next certificate (seconds before the end), by which command, again how often.

    The command is a program and its arguments, run without a shell; () asks nobody and waits for the file.
    """

    before_s: int = setting(Table.integer, 0, 366 * _DAY_S, default=10 * _DAY_S)
    command: tuple[str, ...] = setting(_command, default=())
    retry_s: float = setting(Table.seconds, 1, 31 * _DAY_S, default=3600.0)


def next_file(certificate_file: Path) -> Path:
    """Return where a device looks for its next certificate."""
    return certificate_file.with_name(f"{certificate_file.name}.new")


def not_valid(certificate: "Certificate", now: float) -> str:
    """Return why a certificate is not valid now, "" if it is."""
    starts, ends = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    if now > ends:
        return f"its certificate ended {utc_text(ends)}"
    return f"its certificate begins {utc_text(starts)}" if now < starts else ""


def check_next(identity: "DeviceIdentity", path: Path, now: float) -> "DeviceIdentity":
    """Return the device's identity under the certificate of a file, if it may take the present one's place.

    Raises:
        UsageError: no certificate, another key, another purpose, not valid now, or one that ends no later.
    """
    from fleetcount_protocol.channel.certificates import Purpose, load_certificate, purpose_of
    from fleetcount_protocol.channel.session import DeviceIdentity
    from fleetcount_protocol.errors import SignatureError

    try:
        certificate = load_certificate(path)
        purpose = purpose_of(certificate)
    except (OSError, SignatureError) as error:
        raise UsageError(f"{path.name}: {error}") from None
    if certificate.public_key() != identity.private_key.public_key():
        raise UsageError(f"{path.name} is for another key than the device's")
    if purpose is not Purpose.DEVICE:
        raise UsageError(f"{path.name} is for the purpose {purpose.label}, allowed: device")
    if why := not_valid(certificate, now):
        raise UsageError(f"{path.name}: {why}")
    if certificate.not_valid_after_utc <= identity.certificate.not_valid_after_utc:
        raise UsageError(f"{path.name} ends no later than the present certificate")
    return DeviceIdentity(certificate=certificate, private_key=identity.private_key)


class Renewal:
    """Looks for the next certificate, and asks for it when the present one ends soon. `ask` makes the file appear."""

    def __init__(
        self,
        *,
        certificate_file: Path,
        settings: RenewalSettings | None = None,
        ask: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._file = certificate_file
        self._next = next_file(certificate_file)
        self._settings = settings or RenewalSettings()
        self._ask = ask or command_of(self._settings.command, self._next)
        self._asked_at = float("-inf")
        self._complaint = ""

    async def look(self, identity: "DeviceIdentity", now: float) -> "DeviceIdentity":
        """Return the identity to use from now on: the one given, or that of a new certificate, which is then in place.

        Asks first if it is time. Nothing here ends the device: what goes wrong is logged and tried again.
        """
        ends = identity.certificate.not_valid_after_utc.timestamp()
        due = now >= ends - self._settings.before_s and not self._next.exists()
        if due and self._ask is not None and now >= self._asked_at + self._settings.retry_s:
            self._asked_at = now
            try:
                await self._ask()
            except (OSError, TimeoutError, FleetcountError) as error:
                _LOG.warning("the next certificate could not be asked for: %s", error)
        return self._take(identity, now) if self._next.exists() else identity

    def _take(self, identity: "DeviceIdentity", now: float) -> "DeviceIdentity":
        try:
            renewed = check_next(identity, self._next, now)
            self._next.replace(self._file)
        except (UsageError, OSError) as error:
            if str(error) != self._complaint:
                _LOG.warning("the next certificate is not taken: %s", error)
            self._complaint = str(error)
            return identity
        self._complaint = ""
        _LOG.info("a new certificate is in use, until %s", renewed.certificate.not_valid_after_utc)
        return renewed


def command_of(command: Sequence[str], target: Path) -> Callable[[], Awaitable[None]] | None:
    """Return what runs a command that makes `target` appear, whose name it finds in FLEETCOUNT_NEXT_CERTIFICATE."""
    if not command:
        return None

    async def ask() -> None:
        environment = {**os.environ, NEXT_FILE_VARIABLE: str(target)}
        child = await asyncio.create_subprocess_exec(*command, env=environment, stdin=asyncio.subprocess.DEVNULL)
        try:
            async with asyncio.timeout(_COMMAND_S):
                code = await child.wait()
        except BaseException:
            child.kill()
            await child.wait()
            raise
        if code != 0:
            raise UsageError(f"{command[0]} ended with code {code}")

    return ask
