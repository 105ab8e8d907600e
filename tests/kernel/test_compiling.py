"""Where compiled code is kept, who may have written it, and what the log says of a first start."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleetcount_kernel import compiling, simd
from fleetcount_kernel.compiling import cache_directory, compiled, entry_point, make_ready


@pytest.fixture(autouse=True)
def fresh_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for variable in ("NUMBA_CACHE_DIR", "CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    cache_directory.cache_clear()
    yield
    cache_directory.cache_clear()


def test_the_directory_is_the_users_own_and_named_for_source_and_processor(tmp_path: Path) -> None:
    directory = cache_directory()

    assert directory is not None
    assert directory.parent == tmp_path / "home" / ".cache" / "fleetcount"
    assert directory.name.startswith("kernel-")
    assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("place", ["home", None])
def test_a_short_function_is_kept_where_there_is_a_place_and_compiled_where_there_is_none(
    place: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / place) if place else "/proc/none")

    def halved(number: float) -> float:
        return number / 2

    assert compiling.kept(halved)(5.0) == 2.5
    assert bool(list(tmp_path.rglob("*.nbc"))) == (place is not None)


@pytest.mark.parametrize("variable", ["NUMBA_CACHE_DIR", "CACHE_DIRECTORY", "XDG_CACHE_HOME"])
def test_the_environment_may_name_another_place(variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))

    directory = cache_directory()

    assert directory is not None
    assert directory.parent == tmp_path / "elsewhere" / "fleetcount"


def test_another_processor_has_another_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    here = cache_directory()
    monkeypatch.setattr(compiling._numba.config, "CPU_NAME", "generic")
    cache_directory.cache_clear()

    assert cache_directory() != here


@pytest.mark.parametrize("mode", [0o777, 0o720])
def test_a_directory_that_others_may_write_is_not_used(mode: int) -> None:
    directory = cache_directory()
    assert directory is not None
    directory.chmod(mode)
    cache_directory.cache_clear()

    assert cache_directory() is None


def test_a_directory_that_cannot_be_written_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write anything, so the answer of the system is stood in for.
    monkeypatch.setattr(os, "access", lambda *_: False)

    assert cache_directory() is None


def test_a_place_that_cannot_be_made_is_no_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))

    assert cache_directory() is None


def _twice(number: int) -> int:
    return 2 * number


def ready(caplog: pytest.LogCaptureFixture) -> tuple[Any, str]:
    """Make a new entry point ready; return it and what the log says."""
    caplog.clear()
    entry: Any = entry_point(_twice)
    with caplog.at_level(logging.WARNING, logger="fleetcount.kernel"):
        make_ready(entry, lambda: entry(1))
    assert entry(21) == 42
    return entry, caplog.text


def test_the_first_start_compiles_and_says_so_and_the_next_one_loads(caplog: pytest.LogCaptureFixture) -> None:
    first, said_first = ready(caplog)
    second, said_second = ready(caplog)

    assert "compiling _twice for this machine" in said_first
    assert "compiled _twice in" in said_first
    assert (sum(first.stats.cache_hits.values()), sum(second.stats.cache_hits.values())) == (0, 1)
    assert said_second == ""


def test_without_a_directory_every_start_compiles_and_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME")

    for _ in range(2):
        entry, said = ready(caplog)

        assert "no cache directory" in said
        assert sum(entry.stats.cache_hits.values()) == 0


def test_an_entry_point_that_is_ready_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    entry, _ = ready(caplog)

    make_ready(entry, lambda: pytest.fail("called again"))


def test_vectors_are_for_compiled_code_only() -> None:
    rows = None
    for call in (lambda: simd.splat(rows), lambda: simd.load(rows, 0), lambda: simd.rotate_left(rows, 1)):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="compiled code only"):
            call()


def test_a_vector_is_loaded_only_from_words() -> None:
    @compiled
    def read(rows: Any) -> None:
        simd.store(rows, 0, simd.load(rows, 1))

    with pytest.raises(Exception, match="load"):
        read([1, 2, 3])
