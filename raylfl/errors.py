"""Errors for the user, whose messages contain the key, its value and a remedy.

`Say` is the type of functions that print or note one line for the user.
"""

from __future__ import annotations

import difflib
import sysconfig
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

Say = Callable[[str], None]  # prints or notes one line for the user
NOTE = "raised at "
INSTALLED = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
# code that is not the user's
LIBRARIES = tuple(f"{place}/" for folder in (Path(__file__).parent, *INSTALLED) for place in (folder, folder.resolve()))


class RaylflError(Exception):
    """An error that ends a run with a message for the user (exit code 1)."""


class BadConfig(RaylflError):
    """One or several mistakes in a config (exit code 2).

    problems: one message per mistake.
    """

    def __init__(self, problems: str | Sequence[str]):
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class BadValue(BadConfig):
    """An invalid value in a config: `partition.classes=12, but must be 1..10 (dirichlet has no such bound)`.

    key: the option of the component that raises the error, to which `at` adds the component's place in the config.
    need: the text after "must be"; hint: a remedy.
    """

    def __init__(self, key: str, *, got: object, need: str, hint: str = ""):
        self.key, self.got, self.need, self.hint = key, got, need, hint
        tail = f" ({hint})" if hint else ""
        super().__init__(f"{key}={got}, but must be {need}{tail}")

    def at(self, place: str) -> BadValue:
        """A copy of this error with the place before the key: `classes` becomes `partition.classes` for "partition"."""
        key = f"{place}.{self.key}" if self.key else place
        return BadValue(key, got=self.got, need=self.need, hint=self.hint)

    def __reduce__(self) -> tuple[Any, ...]:  # pickle passes no keyword-only arguments
        return partial(BadValue, got=self.got, need=self.need, hint=self.hint), (self.key,)


@contextmanager
def placed(place: str) -> Iterator[None]:
    """A context that puts `place.` before the key of a BadValue; the top-level key num_clients stays as it is."""
    try:
        yield
    except BadValue as error:
        if error.key == "num_clients":
            raise
        raise error.at(place) from None


def did_you_mean(
    name: object, known: Iterable[str], otherwise: str = "", *, place: str = "", cutoff: float = 0.5
) -> str:
    """`did you mean NAME?` with the most similar of the known names; `otherwise` if none is similar enough.

    place: a prefix of NAME in the text, such as `local.`; `known` lacks it. cutoff: the least similarity, from 0 to 1.
    """
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=cutoff)
    return f"did you mean {place}{near[0]}?" if near else otherwise


def require_lists(**arguments: object) -> None:
    """Raises BadConfig for an argument that is a single string or object, where a list of them is needed.

    >>> require_lists(algorithms="fedavg,focus")
    Traceback (most recent call last):
    raylfl.errors.BadConfig: algorithms='fedavg,focus', but must be a list: algorithms=['fedavg', 'focus']
    """
    for name, value in arguments.items():
        if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
            entries = value.split(",") if isinstance(value, str) and not set(value) & set("[{") else [value]
            raise BadConfig(f"{name}={value!r}, but must be a list: {name}={entries!r}")


class UnusableConfig(BadConfig):
    """The error for a saved run whose config cannot be used here: its classes are missing, or not to be trusted."""


class DataMissing(BadConfig):
    """The error for missing or damaged files of a data set."""


class NonFinite(RaylflError):
    """The error for a non-finite loss or update, or for non-finite parameters of the server."""


class SomeDiverged(NonFinite):
    """The error for several runs of which some diverged, raised when the others are complete.

    run_dirs: the folders of all runs, in order. results: the results of those that did not diverge, in order.
    """

    def __init__(self, message: str, run_dirs: Sequence[Path], results: Sequence[Any]):
        super().__init__(message)
        self.run_dirs, self.results = list(run_dirs), list(results)


class ClientFailed(RaylflError):
    """The error for failed local work of a client; its message contains client, round and the original error."""


class RanksLost(RaylflError):
    """Raised if the processes of a worker, over which a model is sharded, cannot go on together."""


class CodeExited(Exception):
    """Raised in place of `sys.exit`, GeneratorExit and other exceptions that are no Exception, by code of the user."""


@contextmanager
def exits_as_errors() -> Iterator[None]:
    """A context, or a decorator, that raises CodeExited in place of an exception that would end the process.

    KeyboardInterrupt and exceptions of raylfl are left as they are. The new error has the traceback of the first.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        if type(error).__module__.partition(".")[0] == __package__:
            raise
        said = f"sys.exit({error}) was called" if isinstance(error, SystemExit) else f"{error!r} was raised"
        raise CodeExited(f"{said}, which would end the process").with_traceback(error.__traceback__) from None


def is_own(filename: str) -> bool:
    """Whether a file belongs to the user's code, not to Python, an installed package or raylfl."""
    return not filename.startswith(("<", *LIBRARIES))


def own_code(error: BaseException) -> str:
    """The innermost line of the user's code in the error's traceback: `mine.py:75, in server_step`; "" without one."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_own(frame.filename):
            return f"{Path(frame.filename).name}:{frame.lineno}, in {frame.name}"
    return ""


def note_own_code(error: BaseException) -> None:
    """Adds a note with the line of the user's code that raised the error, if there is such a line and no note yet.

    Pickling an error keeps its notes, but not its traceback. A RaylflError gets no note: its message is written for
    the user already.
    """
    if not isinstance(error, RaylflError) and not is_noted(error) and (place := own_code(error)):
        error.add_note(f"{NOTE}{place}")


def is_noted(error: BaseException) -> bool:
    """Whether the error has the note of `note_own_code`."""
    return any(note.startswith(NOTE) for note in getattr(error, "__notes__", ()))


def traceback_text(error: BaseException) -> str:
    """The error's traceback; its last line ends with the line of the user's code that raised the error, if any."""
    text, place = "".join(traceback.format_exception(error)).rstrip(), own_code(error)
    return f"{text} ({place})\n" if place else f"{text}\n"


def visible(text: str) -> str:
    """The text with escapes in place of characters that a terminal obeys, or does not show.

    >>> print(visible("a\x1b[31m\u202e"))
    a\\x1b[31m\\u202e
    """
    if text.isprintable():
        return text
    harmless = (c in "\n\t" or c.isprintable() or unicodedata.category(c) == "Zs" for c in text)
    return "".join(c if shown else ascii(c)[1:-1] for c, shown in zip(text, harmless, strict=True))


def headline(error: BaseException) -> str:
    """The first line of an error's message; the name of its class if the message is empty.

    >>> headline(ValueError("no clients\\n(see the log)")), headline(KeyboardInterrupt())
    ('no clients', 'KeyboardInterrupt')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]
