"""How signatures stand behind what was signed, in files and in stores (docs/wire.md, "Question").

It must not sign or verify (`signing`).
"""

from fleetcount_protocol.layout import Reader, sized, uint
from fleetcount_protocol.limits import ED25519_SIGNATURE_BYTES, MAX_AGGREGATORS


def encode_signatures(signatures: tuple[bytes, ...]) -> bytes:
    """Return the end of a file of something signed: how many places there are, and what stands in each."""
    return uint(len(signatures), 1) + b"".join(sized(signature, 1) for signature in signatures)


def read_signatures(reader: Reader) -> tuple[bytes, ...]:
    """Return the signatures at the end of a file of something signed (`encode_signatures`)."""
    return tuple(reader.sized(1, 0, ED25519_SIGNATURE_BYTES) for _ in range(reader.count(1, 0, MAX_AGGREGATORS)))


def fault_of_signatures(signatures: tuple[bytes, ...], aggregators: int) -> str:
    """Return why these cannot be the signatures of all aggregators, some perhaps still missing; "" if they can."""
    if len(signatures) != aggregators:
        return f"{len(signatures)} signatures for {aggregators} aggregators"
    wrong = any(len(signature) not in (0, ED25519_SIGNATURE_BYTES) for signature in signatures)
    return f"a signature has 0 or {ED25519_SIGNATURE_BYTES} bytes" if wrong else ""


def encode_with_signature(canonical: bytes, signature: bytes) -> bytes:
    """Return the file of something that one aggregator alone has signed: its canonical bytes, then the signature."""
    return sized(canonical, 4) + signature


def read_with_signature(data: bytes, what: str, label: bytes, largest: int) -> tuple[bytes, bytes]:
    """Return canonical bytes, which begin with `label` if they are any, and signature of such a file.

    Raises:
        DecodeError: it is no such file.
    """
    reader = Reader(data, f"signed {what}", 4 + largest + ED25519_SIGNATURE_BYTES)
    canonical, signature = reader.sized(4, len(label), largest), reader.take(ED25519_SIGNATURE_BYTES)
    reader.finish()
    return canonical, signature
