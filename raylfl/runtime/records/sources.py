"""Digests of the source of a user's classes in sources.json, to say what has changed since a run was started."""

import ast
import hashlib
import inspect
import json
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from raylfl.config.objects import code_content

FILE = "sources.json"
LARGEST = 2**22  # bytes of a source file; a larger one is not read
PACKAGE = Path(__file__).resolve().parents[2]
INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib"))

Sources = dict[str, dict[str, str]]  # class or function -> {"file", "name" in the file, "sha256"}


def sources_of(objects: Iterable[Any]) -> Sources:
    """The digests of the classes of these objects, of their base classes, and of functions among them.

    Python, installed packages and raylfl are left out, as their versions are recorded. Of code of `__main__` without a
    file, such as that of a notebook, the digest is of the compiled functions; its file is "".
    """
    digests: Sources = {}
    for value in objects:
        value = getattr(value, "__func__", value)
        definition = value if isinstance(value, type) or inspect.isfunction(value) else type(value)
        for part in definition.__mro__ if isinstance(definition, type) else (definition,):
            file = _file_of(part)
            digest = None if file is None else digest_of(file, part.__qualname__)
            if part.__module__ == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
                digest = _digest_of_code(part)
            if digest is not None:
                name = part.__qualname__
                digests[f"{part.__module__}.{name}"] = {"file": str(file or ""), "name": name, "sha256": digest}
    return dict(sorted(digests.items()))


def _digest_of_code(part: Any) -> str:
    """The sha256 of the compiled functions of a class, and of its constants; or of one function."""
    content: list[Any] = []
    for name, value in sorted((vars(part) if isinstance(part, type) else {part.__name__: part}).items()):
        value = getattr(value, "__func__", getattr(value, "fget", value))
        if inspect.isfunction(value):
            content.append((name, code_content(value.__code__)))
        elif isinstance(value, (bool, int, float, str)) and not name.startswith("__"):
            content.append((name, value))
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _file_of(part: Any) -> Path | None:
    try:
        name = inspect.getsourcefile(part)
    except (TypeError, OSError):
        return None
    path = None if name is None else Path(name).resolve()
    if path is None or path.is_relative_to(PACKAGE) or any(path.is_relative_to(folder) for folder in INSTALLED):
        return None
    return path


def digest_of(file: Path, name: str) -> str | None:
    """The sha256 of a class or function in a file, or else of the whole file; None if it cannot be read."""
    try:
        if not file.is_file() or file.stat().st_size > LARGEST:
            return None
        return _digest(file.read_text(encoding="utf-8"), name)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None


@lru_cache(maxsize=64)  # small runs of a comparison would spend a tenth of their time on it
def _digest(text: str, name: str) -> str:
    nodes: list[Any] = [ast.parse(text)]
    for word in (part for part in name.split(".") if part != "<locals>"):
        nodes = [
            node
            for above in nodes
            for node in ast.walk(above)
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == word
        ]
    lines = text.splitlines()
    if len(nodes) == 1:
        first = min(node.lineno for node in [nodes[0], *nodes[0].decorator_list])
        lines = lines[first - 1 : nodes[0].end_lineno]
    return hashlib.sha256("\n".join(line.rstrip() for line in lines).encode()).hexdigest()


def read(folder: Path) -> Sources:
    """The content of sources.json in a run directory; empty if there is none, or if it is damaged."""
    path = folder / FILE
    try:
        if path.is_symlink() or path.stat().st_size > LARGEST:
            return {}
        content = json.loads(path.read_text(encoding="utf-8"))
        keys = "file", "name", "sha256"
        return {str(name): {key: str(one[key]) for key in keys} for name, one in dict(content).items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def today(saved: Sources) -> Sources:
    """The digests of the same classes in the same files now, without those that cannot be read."""
    now = {name: digest_of(Path(one["file"]), one["name"]) for name, one in saved.items()}
    return {name: {**saved[name], "sha256": digest} for name, digest in now.items() if digest}


def changed_names(earlier: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The names that both have, with different digests; a digest of a file tells nothing about one of compiled code."""
    both = [(name, earlier[name], now[name]) for name in earlier if name in now]
    alike = [(name, a, b) for name, a, b in both if bool(a["file"]) == bool(b["file"])]
    return [name for name, a, b in alike if a["sha256"] != b["sha256"]]
