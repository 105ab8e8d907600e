"""Every decoder under bytes that nobody foresaw, guided by coverage: a value or a named refusal, and nothing else.

    python -m tests.support.fuzz_decoders --seconds 60 [DECODER ...]

atheris (libFuzzer) mutates what the vectors hold; where it is not installed (it has no wheel for every machine) a plain
loop of our own does. Then the run says so, and is guided by the rules that refuse and not by coverage. What a decoder
takes must be written again as the same bytes. A finding ends the run with code 1 and is kept in `tests/vectors/found/`,
where a test replays it for ever. For tests only.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final, get_type_hints

from fleetcount_evidence.replay.decoders import Decoder, decoders
from fleetcount_protocol.errors import PeerError
from fleetcount_protocol.ids import AggregatorId, QuestionId, SessionId, UserName, WindowId
from fleetcount_protocol.v1.peer_pb2 import SealSetRequest
from fleetcount_protocol.vdaf.prio3 import prio3_two_round
from fleetcount_protocol.wire import topics

ROOT: Final = Path(__file__).resolve().parents[2]
VECTORS: Final = ROOT / "tests" / "vectors"
FOUND: Final = VECTORS / "found"
LARGEST: Final = 1 << 16
"""Bytes of one input: beyond, decoders only repeat what they did before."""
SLOW_S: Final = 5.0
"""Seconds that no decoder may take for an input, on any machine."""
_SEEDS: Final = 8
"""Seeds of a decoder in the first corpus."""
_ROUND: Final = 500
"""Mutations of a decoder before it is the next one's turn."""
_ARGUMENTS: Final[Mapping[type, object]] = {
    str: "fleet",
    int: 1,
    AggregatorId: AggregatorId("alpha"),
    QuestionId: QuestionId(bytes(range(32))),
    SessionId: SessionId(bytes(range(16))),
    UserName: UserName("device-1"),
    WindowId: WindowId(bytes(range(32))),
}
"""What topics are written for."""


class Finding(AssertionError):
    """Bytes that end in something else than a value or a refusal: what happened, the decoder's name, the bytes."""


def check(decoder: Decoder, data: bytes) -> str:
    """Return "taken" or the rule that refused.

    Raises:
        Finding: neither happened, or too slowly.
    """
    started = time.process_time()
    try:
        value = decoder.decode(data)
    except PeerError as error:
        ended = rule_of(error)
    except Exception as error:
        raise Finding(f"{decoder.name}: {type(error).__name__}: {error}", decoder.name, data) from error
    else:
        if decoder.again is not None and decoder.again(value) != data:
            raise Finding(f"{decoder.name} takes a second spelling of a value", decoder.name, data)
        ended = "taken"
    if (took := time.process_time() - started) > SLOW_S:
        raise Finding(f"{decoder.name} took {took:.1f} s for {len(data)} bytes", decoder.name, data)
    return ended


def rule_of(error: BaseException) -> str:
    """Return where in the protocol's code a refusal was decided: file, function and line."""
    frames = list(way_of(error))
    deciding = [frame for frame in frames if frame[1] not in {"require", "_expect"}] or frames
    return ":".join(map(str, deciding[-1] if deciding else ("elsewhere",)))


def way_of(error: BaseException) -> Iterator[tuple[str, str, int]]:
    """Yield file, function and line of the protocol's code that an error passed, what it came from last."""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        _, inside, path = code.co_filename.rpartition("/fleetcount_")
        if inside:
            yield path, code.co_name, traceback.tb_lineno
        traceback = traceback.tb_next
    if (cause := error.__cause__ or error.__context__) is not None:
        yield from way_of(cause)


@cache
def _valid_bytes() -> tuple[bytes, ...]:
    """Return every piece of bytes and every text of the vectors, but those that must be refused."""
    found: set[bytes] = set()

    def walk(value: object) -> None:
        if isinstance(value, dict):
            for name, part in value.items():
                if name == "json" and isinstance(part, str):
                    found.add(part.encode())
                elif name != "bad":
                    walk(part)
        elif isinstance(value, list):
            for part in value:
                walk(part)
        elif isinstance(value, str):
            with contextlib.suppress(ValueError):
                found.add(bytes.fromhex(value))

    for path in sorted((VECTORS / "wire").glob("*.json")):
        walk(json.loads(path.read_text()))
    return tuple(sorted(found, key=lambda one: (len(one), one)))


@cache
def seeds(name: str) -> tuple[bytes, ...]:
    """Return bytes that a decoder takes, the shortest first: of the vectors, or made for it where they hold none."""
    decoder = decoders()[name]
    return tuple(one for one in (*_valid_bytes(), *_made(name)) if one and _takes(decoder, one))


def _takes(decoder: Decoder, data: bytes) -> bool:
    try:
        decoder.decode(data)
    except PeerError:
        return False
    return True


def _made(name: str) -> Iterator[bytes]:
    """Yield what no vector holds: a topic, the parts of one report, a set in one chunk."""
    writers = [value for place, value in vars(topics).items() if place[0] != "_" and place.endswith("_topic")]
    for write in writers if name == "topic" else ():
        if write is not topics.parse_topic:
            hints = get_type_hints(write)
            yield write(*(_ARGUMENTS[kind] for part, kind in hints.items() if part != "return")).encode()
    if name == "seal_set_chunk":
        ids = b"".join(bytes([number]) * 16 for number in range(1, 4))
        yield SealSetRequest(window_id=bytes(32), accepted=ids).SerializeToString()
    if name == "seal_set_head":
        yield SealSetRequest(window_id=bytes(32), leaf_digests=bytes(range(256)) * 32).SerializeToString()
    prio3 = prio3_two_round(3, 2)
    nonce, rand = bytes(prio3.nonce_size), bytes(range(prio3.rand_size))
    public, shares = prio3.shard(b"", (0, 2), nonce, rand)
    for number, share in enumerate(shares):
        state, verifier_share = prio3.verify_init(bytes(32), b"", number, nonce, public, share)
        yield from (share, state.encode(), verifier_share, bytes(len(verifier_share)))
    yield prio3.encode_output_share([1, 2])


def mutated(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """Return the bytes with one to four changes: bits, bytes, numbers, cuts, repeats, parts of other inputs."""
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        place = draw.randrange(len(found) + 1)
        kind = draw.randrange(11)
        if kind == 0 and found:
            found[place % len(found)] ^= 1 << draw.randrange(8)
        elif kind == 1 and found:
            found[place % len(found)] = draw.choice((0, 1, 2, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        elif kind == 2:
            del found[place : place + draw.choice((1, 1, 2, 4, 8, 32, len(found)))]
        elif kind == 3:
            found[place:place] = draw.randbytes(draw.choice((1, 1, 2, 4, 8)))
        elif kind == 4:
            size = draw.choice((1, 2, 4, 8))
            step = draw.choice((-1, 1)) << draw.randrange(8 * size)
            number = int.from_bytes(found[place : place + size]) + step
            found[place : place + size] = (number % (1 << 8 * size)).to_bytes(size)
        elif kind == 5:
            end = place + draw.choice((1, 2, 8, 34, 64))
            found[place:place] = found[place:end] * draw.choice((1, 1, 2, 40))
        elif kind == 6:
            size = draw.choice((1, 2, 4, 8, 16, 32))
            found[place : place + size] = draw.choice((b"\0", b"\xff")) * size
        elif kind == 7:
            other = draw.choice(others)
            start = draw.randrange(len(other) + 1)
            found[place : place + draw.choice((0, 8, 64))] = other[start : start + draw.choice((1, 8, 64, 512))]
        elif kind == 8:  # Where the same fields lie at the same places, another one's.
            other = draw.choice(others)
            size = draw.choice((1, 2, 4, 8, 16, len(found)))
            found[place : place + size] = other[place : place + size]
        elif kind == 9 and found:  # A part again at another place, or in the place of another.
            size = draw.choice((1, 2, 4, 8, 16, 32, 64))
            start = draw.randrange(len(found))
            found[place : place + draw.choice((0, size))] = found[start : start + size]
        else:
            found += draw.randbytes(draw.choice((1, 2, 8)))
    return bytes(found[:LARGEST])


def search(name: str, tries: int, draw: random.Random, firsts: Iterable[bytes] = ()) -> dict[str, bytes]:
    """Return, for each rule of a decoder that `firsts` or mutations reached, the shortest bytes that it refused.

    Raises:
        Finding: see `check`.
    """
    decoder, pool = decoders()[name], [*seeds(name), b""]
    found: dict[str, bytes] = {}
    for data in chain(pool[:], firsts, (mutated(draw.choice(pool), pool, draw) for _ in range(tries))):
        rule = check(decoder, data)
        if rule != "taken" and (rule not in found or len(data) < len(found[rule])):
            if rule not in found:
                pool.append(data)
            found[rule] = data
    return found


def guided(names: Sequence[str], seconds: float) -> tuple[bytes, str]:
    """Run atheris over some decoders; return what it found, decoder's place first, or nothing, and its figures.

    Raises:
        subprocess.CalledProcessError: it ended otherwise; its output says why.
    """
    with tempfile.TemporaryDirectory() as directory:
        corpus, artifacts = Path(directory) / "corpus", Path(directory) / "found-"
        corpus.mkdir()
        for place, name in enumerate(names):
            for number, seed in enumerate(seeds(name)[:_SEEDS]):
                (corpus / f"{name}-{number}").write_bytes(bytes([place]) + seed[: LARGEST - 1])
        options = [f"-max_total_time={seconds:.0f}", f"-artifact_prefix={artifacts}", "-timeout=60", "-verbosity=1"]
        command = [sys.executable, "-m", "tests.support.fuzz_guided", *options, "-print_final_stats=1", str(corpus)]
        done = subprocess.run(
            [*command, "--", *names],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        covered = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", done.stderr)
        tries = re.search(r"number_of_executed_units: (\d+)", done.stderr)
        if found := list(Path(directory).glob("found-*")):
            return found[0].read_bytes(), done.stderr
        if done.returncode != 0 or not covered or tries is None:
            raise subprocess.CalledProcessError(done.returncode, command, stderr=done.stderr[-2000:])
        edges, features, inputs = covered[-1]
        return b"", f"{int(tries[1]):,} inputs, {edges} edges, {features} features, {inputs} kept"


def unguided(names: Sequence[str], seconds: float) -> str:
    """Search decoder after decoder until the time is over, without coverage; return the figures.

    Raises:
        Finding: see `check`.
    """
    end, draw, tries, rules = time.monotonic() + seconds, random.Random(), 0, set[str]()
    while time.monotonic() < end:
        for name in names:
            rules |= set(search(name, _ROUND, draw))
            tries += _ROUND
    return f"{tries:,} inputs, {len(rules)} rules reached"


def keep(name: str, data: bytes, folder: Path = FOUND) -> Path:
    """Keep what was found as a vector; return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}.json"
    path.write_text(json.dumps({"decoder": name, "data": data.hex()}) + "\n")
    return path


def main(arguments: Sequence[str], folder: Path = FOUND) -> int:
    """Fuzz for a while; return 0 when nothing was found, 1 when something was, 2 for a wrong command."""
    parser = argparse.ArgumentParser(prog="fuzz", description="Fuzz every decoder of the protocol.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--unguided", action="store_true", help="the plain loop also where atheris is there")
    parser.add_argument("decoders", nargs="*", metavar="DECODER", help="some of them (all)")
    options = parser.parse_args(arguments)
    if unknown := set(options.decoders) - set(decoders()):
        parser.error(f"no decoder is called {', '.join(sorted(unknown))}; there are {', '.join(decoders())}")
    names = options.decoders or list(decoders())
    has_atheris = importlib.util.find_spec("atheris") is not None
    if not has_atheris:
        print("fuzz: atheris is not installed: NOT guided by coverage, only by the rules that refuse", file=sys.stderr)
    try:
        if has_atheris and not options.unguided:
            found, figures = guided(names, options.seconds)
            if found:
                raise Finding(figures[-1500:], names[found[0]], found[1:])
        else:
            figures = unguided(names, options.seconds)
    except Finding as error:
        path = keep(*error.args[1:], folder)
        print(f"fuzz: {error.args[0]}\nfuzz: kept in {path}", file=sys.stderr)
        return 1
    print(f"fuzz: {len(names)} decoders, {options.seconds:.0f} s: {figures}; nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
