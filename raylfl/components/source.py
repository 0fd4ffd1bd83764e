"""The registrations in the source files of a package: names, summaries, papers and options.

Reading the source text lets configs be checked and components be listed without importing torch. An option whose type
cannot be resolved without an import counts as Any here: its value is checked when an instance of the class is created.
"""

import ast
import importlib
import inspect
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from raylfl.components import options

KNOWN = {**vars(typing), **vars(options)}  # names that an option's type may use


@dataclass(frozen=True)
class Declared:
    """A class that a source file registers by `@REGISTRY.register("name", paper=...)`; node: its definition."""

    name: str
    paper: str
    module: str
    node: ast.ClassDef

    def load(self) -> Any:
        return getattr(importlib.import_module(self.module), self.node.name)

    @property
    def summary(self) -> str:
        return first_line(ast.get_docstring(self.node))

    def options(self) -> dict[str, Any] | None:
        """Option -> declared type, of arguments of `__init__` or fields of a dataclass; None: it accepts any option."""
        line = list(_ancestry(self.module, self.node))
        for place, owner in line:
            for part in owner.body:
                if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                    own = [*part.args.args[1:], *part.args.kwonlyargs]
                    return None if part.args.kwarg else {a.arg: _type(a.annotation, place) for a in own}
        found: dict[str, Any] = {}
        for place, part in _fields(line):
            name = ast.unparse(part.target)
            found[name] = options.inherited(_type(part.annotation, place), found.get(name))
        return found


def first_line(docstring: str | None) -> str:
    """The first line of a docstring without its full stop."""
    return (docstring or "").strip().partition("\n")[0].rstrip(".")


def registered(package: str) -> Iterator[Declared]:
    """The classes registered in the files of a package, in the order of the file names."""
    for path in sorted(_path(package).glob("*.py")):
        module = f"{package}.{path.stem}"
        for node in _classes(module):
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and getattr(call.func, "attr", None) == "register":
                    given = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
                    yield Declared(ast.literal_eval(call.args[0]), given.get("paper", ""), module, node)


def _fields(line: Iterable[tuple[str, ast.ClassDef]]) -> Iterator[tuple[str, ast.AnnAssign]]:
    """Pairs (module, declaration) of every field of a dataclass; those of base classes come first."""
    for place, owner in reversed(list(line)):
        if any("dataclass" in ast.unparse(decorator) for decorator in owner.decorator_list):
            for part in owner.body:
                if isinstance(part, ast.AnnAssign) and not ast.unparse(part.annotation).startswith("ClassVar"):
                    yield place, part


def options_of_class(cls: type) -> dict[str, Any] | None:
    """Option -> declared type, for an imported class; None if the class accepts any option."""
    if is_dataclass(cls):
        hints = options.hints_of(cls)
        return {field.name: hints[field.name] for field in fields(cls) if field.init}
    if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(cls).parameters.values()):
        return None
    return options.arguments_of(cls)


def _ancestry(module: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
    """Pairs (module, class definition): the class itself, then its base classes defined in raylfl."""
    yield module, node
    imports = [part for part in _syntax(module).body if isinstance(part, ast.ImportFrom)]
    for base in map(ast.unparse, node.bases):
        names = [(str(i.module), a.name) for i in imports for a in i.names if base in (a.asname, a.name)]
        for place, name in [(module, base), *names]:
            for parent in _classes(place) if place.startswith("raylfl.") else ():
                if parent.name == name:
                    yield from _ancestry(place, parent)


def _classes(module: str) -> list[ast.ClassDef]:
    return [part for part in _syntax(module).body if isinstance(part, ast.ClassDef)]


@cache
def _syntax(module: str) -> ast.Module:
    path = _path(module)
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8"))


def _path(module: str) -> Path:
    """The path of a module or package of raylfl, or of `papers` beside it, without the suffix .py."""
    return Path(__file__).parents[2].joinpath(*module.split("."))


def _type(annotation: ast.expr | None, module: str) -> Any:
    """The type of an annotation in this module, with aliases of raylfl's modules; Any if it needs an import."""
    known = dict(KNOWN)
    for _ in range(10):
        try:
            return options.nullable(eval(ast.unparse(annotation), known)) if annotation is not None else Any
        except NameError as unknown:
            alias = _alias(str(unknown.name), module)
            if alias is None:
                return Any
            known[str(unknown.name)] = _type(alias, module)
        except (AttributeError, TypeError):
            return Any
    return Any


def _alias(name: str, module: str) -> ast.expr | None:
    for part in _syntax(module).body:
        if isinstance(part, ast.Assign) and [ast.unparse(target) for target in part.targets] == [name]:
            return part.value
        if isinstance(part, ast.ImportFrom) and any(alias.name == name for alias in part.names):
            return _alias(name, str(part.module)) if str(part.module).startswith("raylfl.") else None
    return None
