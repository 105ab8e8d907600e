"""The routes of a published site, for `fleetcount serve`: its files, and nothing outside its folder.

It must not list folders or follow links out of the site.
"""

from pathlib import Path

from fleetcount_protocol.errors import UsageError
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles

from fleetcount_site.publish.site import MARK


def check_site(site: Path) -> None:
    """Refuse a folder that is no site.

    Raises:
        UsageError: it is missing, or was not written by `fleetcount publish`.
    """
    if not (site / MARK).is_file():
        raise UsageError(f"{site} is no site; 'fleetcount publish' writes one")


def site_routes(site: Path) -> list[BaseRoute]:
    """Return the routes of a site; the address of a folder gives its index.html."""
    return [Mount("/", StaticFiles(directory=site, html=True, follow_symlink=False))]
