"""From files and a dotlist to one resolved config: `base:` composition, short names, refusals.

Layers, later ones win: the files that `base:` names (one or a list, depth first), the file itself, those of a `base=`
in the dotlist, the dotlist.
Dicts merge, lists replace. A layer that changes the `name` (or class_path) of a group starts that group anew:
options of another algorithm, partition, model, ... do not linger.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from raylfl.config.components import build, keys_of, options_of, typed, unknown_key
from raylfl.config.schema import (
    FIXED_GROUPS,
    NAMED_GROUPS,
    CheckpointConfig,
    ComponentConfig,
    EvalConfig,
    LocalConfig,
    LoggingConfig,
    RuntimeConfig,
    TopConfig,
)
from raylfl.errors import BadConfig
from raylfl.heterogeneity.clock import Clock
from raylfl.registry import Registry

GROUPS = (*FIXED_GROUPS, *NAMED_GROUPS)
SUBGROUPS = ("init_args", "lr_schedule", "availability")  # mappings of keys; other mappings are values
DEFAULTS: dict[str, Any] = {
    "model": {"name": "mlp"},
    "data": {"name": "digits"},
    "partition": {"name": "iid"},
    "participation": {"name": "full"},
    "link": {"name": "perfect"},
    "algorithm": {"name": "fedavg"},
}


@dataclass(frozen=True)
class Config:
    """A whole config, typed. `resolved` is the same as plain values, every default filled in: config.yaml."""

    top: TopConfig
    model: ComponentConfig
    data: ComponentConfig
    local: LocalConfig
    system: Clock
    eval: EvalConfig
    checkpoint: CheckpointConfig
    runtime: RuntimeConfig
    logging: LoggingConfig
    partition: Any
    participation: Any
    link: Any
    algorithm: Any
    resolved: dict[str, Any]


def conf_roots() -> list[Path]:
    """Where bare names are looked up: ./conf first, then the configs shipped with the package."""
    package = Path(__file__).resolve().parent.parent
    shipped = [package / "conf", package.parent / "conf"]
    return [Path.cwd() / "conf", *[p for p in shipped if p.is_dir()]]


def find_config(name: str | Path, beside: Path | None = None) -> Path:
    """The file of a path or a bare name (`digits`, `algorithm/focus`); raises BadConfig naming the nearest."""
    text = str(name)
    options = [Path(text)] if beside is None else [beside / text, Path(text)]
    options += [root / text for root in conf_roots()]
    for option in options:
        for path in (option, option.with_name(option.name + ".yaml")):
            if path.is_file():
                return path.resolve()
    names = sorted({p.relative_to(r).with_suffix("").as_posix() for r in conf_roots() for p in r.rglob("*.yaml")})
    near = difflib.get_close_matches(text.removesuffix(".yaml"), names, n=1, cutoff=0.5)
    shown = ", ".join(n for n in names if "/" not in n)
    raise BadConfig(
        f"no config {text}: not a file, nor a name under conf/; "
        + (f"did you mean {near[0]}?" if near else f"there are {shown}")
    )


def load_config(source: str | Path | Mapping[str, Any] | DictConfig, overrides: Sequence[str] = ()) -> Config:
    """The validated config of a path, a bare name, a dict or a DictConfig, plus `key=value` overrides.

    Raises BadConfig with all mistakes found, one line each.
    """
    return resolve(compose(source, overrides))


def compose(source: str | Path | Mapping[str, Any] | DictConfig, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The merged layers as plain values, before defaults and validation."""
    if isinstance(source, (str, Path)):
        layers = file_layers(find_config(source))
    else:
        given = OmegaConf.to_container(source, resolve=True) if OmegaConf.is_config(source) else dict(source)
        layers = _with_bases(given, Path.cwd(), ())  # type: ignore[arg-type]
    layers += override_layers(overrides)
    merged: dict[str, Any] = {}
    for layer in layers:
        merge_layer(merged, layer)
    try:
        return OmegaConf.to_container(OmegaConf.create(merged), resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise BadConfig(f"interpolation failed: {str(error).splitlines()[0]}") from error


def file_layers(path: Path, chain: tuple[Path, ...] = ()) -> list[dict[str, Any]]:
    """Those of a file's bases, and its own; chain: the files that named it as theirs."""
    if path in chain:
        raise BadConfig(f"base: goes round in a circle: {' -> '.join(p.name for p in (*chain, path))}")
    try:
        content = yaml.safe_load(path.read_text()) or {}
        OmegaConf.create(content)
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} is not readable yaml: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise BadConfig(f"{path} must hold keys and values, not a {type(content).__name__}")
    return _with_bases(content, path.parent, (*chain, path))


def _with_bases(content: dict[str, Any], folder: Path, chain: tuple[Path, ...]) -> list[dict[str, Any]]:
    content = dict(content)
    bases = content.pop("base", None) or []
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(b, str) for b in bases):
        raise BadConfig(f"base={bases}, but must be the name of a config or a list of names")
    return [layer for base in bases for layer in file_layers(find_config(base, folder), chain)] + [content]


def override_layers(overrides: Sequence[str]) -> list[dict[str, Any]]:
    """What `base=` among these names, then the rest of them."""
    return _with_bases(_dotlist(overrides), Path.cwd(), ())


def _dotlist(overrides: Sequence[str]) -> dict[str, Any]:
    for item in overrides:
        if "=" not in item or item.startswith("="):
            raise BadConfig(f"override {item!r} must have the form key=value")
    try:
        return OmegaConf.to_container(OmegaConf.from_dotlist(list(overrides)))  # type: ignore[return-value]
    except Exception as error:
        raise BadConfig(f"overrides not understood: {' '.join(str(error).split())}") from error


def merge_layer(merged: dict[str, Any], layer: dict[str, Any]) -> None:
    """Lays a layer over what is merged so far, in place."""
    for key, value in layer.items():
        if key in GROUPS:
            if value is None:
                continue
            if isinstance(value, str) and key in (*NAMED_GROUPS, "model", "data"):
                value = {"name": value}  # `model: lenet5`
            if not isinstance(value, dict):
                raise BadConfig(f"{key}={value}, but must be a group of keys")
            before = merged.get(key, {})
            renamed = any(k in value and value[k] != before.get(k) for k in ("name", "class_path"))
            merged[key] = dict(value) if renamed else _merge_group(before, value)
        else:
            merged[str(key)] = value


def _merge_group(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Later keys win. Groups within the group merge; a value that is itself a mapping ({uniform: ...}) is replaced."""
    out = dict(before)
    for key, value in after.items():
        old = out.get(key)
        out[key] = value
        if key in SUBGROUPS and isinstance(value, Mapping) and isinstance(old, Mapping):
            same = value.get("name", old.get("name")) == old.get("name")
            out[key] = {**old, **value} if same else value
    return out


def resolve(merged: Mapping[str, Any]) -> Config:
    """Typed and complete; every mistake is collected before BadConfig is raised."""
    from raylfl.algorithms import ALGORITHMS
    from raylfl.heterogeneity.links import LINKS
    from raylfl.heterogeneity.participation.base import PARTICIPATION
    from raylfl.heterogeneity.partition.base import PARTITIONS

    registries: dict[str, Registry[Any]] = {
        "partition": PARTITIONS,
        "participation": PARTICIPATION,
        "link": LINKS,
        "algorithm": ALGORITHMS,
    }
    top_keys = keys_of(TopConfig)
    problems: list[str] = []
    problems += [
        unknown_key(str(key), (*top_keys, *GROUPS, "base")).problems[0]
        for key in merged
        if key not in top_keys and key not in GROUPS
    ]
    parts: dict[str, Any] = {}

    def attempt(key: str, make: Any) -> None:
        try:
            parts[key] = make()
        except BadConfig as error:
            problems.extend(error.problems)

    attempt("top", lambda: typed(TopConfig, {k: v for k, v in merged.items() if k in top_keys}))
    for group, cls in FIXED_GROUPS.items():
        attempt(group, lambda g=group, c=cls: typed(c, merged.get(g) or DEFAULTS.get(g, {}), g))
    for group in NAMED_GROUPS:
        options = {**DEFAULTS[group], **(merged.get(group) or {})}
        attempt(group, lambda g=group, o=options: build(registries[g], o, g))
    if problems:
        raise BadConfig(problems)
    resolved = options_of(parts["top"])
    for group in FIXED_GROUPS:
        resolved[group] = options_of(parts[group])
    for group in NAMED_GROUPS:
        name = {**DEFAULTS[group], **(merged.get(group) or {})}["name"]
        resolved[group] = {"name": name, **options_of(parts[group])}
    return Config(**parts, resolved=resolved)
