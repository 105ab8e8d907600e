"""`fleetcount publish` and `serve`: signed releases as static pages, and a small server for them on this machine.

Checks every signature before a page is written; the pages check again, in their reader's browser.
"""

from pathlib import Path
from typing import Final

import click
from fleetcount_protocol.errors import UsageError

from fleetcount.command.exits import one_line
from fleetcount.command.lazy import StrictCommand
from fleetcount.command.numbers import Count

_FILE: Final = click.Path(path_type=Path)


@click.command("publish", cls=StrictCommand)
@click.argument("directory", type=_FILE, metavar="DIR")
@click.option("--output", required=True, metavar="SITE", type=_FILE, help="A new folder, or an older site's.")
@click.option("--keys", metavar="TRUSTED.toml", type=_FILE, help="Whose signatures count: [[aggregators]] with keys.")
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
    from fleetcount.show.site_writing import check_address, write

    _check_places(directory, output)
    checked = check_address(address)
    found = write(directory, output, keys, title, checked)
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


@click.command("serve", cls=StrictCommand)
@click.argument("site", type=_FILE, metavar="SITE")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Listen here.")
@click.option("--port", type=Count(0, 65_535), default=8_000, show_default=True, help="0 takes a free one.")
def serve(site: Path, host: str, port: int) -> None:
    """Serve a site that 'fleetcount publish' wrote, with the headers it should have, until Ctrl-C.

    On this machine alone unless --host says otherwise. For the public, put SITE on any web server and give it the
    headers of docs/publishing.md.

    \b
    fleetcount serve site --port 0
    """
    from fleetcount_protocol.endpoint import is_loopback
    from fleetcount_site.publish.serve import check_site, site_routes
    from fleetcount_site.serving import listen, run, secured

    check_site(site)
    listener = listen(host, port)
    run(secured(site_routes(site), local=is_loopback(host)), listener, lambda address: click.echo(f"{site}: {address}"))
