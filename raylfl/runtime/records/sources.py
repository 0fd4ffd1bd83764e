"""Digests of the source of a user's modules in sources.json, to say what has changed since a run was started."""

import ast
import hashlib
import inspect
import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from itertools import accumulate
from pathlib import Path
from typing import Any

from raylfl.config.objects import code_content
from raylfl.errors import is_own
from raylfl.runtime.records.files import read_plain

FILE = "sources.json"
UNREADABLE = OSError, ValueError, SyntaxError, RecursionError, MemoryError
LARGEST = 2**22  # bytes of a source file; a larger one is not read
DEFINITIONS = ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef

Sources = dict[str, dict[str, str]]  # module, or definition in it -> {"file", "name" in the file, "sha256"}


def sources_of(objects: Iterable[Any]) -> Sources:
    """The digests of the modules of these objects' classes, of their base classes, and of functions among them.

    The user's modules that these import, at any depth, have digests too. Python, installed packages and raylfl are left
    out, as their versions are recorded. Of the module `__main__` each class and function has a digest of its own. If
    there is no file, as in a notebook, it is of the compiled functions; its file is "".
    """
    digests: Sources = {}
    used: dict[str, Path] = {}  # module -> file
    for value in objects:
        value = getattr(value, "__func__", value)
        definition = value if isinstance(value, type) or inspect.isfunction(value) else type(value)
        for part in definition.__mro__ if isinstance(definition, type) else (definition,):
            file, name = _file_of(part), part.__qualname__
            if file is not None:
                used[part.__module__] = file
            if part.__module__ == "__main__":
                digest = None if file is None else digest_of(file, name)
                if not hasattr(sys.modules["__main__"], "__file__"):
                    digest = _digest_of_code(part)
                if digest is not None:
                    digests[f"__main__.{name}"] = {"file": str(file or ""), "name": name, "sha256": digest}
    for module, file in _with_imports(used).items():
        if module != "__main__" and (digest := digest_of(file)) is not None:
            digests[module] = {"file": str(file), "name": "", "sha256": digest}
    return dict(sorted(digests.items()))


def _with_imports(modules: Mapping[str, Path]) -> dict[str, Path]:
    """These modules and those of the user that they import, at any depth, with their files; none is imported here."""
    files: dict[str, Path] = {}
    waiting = list(modules.items())
    while waiting:
        module, file = waiting.pop()
        if module not in files:
            files[module] = file
            names = {
                above for name in _imported_by(module, file) for above in accumulate(name.split("."), "{}.{}".format)
            }
            specs = {name: spec for name in names if (spec := _spec_of(name)) is not None and spec.has_location}
            waiting += [(name, path) for name, spec in specs.items() if (path := _own(spec.origin)) is not None]
    return files


def _imported_by(module: str, file: Path) -> list[str]:
    """The module, and the absolute names in its imports, some of which may be names of functions or classes."""
    above = module if file.name == "__init__.py" else module.rpartition(".")[0]
    package = getattr(sys.modules.get(module), "__package__", None) or above
    names = [module]
    with suppress(*UNREADABLE):
        for name in _imports(_text(file)):
            with suppress(ImportError):  # a relative import that leaves its package
                names.append(resolve_name(name, package))
    return names


def _spec_of(module: str) -> ModuleSpec | None:
    """Where a module is, without an import of it or of a package above it; None if it is not found."""
    spec: ModuleSpec | None = getattr(sys.modules.get(module), "__spec__", None)
    if spec is not None or "." not in module:
        return spec or PathFinder.find_spec(module)
    above = _spec_of(module.rpartition(".")[0])
    folders = above and above.submodule_search_locations
    return PathFinder.find_spec(module, folders) if folders else None


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
        return _own(inspect.getsourcefile(part))
    except (TypeError, OSError):
        return None


def _own(file: str | None) -> Path | None:
    """The path of a source file, unless it belongs to Python, an installed package or raylfl."""
    path = None if file is None else Path(file).resolve()
    return path if path is not None and is_own(str(path)) else None


def digest_of(file: Path, name: str = "") -> str | None:
    """The sha256 of a class or function in a file, or else of the whole file; None if it cannot be read."""
    with suppress(*UNREADABLE):
        return _digest(_text(file), name)
    return None


def _text(file: Path) -> str:
    if not file.is_file() or file.stat().st_size > LARGEST:
        raise ValueError
    return file.read_text(encoding="utf-8")


@lru_cache(maxsize=256)  # small runs of a comparison would spend a tenth of their time on it
def _digest(text: str, name: str) -> str:
    """Of a whole file, comments, docstrings and layout do not count."""
    tree = ast.parse(text)
    nodes: list[Any] = [tree]
    for word in (part for part in name.split(".") if part not in ("", "<locals>")):
        nodes = [
            node for above in nodes for node in ast.walk(above) if isinstance(node, DEFINITIONS) and node.name == word
        ]
    if name and len(nodes) == 1:
        first = min(node.lineno for node in [nodes[0], *nodes[0].decorator_list])
        lines = text.splitlines()[first - 1 : nodes[0].end_lineno]
        return hashlib.sha256("\n".join(line.rstrip() for line in lines).encode()).hexdigest()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, *DEFINITIONS)) and ast.get_docstring(node, clean=False) is not None:
            node.body[0] = ast.Pass()
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()


@lru_cache(maxsize=256)
def _imports(text: str) -> tuple[str, ...]:
    """The names in the imports of a file, as they stand there: `a.b`, `..c` and, as it may be a module, `..c.name`."""
    names: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = "." * node.level + (node.module or "")
            names += [above, *(f"{above}{'.' * bool(node.module)}{alias.name}" for alias in node.names)]
    return tuple(names)


def read(folder: Path) -> Sources:
    """The content of sources.json in a run directory; empty if there is none, or if it is damaged."""
    try:
        content = json.loads(read_plain(folder / FILE))
        keys = "file", "name", "sha256"
        return {str(name): {key: str(one[key]) for key in keys} for name, one in dict(content).items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def today(saved: Sources) -> Sources:
    """The digests of the same modules, or classes in them, in the same files now, without those that cannot be read."""
    now = {name: digest_of(Path(one["file"]), one["name"]) for name, one in saved.items()}
    return {name: {**saved[name], "sha256": digest} for name, digest in now.items() if digest}


def changed_names(earlier: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The names that both have, with different digests; a digest of a file tells nothing about one of compiled code."""
    both = [(name, earlier[name], now[name]) for name in earlier if name in now]
    alike = [(name, a, b) for name, a, b in both if bool(a["file"]) == bool(b["file"])]
    return [name for name, a, b in alike if a["sha256"] != b["sha256"]]
