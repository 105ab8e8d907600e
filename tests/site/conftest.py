"""A browser for the tests of pages: Debian's Chromium, or the one that Playwright has; without either they skip."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page, sync_playwright


class Visit:
    """An open page with what it complained of and what it asked other hosts for; both must stay empty."""

    def __init__(self, browser: Browser, address: str, *, width: int = 1280, scheme: str = "light") -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        # Any: Playwright's own closed texts.
        chosen: Any = scheme
        self._context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=chosen)
        self.page: Page = self._context.new_page()
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.add_init_script(
            "addEventListener('securitypolicyviolation', e => console.error(e.violatedDirective + ' ' + e.blockedURI))"
        )
        self.page.goto(address)

    def close(self) -> None:
        """Leave the page."""
        self._context.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return a Chromium for the tests of a module: while Playwright runs, its event loop is in the way of any other."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        try:
            # No sandbox of its own: a container's root has none, and the pages are ours.
            started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        except Error as error:
            pytest.skip(f"no Chromium here (install Debian's chromium): {str(error).splitlines()[0]}")
        yield started
        started.close()


@pytest.fixture(scope="module")
def assets_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that all pages share, as a site has them; a test's own have names of their own."""
    from fleetcount_site.pages import ASSETS, assets

    folder = tmp_path_factory.mktemp("assets")
    for name, path in assets().items():
        target = folder / ASSETS / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return folder
