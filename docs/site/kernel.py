"""What every kernel of the gallery runs first: a shell cell shows its output in one piece and fails with its first
failing line."""

import subprocess

from IPython import get_ipython


def bash(_line: str, cell: str) -> None:
    """Run a cell in bash and print what it printed; a line that fails is an error of the notebook."""
    done = subprocess.run(  # noqa: S603 the cell is a page of ours
        ["bash", "-euo", "pipefail", "-c", cell],  # noqa: S607
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout, end="")
    done.check_returncode()


get_ipython().register_magic_function(bash, magic_kind="cell")
