"""`raylfl new KIND NAME`: writes the file of a new component, a config for it and a test that passes unchanged."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path
from string import Template

from raylfl.errors import BadConfig

TEMPLATES = Path(__file__).parent / "templates"
KINDS = tuple(sorted(path.name.removesuffix(".py.txt") for path in TEMPLATES.glob("*.py.txt")))
FILES = {"{module}.py": "py", "{module}.yaml": "yaml", "test_{module}.py": "test"}  # name -> its template's ending


def new(kind: str, name: str, folder: Path) -> list[Path]:
    """Writes the files of a new component of this kind into the folder and returns their paths.

    kind: one of `KINDS`. name: the name of the class. Raises BadConfig if a file exists, if the name is not a class
    name such as FedCM, or if the new module would hide an existing one.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or not name[0].isupper():
        raise BadConfig(f"new {kind} {name}: the name of a class is needed, such as FedCM")
    module = module_of(name)
    here = (folder / f"{module}.py").exists()
    if keyword.iskeyword(module) or (importlib.util.find_spec(module) is not None and not here):
        raise BadConfig(f"new {kind} {name}: its file would hide the existing module {module}")
    paths = {folder / form.format(module=module): ending for form, ending in FILES.items()}
    if taken := [str(path) for path in paths if path.exists()]:
        raise BadConfig(f"new {kind} {name}: {', '.join(taken)} exists: nothing was written")
    folder.mkdir(parents=True, exist_ok=True)
    for path, ending in paths.items():
        template = Template((TEMPLATES / f"{kind}.{ending}.txt").read_text(encoding="utf-8"))
        path.write_text(template.substitute(Name=name, module=module), encoding="utf-8")
    return list(paths)


def module_of(name: str) -> str:
    """The module name for the name of a class: FedCM -> fedcm, FedProx -> fedprox, TwoSided -> two_sided."""
    return re.sub(r"(?<=[a-z0-9])(?<!^Fed)(?=[A-Z][a-z])", "_", name).lower()
