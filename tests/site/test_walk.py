"""One walk through every page in one Chromium, as every run takes it; the rest of what a browser is asked is nightly.

Its tests are those of the pages' rooms: there each module starts a browser of its own, and all of it is nightly.
"""

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.site.conftest import Visit
from tests.site.test_pages import written as written_page

pytestmark = pytest.mark.processes


def test_a_script_in_the_page_does_not_run(browser: Browser, assets_folder: Path) -> None:
    found = written_page(assets_folder, "")
    found.write_text(found.read_text().replace("<h1>Map", "<script>document.title='taken'</script><h1>Map"))

    visited = Visit(browser, found.as_uri())

    assert visited.page.title() == "A <title>"
    assert any("script-src" in one for one in visited.complaints)
    visited.close()
