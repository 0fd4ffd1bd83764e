"""Optional libraries: the pip extra that installs each of them, and the error for a missing library.

`pip install '.[ray,report]'` in a clone installs raylfl with two extras, `.[all]` with all of them. A function that
uses an optional library calls `require` and then imports the library. raylfl is in no package index: messages have
the pip command of the libraries themselves, which works however raylfl was installed.
"""

import importlib.util
import sys

from raylfl.errors import BadConfig

EXTRAS = {  # extra -> the top-level modules that it installs
    "ray": ("ray",),
    "tune": ("pandas", "pyarrow", "tensorboardX"),
    "vision": ("sklearn", "PIL"),
    "report": ("matplotlib", "jinja2"),
    "wandb": ("wandb",),
    "tensorboard": ("tensorboard",),
    "optuna": ("optuna",),
    "reports": ("wandb_workspaces",),
}
PACKAGES = {  # extra -> what pip installs for it, as in pyproject.toml
    "ray": "'ray[default]>=2.50'",
    "tune": "'ray[default,tune]>=2.50'",
    "vision": "'scikit-learn>=1.6' 'pillow>=10'",
    "report": "'matplotlib>=3.10' 'jinja2>=3.1'",
    "wandb": "'wandb>=0.19'",
    "tensorboard": "'tensorboard>=2.18'",
    "optuna": "'optuna>=4'",
    "reports": "'wandb>=0.19' 'wandb-workspaces>=0.4'",
}
REQUIRED = ["torch", "lightning", "torchmetrics", "numpy", "scipy", "omegaconf", "yaml", "pydantic", "rich"]
REQUIRED += ["threadpoolctl", "psutil", "cloudpickle", "fsspec"]


class MissingExtra(BadConfig):
    """The error for an optional library that is needed but not installed."""


def install_command(module: str) -> str:
    """The pip command that installs the top-level package of this module."""
    package = module.partition(".")[0]
    if package == "raylfl":
        return "install it there as on this machine"
    extra = next((extra for extra, modules in EXTRAS.items() if package in modules), None)
    return f"pip install {PACKAGES[extra] if extra else {'yaml': 'PyYAML'}.get(package, package)}"


def ours(module: str) -> bool:
    """Whether the module belongs to raylfl or to a library that raylfl requires or can use."""
    package = module.partition(".")[0]
    return package == "raylfl" or package in REQUIRED or any(package in modules for modules in EXTRAS.values())


def require(*modules: str, what: str, instead: str = "") -> None:
    """Raises MissingExtra if a module is not installed, with the feature that needs it and an alternative."""
    for module in modules:
        if not installed(module):
            other = f", or {instead}" if instead else ""
            raise MissingExtra(f"{what} needs the package {module}: {install_command(module)}{other}")


def installed(module: str) -> bool:
    """Whether Python finds a module; it is not imported."""
    if module in sys.modules:
        return sys.modules[module] is not None  # None: the import is blocked
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # raised by a finder that blocks it
        return False


def missing_package(module: str, python: str) -> str:
    """The message, with a remedy, for a module that this Python lacks: "the cluster's Python", for example."""
    if not ours(module):
        return (
            f"No module named '{module}' in {python}: set PYTHONPATH on every node, or submit a job, which uploads the "
            "working directory"
        )
    remedy = f"{python} lacks the package {module}: {install_command(module)}"
    if module.partition(".")[0] == "raylfl":
        return f"{remedy}, on every node of a cluster, or submit jobs from a clone by `-- python -m raylfl run ...`"
    return (
        f"{remedy} (or `pip install -r requirements.txt`), on every node of a cluster; for jobs `pip: "
        "requirements.txt` in jobs/runtime_env.yaml"
    )
