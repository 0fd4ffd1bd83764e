"""`raylfl completion bash|zsh`: a script that completes commands, options, configs, keys and names of components.

The script contains all words, also the names of plug-ins: completion does not start Python. Names of files are
candidates too, except for the commands `list` and `new`. bash splits `algorithm.name=foc` at the `=`: the key
`algorithm.name` determines the candidates for `foc`.
"""

import argparse
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import fields
from string import Template
from typing import Any

from raylfl.cli.new import KINDS as TEMPLATE_KINDS
from raylfl.cli.new import TEMPLATES
from raylfl.config.components import keys_of
from raylfl.config.find import FOLDERS, config_names
from raylfl.config.groups.top import TopConfig
from raylfl.config.registries import KINDS, REGISTRIES
from raylfl.config.schema import FIXED_GROUPS, NAMED_GROUPS
from raylfl.core.local_rule import Schedule

SHELLS = ("bash", "zsh")
SCRIPT = Template((TEMPLATES / "completion.sh.txt").read_text("utf-8"))


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The completion script of bash or zsh, which runs that of bash by its `bashcompinit`."""
    group = next(action for action in parser._actions if isinstance(action.choices, dict))
    commands: dict[str, Any] = dict(group.choices or {})
    values = {f"{group}|{group}.name": registry.names() for group, registry in REGISTRIES.items()}
    values["base"] = config_names()  # shell pattern of config keys -> their possible values
    keys, kinds = _keys(), [*KINDS, *FOLDERS]
    words = {name: (config_names("."), keys) for name, sub in commands.items() if sub.takes_config}  # first, later ones
    words["sweep"] = [folder.removeprefix("sweep/") for folder in config_names("sweep")], keys
    words |= {"list": (kinds, kinds), "new": ([*TEMPLATE_KINDS, "job"], []), "completion": ([*SHELLS], [])}
    text = SCRIPT.substitute(
        shell=shell,
        algorithms=_quoted(REGISTRIES["algorithm"].names()),
        commands=_quoted([*commands, "--version", "--help"]),
        values="\n".join(f"            {key}) words={_quoted(words)};;" for key, words in values.items()),
        cases="\n".join(_case(name, sub, *words.get(name, ([], []))) for name, sub in commands.items()),
    )
    return text if shell == "bash" else f"autoload -U +X bashcompinit && bashcompinit\n{text}"


def _case(name: str, parser: argparse.ArgumentParser, first: Sequence[str], later: Sequence[str]) -> str:
    """The `case` branch of the script for one command: options anywhere, else `first` in second place, then `later`."""
    options = _quoted(sorted(option for option in parser._option_string_actions if option.startswith("--")))
    words = f"if ((COMP_CWORD == 2)); then words={_quoted(first)}; else words={_quoted(later)}; fi"
    return (
        f"        {name})\n            {words}\n"
        f'            words="$words "{options}\n            COMPREPLY=($(compgen -W "$words" -- "$current"));;'
    )


def _keys() -> list[str]:
    """Dotted keys of the config, each with a trailing `=`; of named groups, the options of all their components."""
    keys = [*keys_of(TopConfig), "base"]
    keys += [f"{group}.{key}" for group, cls in FIXED_GROUPS.items() for key in keys_of(cls)]
    keys += [f"local.lr_schedule.{field.name}" for field in fields(Schedule)]
    keys += [f"{group}.{key}" for group in NAMED_GROUPS for key in ("name", "class_path")]
    keys += sorted(
        {f"{group}.{option}" for group in NAMED_GROUPS for e in REGISTRIES[group] for option in e.options() or ()}
    )
    return [f"{key}=" for key in dict.fromkeys(keys)]


def _quoted(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))
