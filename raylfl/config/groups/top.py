"""The top-level keys of a config outside its groups, and the keys of the groups `model` and `data`."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from raylfl.components.options import Doc, Ge, OneOrMore, Options
from raylfl.errors import BadValue


def folder_name(key: str, value: str) -> None:
    """Raises BadValue unless the value of a key can be the name of a folder.

    Characters that are not printable are refused, because names are printed to terminals, and so are hidden folders,
    because `raylfl runs` and reports do not look into them.
    """
    named = value and value[0] != "." and not set(value) & set("/\\") and value.isprintable()
    if not named or len(value.encode()) > 200:
        need = "the name of one folder: printable, no slashes, no dot in front, at most 200 bytes"
        raise BadValue(key, got=ascii(value)[:300], need=need)


@dataclass
class TopConfig(Options):
    """The top-level keys of a config outside its groups."""

    name: Annotated[str, Doc("the name of the experiment: runs go to `runs/<name>/<id>/`")] = "run"
    seed: Annotated[int, Ge(0), Doc("the seed of every random draw")] = 0
    rounds: Annotated[int, Ge(0), Doc("the number of communication rounds; may be raised when a run is resumed")] = 100
    dtype: Annotated[Literal["float32", "float64"], Doc("the dtype of parameters, data and all arithmetic")] = "float32"
    num_clients: Annotated[
        int | None, Ge(1), Doc("the number of clients N; null: given by the partition (`natural`, `file`), else 10")
    ] = None
    weights: Annotated[
        Literal["uniform", "data_size"],
        Doc(
            "the importance weights `w_i` in `F = sum_i w_i f_i`: `uniform` is 1/N, `data_size` is `n_i/n`; a method "
            "or aggregation rule that does not use them causes a warning"
        ),
    ] = "uniform"
    metrics: Annotated[
        dict[str, Literal["min", "max"]],
        Doc(
            "the better direction of metrics that your model logs: `{test/dice_loss: min}`, or `{dice_loss: min}` for "
            "all data; losses, accuracies and torchmetrics' objects are known"
        ),
    ] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        folder_name("name", self.name)


@dataclass
class ComponentConfig(Options):
    """`model` and `data`: a shipped `name` or any importable `class_path`, and its constructor's arguments."""

    name: Annotated[str | None, Doc("the name of a shipped class: [models.md](models.md)")] = None
    class_path: Annotated[str | None, Doc("any importable class instead of a name: `my_package.Net`")] = None
    init_args: Annotated[dict[str, Any], Doc("arguments of its constructor")] = field(default_factory=dict)
    # the class, factory or instance behind class_path, if workers cannot import it
    target: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.name is None) == (self.class_path is None):
            got = "nothing" if self.name is None else f"name {self.name} and class_path {self.class_path}"
            raise BadValue("", got=got, need="either a short name or a class_path")


@dataclass
class ModelConfig(ComponentConfig):
    """`model`: the class of the model, its arguments, and the names of the parameters and buffers that travel."""

    trainable: Annotated[
        OneOrMore[str] | None,
        Doc(
            "names of layers or parameters, with wildcards (`body.2`, `*lora*`): only these are trained and sent; "
            "null: all that the model trains"
        ),
    ] = None
    buffers: Annotated[
        OneOrMore[str] | None,
        Doc(
            "names of buffers or layers, with wildcards (`*num_batches_tracked`): only these buffers travel; null: "
            "floating-point buffers in the state_dict, and with `local.buffers=local` all buffers in it"
        ),
    ] = None
