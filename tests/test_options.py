"""Limits of options hold in every class that has the option, also after a redeclaration, and in constructors."""

from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Literal

import pytest

from raylfl.algorithms import ALGORITHMS
from raylfl.components.options import Arguments, Doc, Ge, Gt, Lt, Options
from raylfl.config.components import construct
from raylfl.config.groups.local import LocalConfig
from raylfl.config.groups.records import CheckpointConfig, EvalConfig, LoggingConfig
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.config.groups.top import TopConfig
from raylfl.errors import BadConfig, BadValue
from raylfl.heterogeneity.clock import Clock
from raylfl.heterogeneity.links import LINKS
from raylfl.heterogeneity.participation import PARTICIPATION
from raylfl.heterogeneity.partition import PARTITIONS
from raylfl.heterogeneity.topologies import TOPOLOGIES
from raylfl.heterogeneity.work import LocalWork
from raylfl.models.networks import MLP


@dataclass
class Parent(Options):
    """A dataclass with three kinds of limits."""

    mu: Annotated[float, Ge(0), Doc("the stiffness")] = 0.01
    size: Annotated[int, Ge(1)] | None = None
    kind: Literal["a", "b"] = "a"


@dataclass
class Plain(Parent):
    """A subclass with other defaults."""

    mu: float = 0.5
    size: int | None = 3


@dataclass
class Grandchild(Plain):
    """A subclass of the second level with another default, and with a new kind of number."""

    mu: int | None = 2


@dataclass
class Own(Parent):
    """A subclass with its own limits."""

    mu: Annotated[float, Gt(-2), Lt(2)] = 0.5
    kind: str = "c"


@pytest.mark.parametrize("cls", [Parent, Plain, Grandchild])
def test_a_field_declared_again_keeps_its_limits(cls):
    with pytest.raises(BadValue, match=r"^mu=-1(.0)?, but must be >= 0, the stiffness"):
        cls(mu=-1)
    with pytest.raises(BadValue, match=r"^size=0, but must be >= 1"):
        cls(size=0)
    assert cls(mu=3, size=None).mu == 3
    assert Grandchild(mu=None).mu is None


def test_own_limits_replace_the_parents_limits():
    assert Own(mu=-1).mu == -1
    assert Own(kind="z").kind == "z"
    with pytest.raises(BadValue, match=r"mu=-2, but must be in \(-2, 2\)"):
        Own(mu=-2)


class Net(Arguments):
    """A class whose constructor has annotated arguments."""

    def __init__(self, width: Annotated[int, Ge(1), Doc("channels")] = 8, shape: tuple[int, ...] = (1,), *, dim: int):
        self.width, self.shape, self.dim = width, shape, dim


def test_arguments_of_a_constructor_are_checked():
    assert Net(2, (3, 4), dim=5).width == 2
    with pytest.raises(BadValue, match="width=0, but must be >= 1, channels"):
        Net(width=0, dim=1)
    with pytest.raises(TypeError, match="dim"):
        Net()  # type: ignore[call-arg]


def test_numbers_of_init_args_may_be_written_as_in_yaml():
    """`1e-1` is a string in yaml."""
    model = construct(MLP, {"dropout": "1e-1", "hidden": [8]}, "model")
    assert model.hparams["dropout"] == 0.1
    with pytest.raises(BadConfig, match=r"^model.init_args.hidden=\[0\], but must be a list, each entry"):
        construct(MLP, {"hidden": [0]}, "model")


TOGETHER = {("markov", "p_on"), ("markov", "p_off"), ("weighted", "weights")}  # parsed later, beside other options
TOGETHER |= {("LocalConfig", "lr_schedule")}  # a group of its own
GROUPS = (CheckpointConfig, Clock, EvalConfig, LocalConfig, LocalWork, LoggingConfig, RuntimeConfig, TopConfig)
REGISTRIES = (ALGORITHMS, PARTICIPATION, PARTITIONS, LINKS, TOPOLOGIES)
CLASSES = [(entry.name, entry.cls) for registry in REGISTRIES for entry in registry]
ALL = [*CLASSES, *((cls.__name__, cls) for cls in GROUPS)]


def required(cls):
    """Values of the options without a default, of the right type."""
    return {f.name: "layer" for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING}


@pytest.mark.parametrize(("name", "cls"), ALL)
def test_every_option_of_every_class_is_checked_when_it_is_made_in_python(name, cls):
    """Also where a class checks more in its own `__post_init__`."""
    for option in fields(cls):
        if option.init and (name, option.name) not in TOGETHER:
            with pytest.raises(BadValue) as caught:
                cls(**(required(cls) | {option.name: object()}))
            assert caught.value.key == option.metadata.get("key", option.name)
