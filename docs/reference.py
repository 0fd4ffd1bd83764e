"""The generated parts of the pages in docs/: tables of keys, options, components, configs, hooks and commands.

    python docs/reference.py            # rewrites them
    python docs/reference.py --lines    # counts the lines of each page that are written by hand

A part stands between `<!-- KIND: NAME -->` and `<!-- end -->`; all other text of a page stays as it is. `keys` and
`options` come from annotations and docstrings, `components` from docstrings, `configs` from the first lines of the
files in conf/, `hooks` from the table of Lightning's hooks, `commands` from the parser's `--help`, and `value` is a
constant of the code (`<!-- value: core.vectorized.LARGEST -->`), `count` a number of components, both within a line.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from inspect import Parameter, cleandoc, get_annotations, getdoc, getsource, signature
from pathlib import Path
from typing import Any

import yaml

from raylfl.cli import parser
from raylfl.components.options import doc_of, hints_of, options_of_class, words
from raylfl.config.groups.top import TopConfig
from raylfl.config.registries import REGISTRIES
from raylfl.config.schema import FIXED_GROUPS
from raylfl.runtime.workers.hooks import HOOKS
from raylfl.tune.spec import SchedulerConfig, SweepConfig

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    path
    for path in DOCS.rglob("*.md")
    if path.parent.name != "results" and path.name not in ("results.md", "claims.md")
)
HEAD = ("key", "default", "takes", "meaning")
GROUPS = {"top": TopConfig, **FIXED_GROUPS, "sweep": SweepConfig, "scheduler": SchedulerConfig}
MARKED = re.compile(r"<!-- (\w+): ([\w.]+) -->.*?<!-- end -->", re.DOTALL)
BY_MACHINE = re.compile(r"^<!-- (\w+)(?:: .*?)?-->\n.*?^<!-- end.*?-->\n", re.MULTILINE | re.DOTALL)
SECTION = re.compile(r"^(State|Sent|Assumes)  +(.*(?:\n {9}.*)*)", re.MULTILINE)
INLINE = ("value", "count")
GENERATED = {"kernels.md"}  # whole pages
CLAIM = re.compile(r"^def test_(\w+)", re.MULTILINE)
FAULTS = {  # subject -> files of tests
    "The same bits": (
        "runtime/test_reproducible",
        "runtime/test_ray",
        "runtime/test_torch_state",
        "runtime/test_randomness",
    ),
    "Killed and lost processes": (
        "runtime/test_resume",
        "runtime/test_lost_parts",
        "runtime/test_lost_nodes",
        "runtime/test_own_cluster",
        "runtime/test_interrupt",
        "runtime/test_connection",
        "runtime/test_worker_pool",
        "tune/test_interrupted",
        "tune/test_nodes",
        "papers/test_killed",
    ),
    "Damaged, moved and full": (
        "runtime/test_checkpoint",
        "runtime/test_damage",
        "runtime/test_displaced",
        "runtime/test_record_file",
        "runtime/test_state_files",
        "runtime/test_exhausted",
        "runtime/test_long_runs",
        "core/test_large_counts",
        "tune/test_journal",
    ),
    "Runs at a URL": ("runtime/test_mirror", "runtime/test_mirror_parts", "runtime/test_trust"),
    "Clients and modules that fail": ("runtime/test_faults", "runtime/test_exits", "runtime/test_device"),
    "Mistakes": ("runtime/test_bad_input", "config/test_hostile", "test_cli_exit_codes"),
}


def page(text: str) -> str:
    """The page with all of its generated parts made anew."""

    def made(marked: re.Match[str]) -> str:
        kind, name = marked[1], marked[2]
        if kind not in KINDS:
            return marked[0]
        gap, last = ("", "") if kind in INLINE else ("\n\n", "\n")
        return f"<!-- {kind}: {name} -->{gap}{KINDS[kind](name)}{last}<!-- end -->"

    return MARKED.sub(made, text)


def lines_by_hand(path: Path) -> int:
    """The lines with text of a page, outside of its generated parts."""
    text = BY_MACHINE.sub("", path.read_text(encoding="utf-8"))
    return 0 if path.name in GENERATED else sum(bool(line.strip()) for line in text.splitlines())


def markdown(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def keys(cls: type, prefix: str = "") -> Iterator[tuple[str, ...]]:
    """A row for each key of a fixed group; the keys of a group inside it follow."""
    for field in (field for field in fields(cls) if field.init):
        hint, key = hints_of(cls)[field.name], prefix + field.metadata.get("key", field.name)
        if is_dataclass(hint):
            yield f"`{key}`", str(_default(field).name), "a name, or a group of keys", "the keys below"
            yield from keys(hint, f"{key}.")  # type: ignore[arg-type]
        else:
            yield f"`{key}`", _text(_default(field)), _kind(hint), doc_of(hint)


def _default(field: Field[Any]) -> Any:
    if "default" in field.metadata:
        return field.metadata["default"]
    return field.default if field.default_factory is MISSING else field.default_factory()


def options(group: str) -> list[tuple[str, ...]]:
    """A row for each option of the components of a group, with the names of the components that share it."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for entry in REGISTRIES[group]:
        hints = options_of_class(entry.cls) or {}
        told, parameters = explained(entry.cls, list(hints)), signature(entry.cls).parameters
        for key, hint in hints.items():
            meaning = "; ".join(filter(None, (doc_of(hint), told.get(key), comment(entry.cls, key))))
            row = f"`{key}`", _text(parameters[key].default), _kind(hint), meaning
            rows.setdefault(row, []).append(f"`{entry.name}`")
    return sorted((row[0], ", ".join(names), *row[1:]) for row, names in rows.items())


def components(group: str) -> str:
    """A table of the components of a group: what each is, from its docstring, its paper, and its options."""
    if group == "algorithm":
        head: tuple[str, ...] = ("name", "paper", "method", "state", "sent", "assumes")
        return markdown(head, (_algorithm(entry) for entry in REGISTRIES[group]))
    rows = ((f"`{e.name}`", _cell(e.paper), _cell(prose(e.cls)), _defaults(e.cls)) for e in REGISTRIES[group])
    return markdown(("name", "paper", "is", "options"), rows)


def _algorithm(entry: Any) -> tuple[str, ...]:
    stated = sections(entry.cls)
    cells = (_cell(stated[part]) for part in ("State", "Sent", "Assumes"))
    return f"`{entry.name}`", _cell(entry.paper), _cell(entry.summary), *cells


def sections(cls: type) -> dict[str, str]:
    """State, Sent and Assumes of an algorithm, from the docstring of its file or, first, its class."""
    texts = (cleandoc(text or "") for text in (sys.modules[cls.__module__].__doc__, cls.__doc__))
    return {match[1]: " ".join(match[2].split()) for text in texts for match in SECTION.finditer(text)}


def prose(cls: type) -> str:
    """The docstring of a class without the explanations of its options."""
    names = "|".join(map(re.escape, options_of_class(cls) or {})) or "$^"
    start = re.compile(rf"^(?:{names})(?:, (?:{names}))*(?: \([^)]*\))?: ", re.MULTILINE)
    parts = (start.split(part, maxsplit=1)[0] for part in (getdoc(cls) or "").split("\n\n"))
    return " ".join(" ".join(part.split()) for part in parts if part.strip())


def _defaults(cls: type) -> str:
    parameters = signature(cls).parameters
    return ", ".join(f"`{key}` {_text(parameters[key].default)}".strip() for key in options_of_class(cls) or {})


def _cell(text: str) -> str:
    parts = text.replace("|", "\\|").split("`")
    return "`".join(part if k % 2 else part.replace("*", "\\*").replace("<", "&lt;") for k, part in enumerate(parts))


def configs(folder: str) -> str:
    """A table of the configs in a folder of conf/: the comment at their beginning, without commands."""
    paths = sorted((ROOT / "conf" / (folder if folder != "conf" else "")).glob("*.yaml"))
    return markdown(("config", "is"), ((f"`{path.stem}`", _cell(about(path))) for path in paths))


def about(path: Path) -> str:
    """What the comment at the beginning of a config says, up to the end of its first paragraph of text."""
    said: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("#").strip()
        if not line.startswith("#") or (said and not text) or text.startswith("In a config of your own"):
            break
        if text and not text.startswith(("raylfl ", "then: ")):
            said.append(text)
    return " ".join(said)


def hooks(_: str) -> str:
    """A table of Lightning's hooks: those with the same treatment and note share a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for verdict, notes in HOOKS.items():
        for name, note in notes.items():
            rows.setdefault((verdict, note), []).append(f"`{name}`")
    return markdown(
        ("hook", "status", "when, or what instead"), ((", ".join(names), *row) for row, names in rows.items())
    )


def commands(_: str) -> str:
    """The usage and the options of every command, from the command line's own parser."""
    (group,) = (action for action in parser._parser()._actions if isinstance(action, argparse._SubParsersAction))
    return "\n".join(f"## {name}\n\n{_command(sub)}" for name, sub in group.choices.items())


def _command(sub: argparse.ArgumentParser) -> str:
    actions = [action for action in sub._actions if action.dest not in ("help", "debug")]
    shown = " ".join(_usage(action) for action in sorted(actions, key=lambda action: bool(action.option_strings)))
    about = (sub.description or "").replace("<", "&lt;")
    rows = [(f"`{_cell(_named(action))}`", _cell(action.help or "the folder of the result")) for action in actions]
    table = markdown(("argument", "meaning"), rows) if rows else ""
    return f"    {' '.join(f'{sub.prog} {shown}'.split())}\n\n{about[:1].upper()}{about[1:]}.\n\n{table}"


def _usage(action: argparse.Action) -> str:
    named = _named(action).rpartition(", ")[2] if action.option_strings else _named(action)
    return named if action.required else f"[{named}]"


def _named(action: argparse.Action) -> str:
    """An argument as it is typed: `-o DIR`, `--trust`, `KEY=VALUE ...`."""
    value = "|".join(map(str, action.choices)) if action.choices else action.metavar or action.dest.upper()
    value = "" if action.nargs == 0 else f"{value} ..." if action.nargs in ("*", "+") else value
    return f"{', '.join(action.option_strings)} {value}".strip()


def value(name: str) -> str:
    """A constant of the package, such as `runtime.ray.cluster.SILENT_SECONDS`, from the text of its module."""
    module, _, constant = name.rpartition(".")
    text = (ROOT / "raylfl" / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^{constant}(?:: \w+)? = ([^#\n]+)", text, re.MULTILINE)
    number = eval(line, {"__builtins__": {}})
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def count(name: str) -> str:
    """The number of components of a group."""
    return str(len(REGISTRIES[name].names()))


def explained(cls: type, names: list[str]) -> dict[str, str]:
    """Option -> what the docstrings of the class and its parents say of it: `alpha: ...`, `mean, std: ...`."""
    found: dict[str, str] = {}
    one = "|".join(map(re.escape, names)) or "$^"
    line = re.compile(r"\n[a-z_]\w*(?:, \w+)*(?:\([^)]*\))?: ")  # an attribute that is no option
    start = re.compile(rf"(?:^|(?<=[.;] ))((?:{one})(?:, (?:{one}))*)(?: \([^)]*\))?: ", re.MULTILINE)
    for owner in reversed([parent for parent in cls.__mro__ if parent.__module__.startswith("raylfl.")]):
        for paragraph in (getdoc(owner) or "").split("\n\n") if owner.__doc__ else ():
            starts = list(start.finditer(paragraph))
            ends = [*(match.start() for match in starts), len(paragraph)][1:]
            for match, end in zip(starts, ends, strict=bool(starts)):
                said = " ".join(line.split(paragraph[match.end() : end], maxsplit=1)[0].split()).rstrip(".;")
                found |= dict.fromkeys(match[1].split(", "), said)
    return found


def comment(cls: type, key: str) -> str:
    """The comment on the line of a dataclass's field, or above it."""
    owner = next((parent for parent in cls.__mro__ if key in get_annotations(parent)), None)
    lines = getsource(owner).splitlines() if owner is not None else []
    at = next((k for k, line in enumerate(lines) if line.startswith(f"    {key}: ")), 0)
    above = lines[at - 1].strip().removeprefix("# ") if at and lines[at - 1].strip().startswith("# ") else ""
    return above or (lines[at].partition("  # ")[2] if at else "")


def _kind(hint: Any) -> str:
    """A declared type in words; `a value per client` with a link to its section."""
    return words(hint, docs=False).replace("value per client", "[value per client](config.md#values-per-client)")


def _text(value: Any) -> str:
    """A default as yaml has it."""
    if value in (MISSING, Parameter.empty):
        return ""
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(_lists(plain), default_flow_style=True, width=10**6).removesuffix("\n...\n").strip()


def _lists(value: Any) -> Any:
    return [_lists(part) for part in value] if isinstance(value, (list, tuple)) else value


def layers(container: str) -> str:
    """The layers of the import contract of a package, the outermost first, with the first lines of their docstrings."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (chosen,) = (contract["layers"] for contract in contracts if contract.get("containers") == [container])
    rows = [(layer, [_module(f"{container}.{name}") for name in layer.split(" | ")]) for layer in chosen]
    return markdown(("layer", "holds"), ((f"`{_cell(layer)}`", "; ".join(about)) for layer, about in rows))


def exports(name: str) -> str:
    """Directives for the public names of a package, each where it is defined."""
    package = importlib.import_module(name)
    places = getattr(package, "PLACES", None)  # of raylfl itself: module -> names, imported on first use
    if places is not None:
        named = [f"{name}.{module}.{each}" for module, names in places.items() for each in names]
        named = [each for each in named if ".errors." not in each]  # the page has all errors
    else:
        named = [f"{getattr(package, each).__module__}.{each}" for each in package.__all__ if each[1].islower()]
    return "\n".join(f"::: {each}\n" for each in named)


def classes(name: str) -> str:
    """Directives for the public classes of a module, in its order."""
    tree = ast.parse((ROOT / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8"))
    named = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_"]
    return "\n".join(f"::: {name}.{each}\n" for each in named)


def module(name: str) -> str:
    """A directive for all public objects of a module."""
    options = ("show_root_heading: false", "show_root_toc_entry: false", 'filters: ["!^_"]')
    return f"::: {name}\n    options:\n" + "".join(f"      {option}\n" for option in options)


def _module(name: str) -> str:
    """The first sentence of a module's docstring."""
    path = ROOT / name.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = " ".join((ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n\n")[0].split())
    return _cell(re.split(r"\. |\.$", text)[0])


def claims(_: str) -> str:
    """The names of the tests about failures, as sentences, by subject."""
    parts = []
    for subject, files in FAULTS.items():
        names = [(name, file) for file in files for name in CLAIM.findall((ROOT / "tests" / f"{file}.py").read_text())]
        lines = (f"- {name.replace('_', ' ')} (`{file}`)" for name, file in names)
        parts.append(f"## {subject}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def group(name: str) -> str:
    """The components of a group, then the options of all of them."""
    return f"{components(name)}\n{_options_table(name)}"


def groups(_: str) -> str:
    """Every group of a config and of a sweep file: its docstring and the table of its keys."""
    return "\n".join(
        f"## {'Top level' if name == 'top' else f'`{name}`'}\n\n{_stated(cls)}\n\n{_keys_table(name)}"
        for name, cls in GROUPS.items()
    )


def _stated(cls: type) -> str:
    """A docstring without the name of its group at the beginning, wrapped as it is."""
    text = re.sub(r"^`\w+`(?: and `\w+`)?: ", "", getdoc(cls) or "")
    return _cell(text[:1].upper() + text[1:])


def _keys_table(name: str) -> str:
    return markdown(HEAD, keys(GROUPS[name]))


def _options_table(name: str) -> str:
    return markdown((HEAD[0], "of", *HEAD[1:]), options(name))


KINDS: dict[str, Callable[[str], str]] = {
    "keys": _keys_table,
    "group": group,
    "groups": groups,
    "options": _options_table,
    "components": components,
    "configs": configs,
    "hooks": hooks,
    "commands": commands,
    "claims": claims,
    "layers": layers,
    "exports": exports,
    "classes": classes,
    "module": module,
    "value": value,
    "count": count,
}


if __name__ == "__main__":
    counted = {path.relative_to(ROOT).as_posix(): lines_by_hand(path) for path in PAGES}
    if "--lines" in sys.argv:
        print("\n".join(f"{count:5} {name}" for name, count in counted.items()), sum(counted.values()), sep="\n")
    else:
        for path in PAGES:
            path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
