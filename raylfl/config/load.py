"""Loading of configs: merges files and `key=value` overrides, resolves interpolations and checks every value."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from raylfl.components.registry import given_for, import_class, standing_for
from raylfl.config.components import build, constructor_options, keys_of, make_typed, mistakes, options_of, unknown_key
from raylfl.config.find import find_config
from raylfl.config.groups.local import LocalConfig
from raylfl.config.groups.records import CheckpointConfig, EvalConfig, LoggingConfig, StopConfig
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.config.groups.top import ComponentConfig, ModelConfig, TopConfig
from raylfl.config.layers import DEFAULTS, GROUPS, file_layers, merge_layer, override_layers, tree, with_bases
from raylfl.config.objects import ObjectLayer, passing
from raylfl.config.registries import REGISTRIES
from raylfl.config.schema import FIXED_GROUPS, NAMED_GROUPS
from raylfl.config.text import refuse_expansion
from raylfl.diagnostics.metric_names import stated_directions
from raylfl.errors import BadConfig
from raylfl.heterogeneity.clock import Clock

SECRET = re.compile(r"\$\{\s*oc\.env\s*:([^,}]*(?:KEY|TOKEN|SECRET|PASSW|CREDENTIAL|\$\{)[^,}]*)", re.IGNORECASE)


@dataclass(frozen=True)
class Config:
    """A whole config: typed groups and built components.

    resolved: the same config as plain values with all defaults, as saved in config.yaml; a literal `${` is escaped, as
    in a config file. objects: class path -> object passed from Python that other processes cannot import.
    """

    top: TopConfig
    model: ModelConfig
    data: ComponentConfig
    local: LocalConfig
    system: Clock
    eval: EvalConfig
    stop: StopConfig
    checkpoint: CheckpointConfig
    runtime: RuntimeConfig
    logging: LoggingConfig
    partition: Any
    participation: Any
    link: Any
    topology: Any
    algorithm: Any
    resolved: dict[str, Any]
    objects: dict[str, Any] = field(default_factory=dict)


Source = str | Path | Mapping[str, Any] | DictConfig  # a path, a bare name, a dict or a DictConfig


def load_config(
    source: Source,
    overrides: Sequence[str] = (),
    object_layer: ObjectLayer | None = None,
    check: Callable[[dict[str, Any]], None] | None = None,
) -> Config:
    """Loads and validates a config (a path, a bare name, a dict or a DictConfig) with `key=value` overrides.

    object_layer: objects passed from Python. They take precedence over the source, and overrides over them. check:
    called with the `typed_groups`, if they have no mistake, before the first class, and thus torch, is imported. Raises
    BadConfig with all mistakes, one line each.
    """
    merged = compose(source, overrides, object_layer)
    groups, problems = typed_groups(merged)
    if check is not None and not problems:
        check(groups)
    with standing_for({} if object_layer is None else object_layer.objects):
        return resolve(merged, groups, problems)


def compose(source: Source, overrides: Sequence[str] = (), object_layer: ObjectLayer | None = None) -> dict[str, Any]:
    """The merged layers of a config as plain values, with interpolations resolved; without defaults, unchecked."""
    if isinstance(source, (str, Path)):
        layers = file_layers(find_config(source))
    else:
        content = escape(resolve_interpolations(source)) if OmegaConf.is_config(source) else source
        layers = with_bases(content, Path())
    merged: dict[str, Any] = {}
    objects = [] if object_layer is None else [tree(((key,), value) for key, value in object_layer.layer.items())]
    for layer in layers + objects + override_layers(overrides):
        merge_layer(merged, layer)
    return resolve_interpolations(as_python(merged))


def as_python(value: Any) -> Any:
    """A copy of the value with numbers and lists in place of numpy's (or torch's) numbers and arrays."""
    if isinstance(value, dict):
        return {key: as_python(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_python(entry) for entry in value]
    return value.tolist() if hasattr(value, "tolist") and not isinstance(value, type) else value


def resolve_interpolations(config: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """The plain values of a config with OmegaConf's interpolations resolved; a remaining `${` is literal text.

    The interpolations of a DictConfig may refer to a parent node. Raises BadConfig for an interpolation that cannot be
    resolved or would write a secret into the run's records.
    """
    try:
        node = config if OmegaConf.is_config(config) else OmegaConf.create(dict(config))
        content = OmegaConf.to_container(node)
        refuse_secrets(content)
        if isinstance(content, dict):
            refuse_expansion({str(key): value for key, value in content.items()})
        return OmegaConf.to_container(node, resolve=True)  # type: ignore[return-value]
    except (OmegaConfBaseException, RecursionError, ValueError) as error:
        reason, key = str(error).partition("\n")[0], getattr(error, "full_key", None)
        raise BadConfig(f"config not understood: {f'{key}: ' if key else ''}{reason}") from error


def refuse_secrets(value: Any, dotted_key: str = "") -> None:
    """Raises BadConfig if the name of an environment variable in `${oc.env:...}` looks like that of a secret."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            refuse_secrets(inner, f"{dotted_key}.{key}" if dotted_key else str(key))
    elif isinstance(value, (list, tuple)):
        for entry in value:
            refuse_secrets(entry, dotted_key)
    elif isinstance(value, str) and (match := SECRET.search(value)):
        raise BadConfig(
            f"{dotted_key}={value}, but must not be a secret, because configs are saved with their runs: read "
            f"{match[1].strip()} from os.environ where it is used"
        )


def escape(value: Any) -> Any:
    """A copy of the value in which a backslash escapes each `${`; resolving the copy gives the value."""
    if isinstance(value, Mapping):
        return {key: escape(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [escape(entry) for entry in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: 2 * match[1] + r"\${", value)
    return value


def resolve(merged: Mapping[str, Any], groups: Mapping[str, Any], problems: Sequence[str]) -> Config:
    """The typed and complete config from merged layers, and their `typed_groups` and mistakes so far, `problems`.

    Raises BadConfig with all mistakes.
    """
    parts, problems = dict(groups), list(problems)
    chosen = {group: _options_of_group(group, merged) for group in NAMED_GROUPS}
    for group in NAMED_GROUPS:
        with _collect_problems(problems):
            parts[group] = build(REGISTRIES[group], chosen[group], group)
    for group in ("model", "data"):
        if group in parts:
            problems += mistakes(REGISTRIES[group], parts[group], group)
    if problems:
        raise BadConfig(problems)
    resolved = options_of(parts["top"])
    for group in FIXED_GROUPS:
        resolved[group] = options_of(parts[group])
    if parts["local"].lr_by_theory is not None:
        resolved["local"]["lr"] = {"theory": parts["local"].lr_by_theory}
    for group in NAMED_GROUPS:
        resolved[group] = {
            **REGISTRIES[group].choose(chosen[group], group)[1],
            **constructor_options(parts[group], chosen[group]),
        }
    stated_directions(resolved)
    for group in ("model", "data"):
        path = parts[group].class_path
        # made-up paths of objects passed from Python, and paths in __main__, which is another module in each process
        if path is not None and (given_for(path) or path.startswith("__main__.")):
            parts[group].target = import_class(path, group)
    return Config(**parts, resolved=escape(resolved), objects=passing(parts))


def typed_groups(merged: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Typed objects by name (`top` for the top-level keys, and one for each fixed group), and messages for mistakes.

    Neither torch nor Ray is imported.
    """
    top_keys = keys_of(TopConfig)
    problems = [
        unknown_key(str(key), (*top_keys, *GROUPS, "base")).problems[0]
        for key in merged
        if key not in top_keys and key not in GROUPS
    ]
    parts: dict[str, Any] = {}
    with _collect_problems(problems):
        parts["top"] = make_typed(TopConfig, {key: value for key, value in merged.items() if key in top_keys})
    for group, cls in FIXED_GROUPS.items():
        chosen = _options_of_group(group, merged)
        by_theory = group == "local" and isinstance(chosen.get("lr"), Mapping)
        with _collect_problems(problems):
            parts[group] = LocalConfig.by_theory(chosen) if by_theory else make_typed(cls, chosen, group)
    if "top" in parts and "runtime" in parts:
        with _collect_problems(problems):
            parts["runtime"].check_dtype(parts["top"].dtype)
    return parts, problems


@contextmanager
def _collect_problems(problems: list[str]) -> Iterator[None]:
    """A context that adds the messages of a BadConfig to `problems`, in place of the error."""
    try:
        yield
    except BadConfig as error:
        problems += error.problems


def _options_of_group(group: str, merged: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a group in merged layers, with the default name if they have neither name nor class_path."""
    options = merged.get(group) or {}
    return {**({} if options.get("class_path") else DEFAULTS.get(group, {})), **options}
