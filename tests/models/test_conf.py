"""The files in conf/model and conf/data name existing classes and the command that runs them."""

import inspect
import shlex
from pathlib import Path

import pytest
import yaml

from raylfl.data import DATA
from raylfl.models import MODELS

CONF = Path(__file__).resolve().parents[2] / "conf"
FILES = [(kind, path) for kind in ("model", "data") for path in sorted((CONF / kind).glob("*.yaml"))]
ON_DISK = {"mnist", "fashion_mnist", "cifar10", "cifar100", "cinic10", "image_folder", "npy", "client_files"}


@pytest.mark.parametrize(("kind", "path"), FILES, ids=lambda v: getattr(v, "stem", v))
def test_a_file_configures_the_class_it_is_named_after(kind, path):
    content = yaml.safe_load(path.read_text())
    assert list(content) == [kind]
    registry = MODELS if kind == "model" else DATA
    assert content[kind]["name"] == path.stem
    cls = registry.get(path.stem).cls
    assert set(content[kind]["init_args"]) <= set(inspect.signature(cls).parameters)
    if path.stem not in ON_DISK:
        cls(**content[kind]["init_args"])


@pytest.mark.parametrize(("kind", "path"), FILES, ids=lambda v: getattr(v, "stem", v))
def test_a_file_begins_with_the_command_that_runs_it(kind, path):
    raylfl, run, config, *overrides = shlex.split(path.read_text().splitlines()[0].removeprefix("# "))
    assert (raylfl, run) == ("raylfl", "run")
    assert (CONF / f"{config}.yaml").is_file()
    assert f"{kind}/{path.stem}" == config or f"{kind}.name={path.stem}" in overrides
    named = [o.partition("=")[2] for o in overrides if o.startswith("model.name=")]
    assert all(name in MODELS for name in named)


def test_everything_shipped_has_its_file():
    assert {path.stem for kind, path in FILES if kind == "model"} == set(MODELS.names())
    assert {path.stem for kind, path in FILES if kind == "data"} == set(DATA.names())
