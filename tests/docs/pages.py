"""Executes a page: writes its files, runs its commands, and compares their output.

A fence with a title (`python title="mine.py"`) is a file; `python` and `bash` are executed, in order. `text` is the
output of the block before it, with `...` in place of text that differs between runs; it is a refusal if it begins with
`raylfl: `. `sh` needs a Ray cluster, `console` is not executed.
"""

import doctest
import io
import re
import shlex
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from docs.notebooks import BLOCK
from raylfl.cli import main

OTHERS = ("text", "console", "toml", "bash", "python", "sh")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
UNSEEN = re.compile(r"^[-\d]{10} [:\d]{8} (getting ready: .*\n)?", re.MULTILINE)  # in a terminal
PROGRESS = re.compile(r"^round (\d+)/(?!\1 ).*\n", re.MULTILINE)  # the last round's line stays; a fast run has only it
Shell = Callable[[list[str]], tuple[int, str]]  # the words of a command -> its exit code and its output


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """(language, title, content) of every fence."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def raylfl(words: list[str]) -> tuple[int, str]:
    """A command of raylfl, in this process."""
    assert words[0] == "raylfl", words
    with redirect_stdout(io.StringIO()) as said, redirect_stderr(said):
        code = main(words[1:])
    return code, said.getvalue()


def carry_out(page: Path, folder: Path, shell: Shell = raylfl, languages: tuple[str, ...] = ("bash", "python")) -> int:
    """Executes a page in a folder, the working directory; returns the number of executed blocks."""
    names: dict[str, Any] = {"__name__": "page"}
    executed, found = 0, blocks(page)
    for (language, title, content), after in zip(found, [*found[1:], ("", "", "")], strict=True):
        shown = after[2] if after[0] == "text" else None
        if title:
            (folder / title).write_text(content)
        elif language in languages:
            refused = shown is not None and shown.startswith("raylfl: ")
            said = executed_python(content, names) if language == "python" else typed(content, shell, refused)
            if shown is not None:
                compare(shown, said, page)
            executed += 1
        else:
            assert language in OTHERS, f"{page.name}: a block of {language}"
    return executed


def typed(content: str, shell: Shell, fails: bool) -> str:
    """The output of a block's commands, one per line."""
    said = ""
    for words in filter(None, (shlex.split(line, comments=True) for line in content.splitlines())):
        code, text = shell(words)
        assert (code != 0) == fails, f"{shlex.join(words)} ended with {code}:\n{text}"
        said += text
    return said


def executed_python(content: str, names: dict[str, Any]) -> str:
    with redirect_stdout(io.StringIO()) as said:
        exec(compile(content, "page", "exec"), names)
    return said.getvalue()


def compare(shown: str, said: str, page: Path) -> None:
    """Fails unless the output of the command is the one on the page, with or without its lines of progress."""
    said = UNSEEN.sub("", said)
    texts = said, PROGRESS.sub("", said)
    fits = any(doctest.OutputChecker().check_output(shown, text, FLAGS) for text in texts)
    assert fits, f"{page.name} shows\n{shown}\nbut this is\n{said}"
