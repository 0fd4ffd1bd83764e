"""The lookup of configs by path or name, in ./conf and in the package, and of the checkout around the package."""

import sys
from pathlib import Path

from raylfl.errors import BadConfig, did_you_mean

FOLDERS = {"configs": ".", "presets": "preset", "sweeps": "sweep"}  # heading in `raylfl list` -> folder in conf/


def working_directory() -> Path:
    """The working directory. Raises BadConfig if it has been deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise BadConfig("the working directory does not exist any more: cd to one that does") from None


def conf_roots() -> list[Path]:
    """The folders in which names such as `digits` are looked up: ./conf, then the configs shipped with the package."""
    package = Path(__file__).resolve().parent.parent
    shipped = [package / "conf", package.parent / "conf"]
    return [working_directory() / "conf", *[p for p in shipped if p.is_dir()]]


def config_names(folder: str | None = None) -> list[str]:
    """The names of all configs (`digits`, `algorithm/focus`), sorted, or of the configs in one folder below conf/."""
    names = {p.relative_to(r).with_suffix("").as_posix() for r in conf_roots() for p in r.rglob("*.yaml")}
    return sorted(name for name in names if folder is None or str(Path(name).parent) == folder)


def summary_of(path: Path) -> str:
    """The summary of a config file: its first comment that is no command, to a blank line or a final `.` or `:`."""
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        text = line.lstrip("# ").rstrip()
        if lines and (not line.startswith("#") or not text or lines[-1].endswith((".", ":"))):
            break
        if line.startswith("#") and text and not text.startswith("raylfl "):
            lines.append(text)
    return " ".join(lines).rstrip(".:")


def find_config(name: str | Path, beside: Path | None = None) -> Path:
    """The config file of a path or name (`digits`, `algorithm/focus`), without .yaml if you like, first in `beside`.

    Raises BadConfig, with the nearest known name, if there is no such file.
    """
    text = str(name)
    options = [Path(text)] if beside is None else [beside / text, Path(text)]
    options += [root / text for root in conf_roots()]
    for option in options:
        for path in (option, Path(f"{option}.yaml")):
            if path.is_file():
                return path.resolve()
    names = config_names()
    shown = ", ".join(n for n in names if "/" not in n)
    hint = did_you_mean(text.removesuffix(".yaml"), names, f"there are {shown}")
    raise BadConfig(f"no config {text}: neither a file nor a name under conf/; {hint}")


def find_checkout(feature: str) -> Path:
    """The root of the checkout from which raylfl is imported, with `papers/` and the ledger, which no wheel has.

    `papers` is importable from then on, here and in the processes that are started. Raises BadConfig, with the feature
    that needs the checkout, if raylfl is imported from elsewhere.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / "papers" / "command.py").is_file():
        raise BadConfig(
            f"{feature} needs the repository: the papers' experiments and the ledger are not part of the installed "
            "package; clone it and `pip install --editable .` there"
        )
    if sys.path[:1] != [str(root)]:
        sys.path.insert(0, str(root))  # before a module of the user's with this name
    return root
