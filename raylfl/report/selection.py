"""Selection of runs by their config and metrics, and the keys in which runs differ."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from operator import ge, gt, le, lt
from typing import Any, TypeGuard

from raylfl.config.identity import flatten
from raylfl.config.text import parse
from raylfl.errors import BadConfig, did_you_mean
from raylfl.report.labels import canonical
from raylfl.report.runs import RunRecord

FORM = re.compile(r"(.+?)(<=|>=|!=|=|<|>)(.*)", re.DOTALL)
ORDER: dict[str, Callable[[float, float], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
OF_RECORD = ("format", "logging.id", "logging.dir")  # keys in which every two runs may differ


def facts(run: RunRecord) -> dict[str, Any]:
    """What a condition may name: config keys with dots, groups by the name of their component, and newest metrics.

    Newest metrics have the names of metrics.jsonl; `finished` and `diverged` are true or false; `rounds_done` is the
    number of rounds.
    """
    groups = {k: v.get("name") or v.get("class_path") for k, v in run.config.items() if isinstance(v, Mapping)}
    named = {key: name for key, name in groups.items() if name is not None}
    state = {"finished": run.finished, "diverged": run.diverged, "rounds_done": len(run.rounds)}
    return {**flatten(run.config), **named, **run.newest, **state}


def condition(text: str) -> tuple[str, Callable[[Any], bool]]:
    """The key and the test of a condition KEY SIGN VALUE: `local.lr=0.1`, `algorithm!=focus`, `test/accuracy>=0.8`.

    `=` and `!=` compare any values, the other signs numbers. None, of a run without the key, meets no condition but
    `!=`. Raises BadConfig for another form.
    """
    parts = FORM.fullmatch(text)
    if parts is None:
        raise BadConfig(f"--where '{text}' must be KEY=VALUE, or with one of !=, <, <=, >, >=: local.lr=0.1")
    key, sign, value = (part.strip() for part in parts.groups())
    try:
        wanted = parse(value)
    except ValueError as error:
        raise BadConfig(f"--where '{text}': the value is not yaml ({error})") from None
    if sign not in ORDER:
        return key, lambda value: (canonical(value) == canonical(wanted)) is (sign == "=")
    if not _is_number(wanted):
        raise BadConfig(f"--where '{text}', but {sign} needs a number")
    return key, lambda value: _is_number(value) and ORDER[sign](float(value), float(wanted))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def select(runs: Sequence[RunRecord], conditions: Sequence[str]) -> list[RunRecord]:
    """The runs that meet all conditions. Raises BadConfig for a condition whose key no run has, or that is none."""
    tests = [condition(text) for text in conditions]
    known = [facts(run) for run in runs]
    names = dict.fromkeys(name for one in known for name in one)
    for text, (key, _) in zip(conditions, tests, strict=True):
        if key not in names:
            hint = did_you_mean(key, names, "config keys, and metrics as in metrics.jsonl, are known")
            raise BadConfig(f"--where {text}: no run has {key}; {hint}")
    return [run for run, one in zip(runs, known, strict=True) if all(test(one.get(key)) for key, test in tests)]


def differing_keys(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """The config keys, versions and commits in which the runs differ, without OF_RECORD: key -> value in each run."""
    known = [flatten(run.config) | _origin(run) for run in runs]
    names = [name for name in dict.fromkeys(name for one in known for name in one) if name not in OF_RECORD]
    values = {name: [one.get(name) for one in known] for name in names}
    return {name: each for name, each in values.items() if len({canonical(value) for value in each}) > 1}


def _origin(run: RunRecord) -> dict[str, Any]:
    keys = ("versions", "git_commit", "raylfl_commit")
    return flatten({key: run.summary[key] for key in keys if key in run.summary})


def same_parameters(runs: Sequence[RunRecord]) -> bool | None:
    """Whether the final parameters of the runs have the same bits; None if a run has not finished."""
    digests = [run.summary.get("params_sha256") for run in runs]
    return None if None in digests else len(set(digests)) == 1
