"""A PKCS #11 token in software, SoftHSM 2, where the machine has it: with keys that never leave it."""

import atexit
import importlib.util
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

_DIRECTORIES = ("/usr/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/lib", "/usr/lib64")
_LIBRARIES = [Path(one) / "softhsm" / "libsofthsm2.so" for one in _DIRECTORIES]
_LABEL = "fleetcount tests"


@dataclass(frozen=True)
class Token:
    """A token with a key pair named `signing`, an AES key named `wrapping`, and two that cannot be it.

    `short` has 128 bits, `loose` can be taken out.
    """

    library: Path
    pin: str
    public_key: bytes

    def uri(self, **changes: str) -> str:
        """Return the URI of the signing key, without a place of the PIN; "" leaves an attribute out."""
        path = {"token": _LABEL.replace(" ", "%20"), "object": "signing"}
        query = {"module-path": str(self.library)}
        for name, value in changes.items():
            where = query if name in ("module_path", "pin_source", "pin_value") else path
            where[name.replace("_", "-")] = value
        joined = ";".join(f"{name}={value}" for name, value in path.items() if value)
        return f"pkcs11:{joined}?" + "&".join(f"{name}={value}" for name, value in query.items() if value)


@cache
def the_token() -> Token:
    """Return the token of this process, made for it; skips the test, by name, where a part is missing.

    The library reads where its tokens lie once a process, when it is loaded.
    """
    library = next((path for path in _LIBRARIES if path.is_file()), None)
    if library is None or shutil.which("softhsm2-util") is None:
        pytest.skip("needs SoftHSM 2 (scripts/programs installs it)")
    if importlib.util.find_spec("pkcs11") is None:
        pytest.skip("needs python-pkcs11 (the extra fleetcount[pkcs11])")
    directory = Path(tempfile.mkdtemp(prefix="token-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    (directory / "tokens").mkdir()
    config = directory / "softhsm2.conf"
    config.write_text(f"directories.tokendir = {directory / 'tokens'}\nobjectstore.backend = file\nlog.level = ERROR\n")
    os.environ["SOFTHSM2_CONF"] = str(config)
    pin = "48213"
    subprocess.run(
        ["softhsm2-util", "--init-token", "--free", "--label", _LABEL, "--pin", pin, "--so-pin", "99999"],
        check=True,
        capture_output=True,
    )
    return Token(library, pin, _make_keys(library, pin))


def _make_keys(library: Path, pin: str) -> bytes:
    import pkcs11

    token = pkcs11.lib(str(library)).get_token(token_label=_LABEL)
    ed25519 = bytes.fromhex("06032b6570")
    with token.open(user_pin=pin, rw=True) as session:
        parameters = session.create_domain_parameters(
            pkcs11.KeyType.EC_EDWARDS, {pkcs11.Attribute.EC_PARAMS: ed25519}, local=True
        )
        public, _ = parameters.generate_keypair(
            mechanism=pkcs11.Mechanism.EC_EDWARDS_KEY_PAIR_GEN, store=True, label="signing", id=b"\x01\xff"
        )
        loose = {pkcs11.Attribute.EXTRACTABLE: True}
        for label, bits, template in (("wrapping", 256, {}), ("short", 128, {}), ("loose", 256, loose)):
            session.generate_key(pkcs11.KeyType.AES, bits, store=True, label=label, template=template)
        return bytes(public[pkcs11.Attribute.EC_POINT])[-32:]
