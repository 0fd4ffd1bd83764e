"""`raylfl new KIND NAME`: writes the file of a new component, a config for it and a test that passes unchanged.

`raylfl new job` writes the files with which runs become jobs on a cluster: those of `jobs/` in the repository.
"""

import importlib.util
import keyword
import re
from pathlib import Path
from string import Template

from raylfl.errors import BadConfig

TEMPLATES = Path(__file__).parent / "templates"
KINDS = tuple(sorted(path.name.removesuffix(".py.txt") for path in TEMPLATES.glob("*.py.txt")))
PACKAGE = Path(__file__).resolve().parents[1]
JOBS = next(folder for folder in (PACKAGE / "jobs", PACKAGE.parent / "jobs") if folder.is_dir())  # wheel, checkout
FILES = {"{module}.py": "py", "{module}.yaml": "yaml", "test_{module}.py": "test"}  # name -> its template's ending


def new(kind: str, name: str, folder: Path) -> list[Path]:
    """Writes the files of a new component of this kind into the folder and returns their paths.

    name: that of the class, such as FedCM. Raises BadConfig if a file exists, or would hide an existing module.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or not name[0].isupper():
        raise BadConfig(f"new {kind} {name}: the name of a class is needed, such as FedCM")
    module = module_of(name)
    here = (folder / f"{module}.py").exists()
    if keyword.iskeyword(module) or (importlib.util.find_spec(module) is not None and not here):
        raise BadConfig(f"new {kind} {name}: its file would hide the existing module {module}")
    paths = {folder / form.format(module=module): ending for form, ending in FILES.items()}
    templates = {path: (TEMPLATES / f"{kind}.{ending}.txt").read_text("utf-8") for path, ending in paths.items()}
    return _write(
        f"new {kind} {name}",
        {path: Template(text).substitute(Name=name, module=module) for path, text in templates.items()},
    )


def new_job(folder: Path) -> list[Path]:
    """Writes the files of jobs into `jobs` in the folder, and returns their paths. Raises BadConfig if one exists."""
    return _write("new job", {folder / "jobs" / file.name: file.read_text("utf-8") for file in sorted(JOBS.iterdir())})


def _write(command: str, contents: dict[Path, str]) -> list[Path]:
    if existing := [str(path) for path in contents if path.exists()]:
        raise BadConfig(f"{command}: {', '.join(existing)} exists: nothing was written")
    for path, text in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(contents)


def module_of(name: str) -> str:
    """The module name for the name of a class: FedCM -> fedcm, FedProx -> fedprox, TwoSided -> two_sided."""
    return re.sub(r"(?<=[a-z0-9])(?<!^Fed)(?=[A-Z][a-z])", "_", name).lower()
