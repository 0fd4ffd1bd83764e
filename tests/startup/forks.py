"""Pieces of code with common first lines, each in its own process: one process runs these lines and forks."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LEAN = "from raylfl.startup import lazy_imports; lazy_imports.install()\n"  # as `raylfl` does: 2.5 s less
PYTEST = [sys.executable, "-c", LEAN + "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"]
SERVER = """
def serve():
    import json, os, sys, traceback
    for line in sys.stdin:
        code, *files = json.loads(line)
        child = os.fork()
        if child == 0:
            status = 0
            for number, path in enumerate(files, 1):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
            try:
                exec(code, globals())
            except BaseException:
                traceback.print_exc()
                status = 1
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

serve()
"""


def python(code: str) -> str:
    """The output of `code`; the test fails with its stderr if the process fails."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextmanager
def forks_after(first: str, folder: Path) -> Iterator[Callable[[str], str]]:
    """`python(code)`: the output of code in a process that has run `first`; fails if the process fails."""
    server = subprocess.Popen(
        [sys.executable, "-c", first + SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    stdin, stdout, files = server.stdin, server.stdout, (folder / "out", folder / "err")

    def python(code: str) -> str:
        stdin.write(json.dumps([code, *map(str, files)]) + "\n")
        stdin.flush()
        status = stdout.readline().strip()
        out, err = (file.read_text() for file in files)
        for file in files:
            file.unlink()
        assert status == "0", err
        return out.strip()

    with server:
        yield python
        stdin.close()
