"""Why another party was not reached, in words: refused, hung up, host unknown, TLS failed, not authorised, timed out.

For logs and errors, from the libraries' texts. It must not quote a text of a gRPC peer, which may be anything.
"""

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import grpc

_MOST_CHARACTERS: Final = 200
_TIMED_OUT: Final = "timed out"
_HUNG_UP: Final = "hung up during the handshake: it may not accept this certificate"
_DENIED: Final = "not authorised: this certificate is denied there, or is none of whom it serves"
_WORDS: Final = (
    # In TLS 1.3 a server refuses a client's certificate after the client's last word, so gRPC sees a closed socket.
    (_HUNG_UP, re.compile(r"failed to connect.*(socket closed|handshake read failed|reset by peer|broken pipe)", re.I)),
    # So does a broker that closes before it has said whether it lets a client in (`mqtt_connection`).
    (_HUNG_UP, re.compile(r"the broker closed the connection")),
    ("refused: nothing listens there", re.compile(r"connection refused", re.IGNORECASE)),
    ("host unknown", re.compile(r"name or service|domain name|resolving|name resolution|getaddrinfo|nodename", re.I)),
    ("not authorised", re.compile(r"not authori[sz]ed|bad user name|code:13[45]", re.IGNORECASE)),
    ("TLS failed: its certificate is not yet valid by this clock", re.compile(r"certificate is not yet valid", re.I)),
    ("TLS failed: its certificate has ended by this clock", re.compile(r"certificate has expired", re.I)),
    ("TLS failed: its certificate is not accepted here", re.compile(r"certificate.verify.failed|hostname verif", re.I)),
    ("TLS failed: it does not accept this certificate", re.compile(r"alert.*(ca|certificate)\b", re.I)),
    ("TLS failed", re.compile(r"ssl|tls|certificate|hostname verification", re.I)),
    ("no route there", re.compile(r"unreachable|no route", re.IGNORECASE)),
    (_TIMED_OUT, re.compile(r"did not answer within|timed? ?out", re.IGNORECASE)),
)
_CODES: Final = {
    "deadline_exceeded": _TIMED_OUT,
    "unauthenticated": "not authorised",
    "permission_denied": "not authorised",
}


def broker_reason(error: BaseException) -> str:
    """Return why an MQTT connection ended: a word for it, and the library's own text of at most 200 characters.

    The text is from the operating system, from OpenSSL or for a code of the broker: it has no login.
    """
    text = str(error)[:_MOST_CHARACTERS] or type(error).__name__
    word = _word_of(text)
    return text if not word or text.startswith(word) else f"{word} ({text})"


def call_reason(error: "grpc.aio.AioRpcError", certificate: str = "") -> str:
    """Return why a gRPC call failed: its code, with a word for the cause if known, as in "unavailable (TLS failed)".

    Of a far end that hung up during the handshake, or that does not serve the caller, it says that this may be for the
    caller's certificate, which `certificate` describes (`TlsFiles.described`), "" for none.
    """
    code = error.code().name.lower()
    # Only of an unavailable peer is the text the library's own; other texts may be the peer's.
    word = _CODES.get(code) or (_word_of(error.details() or "") if code == "unavailable" else "")
    if certificate and code == "permission_denied":
        word = _DENIED
    if certificate and word in {_HUNG_UP, _DENIED}:
        word = f"{word} ({certificate})"
    return f"{code} ({word})" if word else code


def _word_of(text: str) -> str:
    return next((word for word, found in _WORDS if found.search(text)), "")
