#!/bin/sh
# grpcio 1.85.1: a certificate or a key that an editor saved with a byte order mark cannot be served, and what is said is
# that the address cannot be bound.
#
# Seen on Python 3.11 with grpcio 1.85.1 and cryptography 50.0.2. cryptography and Python's ssl module read a PEM text
# behind a byte order mark (EF BB BF): text before the first "-----BEGIN" is explanatory text (RFC 7468, section 2).
# add_secure_port with such a certificate chain or private key raises RuntimeError, "Failed to bind to address ...", on a
# port that is free; a channel whose roots are such a file never connects (UNAVAILABLE). Exits 0 while this is so, 1 when
# it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q grpcio==1.85.1 cryptography==50.0.2 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
GRPC_VERBOSITY=NONE "$folder/venv/bin/python" - "$folder" << 'PYTHON'
import datetime
import ipaddress
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PEM = serialization.Encoding.PEM
MARK = b"\xef\xbb\xbf"
NOW = datetime.datetime.now(datetime.timezone.utc)
folder = Path(sys.argv[1])

key = ec.generate_private_key(ec.SECP256R1())
name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "server")])
made = (
    x509.CertificateBuilder()
    .subject_name(name)
    .issuer_name(name)
    .public_key(key.public_key())
    .serial_number(x509.random_serial_number())
    .not_valid_before(NOW - datetime.timedelta(hours=1))
    .not_valid_after(NOW + datetime.timedelta(days=1))
    .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
    .sign(key, hashes.SHA256())
)
chain = made.public_bytes(PEM)
private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def bound(chain, private):
    """Return "" where a server takes the files, else what is said."""
    server = grpc.server(ThreadPoolExecutor(1))
    try:
        server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(private, chain)]))
        return ""
    except RuntimeError as error:
        return str(error)
    finally:
        server.stop(0)


def called(roots):
    """Return the name of the status of a call to a server that is there."""
    server = grpc.server(ThreadPoolExecutor(1))
    echo = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a", {"B": echo}),))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(private, chain)]))
    server.start()
    try:
        with grpc.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(roots)) as channel:
            channel.unary_unary("/a/B")(b"x", timeout=5)
        return "OK"
    except grpc.RpcError as error:
        return error.code().name
    finally:
        server.stop(0)


(folder / "chain").write_bytes(MARK + chain)
(folder / "key").write_bytes(MARK + private)
x509.load_pem_x509_certificate(MARK + chain)
serialization.load_pem_private_key(MARK + private, None)
ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(folder / "chain", folder / "key")
print(f"grpcio {grpc.__version__}")
print("cryptography and ssl: both files are read behind a byte order mark")

said = {"plain": bound(chain, private), "chain": bound(MARK + chain, private), "key": bound(chain, MARK + private)}
codes = {"plain": called(chain), "roots": called(MARK + chain)}
for what, text in said.items():
    print(f"grpc server, mark before {what}: {text.partition(';')[0] or 'bound'}")
for what, code in codes.items():
    print(f"grpc channel, mark before {what}: {code}")
same = (
    said["plain"] == ""
    and all(said[one].startswith("Failed to bind to address") for one in ("chain", "key"))
    and codes == {"plain": "OK", "roots": "UNAVAILABLE"}
)
sys.exit(0 if same else 1)
PYTHON
