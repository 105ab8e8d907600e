"""`fleetcount publish`: signed releases as static pages.

Checks every signature before a page is written; the pages check again, in their reader's browser. A site is written as
a whole into a folder beside its place: on any error the old one, or nothing, stays.
"""

import contextlib
import secrets
import shutil
from collections.abc import Generator
from pathlib import Path
from urllib.parse import urlsplit

import click
from fleetcount_protocol.errors import MachineError, QuestionError, SignatureError, UsageError
from fleetcount_site.publish.site import MARK, write_entry, write_site

from fleetcount.analyst.keys import read_keys
from fleetcount.command.base import StrictCommand, one_line
from fleetcount.command.options import PATH, check_output_directory
from fleetcount.show.site_sources import sources_of


@click.command("publish", cls=StrictCommand)
@click.argument("directory", type=PATH, metavar="DIR")
@click.option("--output", required=True, metavar="SITE", type=PATH, help="A new folder, or an older site's.")
@click.option("--keys", metavar="TRUSTED.toml", type=PATH, help="Whose signatures count: [[aggregators]] with keys.")
@click.option("--title", default="Released counts", show_default=True, metavar="TEXT", help="Of the first page.")
@click.option("--address", metavar="URL", help="Where SITE will be on the web, for links in its feeds.")
def publish(directory: Path, output: Path, keys: Path | None, title: str, address: str | None) -> None:
    """Write static pages of the releases in DIR: maps with a slider, lines, regions, tables, files, feeds.

    DIR is what 'fleetcount question release' keeps of a question, or holds several such folders and release files.
    Every signature and chain is checked before SITE appears; each page checks its records again in the reader's
    browser, with --keys against the keys of TRUSTED.toml (an analyst's configuration is one too). Without --keys a page
    can only say that a record agrees with itself. SITE needs no server: any web server will do, or a double click.

    \b
    fleetcount question release --question map.question --config analyst.toml --output got
    fleetcount publish got --output site --keys analyst.toml
    fleetcount serve site
    """
    _check_places(directory, output)
    checked = _check_address(address)
    found = _write(directory, output, keys, title, checked)
    for line in found:
        click.echo(one_line(line))


def _check_places(directory: Path, output: Path) -> None:
    """Refuse an output that would mix with what it is made from.

    Raises:
        UsageError: one of the two lies in the other.
    """
    source, target = directory.resolve(), output.resolve()
    if source == target or source in target.parents or target in source.parents:
        raise UsageError(f"--output {output} lies in {directory} or around it; choose a folder beside it")


def _write(directory: Path, output: Path, keys: Path | None, title: str, address: str) -> list[str]:
    """Write a site of everything in a directory; return what is said about it.

    Raises:
        UsageError: nothing to publish, files that cannot be used, or an output that is no site.
        SignatureError, CheckFailedError: what does not verify.
        MachineError: the disk does not take it.
    """
    _check_output(output)
    sources = sources_of(directory, None if keys is None else read_keys(keys).trusted)
    with _stage(output) as stage:
        entries = []
        for source in sources:
            try:
                entry = source.entry(stage / source.slug)
            except (SignatureError, QuestionError) as error:  # Of a folder of many it matters which.
                raise type(error)(f"{source.path}: {error}") from error
            write_entry(stage / source.slug, entry, f"{address}{source.slug}/" if address else "")
            entries.append(entry)
        write_site(stage, title, entries)
        pages = sum(1 for _ in stage.rglob("*.html"))
        size = sum(path.stat().st_size for path in stage.rglob("*") if path.is_file())
    windows = sum(len(entry.windows) for entry in entries)
    who = "no keys are pinned: its pages can only say that records agree with themselves"
    return [
        f"{output}: {windows:,} signed releases on {pages} pages, {size / 2**20:,.1f} MB; every signature checked",
        f"open {output / 'index.html'}, or: fleetcount serve {output}",
        *([who] if keys is None else [f"its pages pin the keys of {keys}"]),
    ]


def _check_address(address: str | None) -> str:
    """Return the address of a site's folder on the web, ending in "/"; "" where no address is given.

    Raises:
        UsageError: it is no http or https address.
    """
    if address is None:
        return ""
    try:
        parts = urlsplit(address)
    except ValueError:
        parts = urlsplit("")
    good = parts.scheme in ("http", "https") and parts.netloc and not (parts.query or parts.fragment)
    if not good or not address.isprintable() or " " in address:
        raise UsageError(f"--address is {address[:80]!r}, allowed: one as in https://example.org/counts/")
    return address if address.endswith("/") else address + "/"


def _check_output(output: Path) -> None:
    check_output_directory(output)
    if output.exists() and any(output.iterdir()) and not (output / MARK).is_file():
        raise UsageError(f"output {str(output)!r} is not empty and no site of fleetcount; choose a new folder")


@contextlib.contextmanager
def _stage(output: Path) -> Generator[Path]:
    """Give a hidden folder beside the output, which takes its place at the end."""
    target = output.absolute()
    stage = target.parent / f".{target.name}.{secrets.token_hex(4)}"
    old = stage.with_name(stage.name + ".old")
    try:
        stage.mkdir(parents=True)
        yield stage
        if target.exists():
            target.replace(old)
        stage.replace(target)
    except OSError as error:
        if old.exists() and not target.exists():
            old.replace(target)
        raise MachineError(f"output {str(output)!r} cannot be written: {error.strerror or error}") from error
    finally:
        for path in (stage, old):
            shutil.rmtree(path, ignore_errors=True)
