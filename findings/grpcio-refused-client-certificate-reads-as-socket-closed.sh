#!/bin/sh
# grpcio 1.85.1: a client whose certificate the server refuses reads of a lost connection, and nothing of a certificate.
#
# Seen on Python 3.11 with grpcio 1.85.1 and cryptography 50.0.2: a server that requires clients' certificates, and a
# caller with a valid one of another authority. The call ends with UNAVAILABLE, "failed to connect to all addresses; last
# error: UNAVAILABLE: ipv4:...: Socket closed", as where a connection is lost. In TLS 1.3 the server judges the client's
# certificate after the client's last word: for the client the handshake has succeeded, and the alert that follows is not
# passed on. A caller that refuses the server's certificate does read so ("Tls handshake failed ...
# CERTIFICATE_VERIFY_FAILED"). Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q grpcio==1.85.1 cryptography==50.0.2 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
GRPC_VERBOSITY=NONE "$folder/venv/bin/python" - << 'PYTHON'
import datetime
import ipaddress
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PEM = serialization.Encoding.PEM
NOW = datetime.datetime.now(datetime.timezone.utc)


def certificate(name, issuer=None, issuer_key=None):
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - datetime.timedelta(hours=1))
        .not_valid_after(NOW + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(issuer is None, None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key if issuer_key is None else issuer_key, hashes.SHA256())
    )
    return made, key


def pem(made):
    return made.public_bytes(PEM)


def private(key):
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


(ours, ours_key), (theirs, theirs_key) = certificate("ours"), certificate("theirs")
server_files, friend, foreign = certificate("server", ours, ours_key), certificate("friend", ours, ours_key), certificate("foreign", theirs, theirs_key)
handler = grpc.method_handlers_generic_handler("a", {"B": grpc.unary_unary_rpc_method_handler(lambda request, _: request)})
server = grpc.server(ThreadPoolExecutor(2))
server.add_generic_rpc_handlers((handler,))
pair = (private(server_files[1]), pem(server_files[0]))
port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair], pem(ours), require_client_auth=True))
server.start()


def call(trusted, own):
    files = grpc.ssl_channel_credentials(pem(trusted), private(own[1]), pem(own[0]))
    with grpc.secure_channel(f"127.0.0.1:{port}", files) as channel:
        try:
            return channel.unary_unary("/a/B")(b"x", timeout=10), ""
        except grpc.RpcError as error:
            return error.code().name, error.details()


answered, refused, refusing = call(ours, friend), call(ours, foreign), call(theirs, friend)
server.stop(None)
print(f"grpcio {grpc.__version__}")
print("accepted:", answered)
print("its certificate is refused:", refused)
print("it refuses the server's:", refusing)
words = ("certificate", "handshake", "ssl", "tls")
as_seen = (
    answered == (b"x", "")
    and refused[0] == refusing[0] == "UNAVAILABLE"
    and not any(word in refused[1].lower() for word in words)
    and "CERTIFICATE_VERIFY_FAILED" in refusing[1]
)
sys.exit(0 if as_seen else 1)
PYTHON
