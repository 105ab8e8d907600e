"""`fleetcount verify`: which aggregators signed a release, from its file alone.

It reads files and prints names; it asks no aggregator.
"""

from pathlib import Path

import click
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.release import record_from_json, verify_record_signatures
from fleetcount_protocol.window.signing import TrustedAggregator
from fleetcount_transport.trust_files import read_succession, succeeded

from fleetcount.command.base import JSON, StrictCommand, show
from fleetcount.command.options import read_text
from fleetcount.read.readers import read_reader

_FILE = click.Path(path_type=Path)


@click.command(cls=StrictCommand)
@click.argument("release", type=_FILE, metavar="RELEASE.json")
@click.option("--config", type=_FILE, metavar="FILE", help="Of an analyst, device or aggregator: whom you trust.")
@click.option("--succession", "files", multiple=True, type=_FILE, metavar="FILE", help="A key's successor; in order.")
@JSON
def verify(release: Path, config: Path | None, files: tuple[Path, ...], as_json: bool) -> None:
    """Check the signatures of every aggregator under a release.

    Without --config the keys are those that the window in the release names: then all of them agree on it, and only
    those who know the window know who they are. Where an aggregator's signing key was succeeded in between, give the
    statement.

    Exit code 3 when a signature is missing or does not verify.
    """
    record, signatures = record_from_json(read_text(release))
    if config is None:
        trusted = {
            one.aggregator_id: TrustedAggregator(
                aggregator_id=one.aggregator_id, operator=one.operator, signing_public_key=one.signing_public_key
            )
            for one in record.window.aggregators
        }
    else:
        trusted = dict(read_reader(config).trusted)
    for path in files:
        name = read_succession(path).succession.aggregator_id
        if name not in trusted:
            raise UsageError(f"{path} is about aggregator {name!r}, which is not trusted")
        trusted[name] = succeeded(trusted[name], [path])
    verify_record_signatures(record, signatures, trusted)
    names = ", ".join(f"{one.aggregator_id} ({one.operator})" for one in record.window.aggregators)
    known = "all of them agree; who they are, the window says" if config is None else f"trusted by {config}"
    line = f"{release}: window {record.window_id.hex()[:12]} {record.window.name!r}, signed by {names}: {known}"
    found = {
        "question": record.window.name,
        "window_id": record.window_id.hex(),
        "signed_by": [str(one.aggregator_id) for one in record.window.aggregators],
        "trusted": config is not None,
    }
    show(found, [line], as_json=as_json)
