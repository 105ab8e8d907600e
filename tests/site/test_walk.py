"""One walk through every page in one Chromium, as every run takes it; the rest of what a browser is asked is nightly.

Its tests are those of the pages' rooms: there each module starts a browser of its own, and all of it is nightly.
"""

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.site.conftest import Visit
from tests.site.console.conftest import configured, console, process, written
from tests.site.console.test_page import (
    test_a_part_that_changes_keeps_the_focus,
    visiting,
)
from tests.site.publish.conftest import kept, site
from tests.site.publish.test_site import (
    test_a_line_that_is_not_the_signed_one_is_called_so,
    test_a_long_question_in_many_scripts_shows_the_same,
    test_a_reader_by_keyboard_stays_at_a_row_whose_table_is_filled_again,
    test_a_region_is_summed_by_the_law_of_its_noise_by_hand_and_by_keyboard,
    test_a_release_page_is_made_from_the_signed_bytes,
    test_all_cells_together_are_shown_by_the_signed_total,
    test_every_page_is_whole_at_every_width,
    test_numbers_that_are_not_the_signed_ones_are_called_so,
    test_sums_of_a_table_are_joined_with_its_signed_margins,
    test_the_slider_the_line_and_the_table_show_one_window,
)
from tests.site.publish.test_sums import adding, test_the_interval_of_a_sum_is_that_of_python
from tests.site.test_pages import written as written_page
from tests.site.test_records_in_a_page import (
    reader,
    test_every_good_record_is_read_as_python_reads_it,
    test_every_good_window_is_read_with_its_labels,
    test_everything_that_python_refuses_is_refused,
    test_signatures_count_under_pinned_keys_alone,
)
from tests.site.test_report_map import report_page, test_a_report_from_a_file_draws_its_map_and_breaks_no_rule
from tests.site.watch.conftest import released, shown, window
from tests.site.watch.test_page import (
    test_a_record_that_does_not_verify_shows_no_number,
    test_the_release_is_shown_with_its_signatures_checked_here,
    visit,
)

__all__ = [
    "adding",
    "configured",
    "console",
    "kept",
    "process",
    "reader",
    "released",
    "report_page",
    "shown",
    "site",
    "test_a_line_that_is_not_the_signed_one_is_called_so",
    "test_a_long_question_in_many_scripts_shows_the_same",
    "test_a_part_that_changes_keeps_the_focus",
    "test_a_reader_by_keyboard_stays_at_a_row_whose_table_is_filled_again",
    "test_a_record_that_does_not_verify_shows_no_number",
    "test_a_region_is_summed_by_the_law_of_its_noise_by_hand_and_by_keyboard",
    "test_a_release_page_is_made_from_the_signed_bytes",
    "test_a_report_from_a_file_draws_its_map_and_breaks_no_rule",
    "test_all_cells_together_are_shown_by_the_signed_total",
    "test_every_good_record_is_read_as_python_reads_it",
    "test_every_good_window_is_read_with_its_labels",
    "test_every_page_is_whole_at_every_width",
    "test_everything_that_python_refuses_is_refused",
    "test_numbers_that_are_not_the_signed_ones_are_called_so",
    "test_signatures_count_under_pinned_keys_alone",
    "test_sums_of_a_table_are_joined_with_its_signed_margins",
    "test_the_interval_of_a_sum_is_that_of_python",
    "test_the_release_is_shown_with_its_signatures_checked_here",
    "test_the_slider_the_line_and_the_table_show_one_window",
    "visit",
    "visiting",
    "window",
    "written",
]

pytestmark = pytest.mark.processes

LONE = """fleetcount.drawLine(document.getElementById('map'), {data: {times: [0, 3600, 7200, 10800, 14400],
  estimates: [null, 50, null, 90, 94], low: [null, 20, null, 90, 94], high: [null, 80, null, 90, 94]}});"""


def test_a_script_in_the_page_does_not_run(browser: Browser, assets_folder: Path) -> None:
    found = written_page(assets_folder, "")
    found.write_text(found.read_text().replace("<h1>Map", "<script>document.title='taken'</script><h1>Map"))

    visited = Visit(browser, found.as_uri())

    assert visited.page.title() == "A <title>"
    assert any("script-src" in one for one in visited.complaints)
    visited.close()


def test_a_window_between_gaps_is_drawn_with_its_interval(browser: Browser, assets_folder: Path) -> None:
    visited = Visit(browser, written_page(assets_folder, LONE).as_uri())

    # The column of pixels beside the second of five times, where no grid line and no line of the plot is.
    painted = visited.page.evaluate(
        """() => {
          const over = document.querySelector("#map .u-over"), canvas = document.querySelector("#map canvas");
          const x = (over.offsetLeft + over.offsetWidth / 4 + 2) * devicePixelRatio;
          const column = canvas.getContext("2d").getImageData(x, 0, 1, canvas.height).data;
          return column.filter((part, place) => place % 4 === 3 && part > 0).length / canvas.height;
        }"""
    )

    assert 0.4 < painted < 0.7, "from 20 to 80 of about 100"
    assert visited.complaints == []
    visited.close()
