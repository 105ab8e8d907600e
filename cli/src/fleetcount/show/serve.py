"""`fleetcount serve`: a small server of this machine for pages that `fleetcount publish` wrote.

It must not change a page.
"""

from pathlib import Path

import click
from fleetcount_protocol.ids import is_loopback
from fleetcount_site.publish.serve import check_site, site_routes
from fleetcount_site.serving import listen, run, secured

from fleetcount.command.base import StrictCommand
from fleetcount.command.options import PATH, Count


@click.command("serve", cls=StrictCommand)
@click.argument("site", type=PATH, metavar="SITE")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Listen here.")
@click.option("--port", type=Count(0, 65_535), default=8_000, show_default=True, help="0 takes a free one.")
def serve(site: Path, host: str, port: int) -> None:
    """Serve a site that 'fleetcount publish' wrote, with the headers it should have, until Ctrl-C.

    On this machine alone unless --host says otherwise. For the public, put SITE on any web server and give it the
    headers of docs/publishing.md.

    \b
    fleetcount serve site --port 0
    """
    check_site(site)
    listener = listen(host, port)
    run(secured(site_routes(site), local=is_loopback(host)), listener, lambda address: click.echo(f"{site}: {address}"))
