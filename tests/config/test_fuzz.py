"""A fuzz over configs: each is refused with a message or runs, without a traceback or a hang.

RAYLFL_FUZZ=50 tries fifty times as many; `python -m benchmarks.fuzz` also damages run directories.
"""

import os
import random
import tempfile
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raylfl
from benchmarks.fuzz import REGISTRIES, Fuzz
from raylfl.config.find import conf_roots
from raylfl.config.load import compose
from raylfl.errors import RaylflError
from tests.runtime.tiny import TINY

TIMES = int(os.environ.get("RAYLFL_FUZZ", "1"))


@pytest.mark.parametrize("kind", ["config", "command"])
def test_random_configs_and_command_lines_end_with_at_most_two_lines(kind, tmp_path):
    fuzz = Fuzz(0, tmp_path)
    for number in range(40 * TIMES):
        _, wrong = getattr(fuzz, kind)(random.Random(number))
        assert wrong is None, f"case {number}: {wrong}"


TYPED = {
    "float": st.sampled_from([0.1, 0.5, 1.0, 0.0, -1.0]),
    "int": st.integers(0, 4),
    "bool": st.booleans(),
    "str": st.sampled_from(["mean", "resample", "none", "x"]),
}
FORMS = st.dictionaries(
    st.sampled_from(["uniform", "ranges", "list", "linspace", "phases", "name", "p", "until"]),
    st.lists(st.floats(-1, 2), max_size=2),
    max_size=2,
)
ANY = st.one_of(st.sampled_from([0.1, 1, 3]), st.just({"uniform": [0.2, 0.9]}), st.just({"uniform": [1, 3]}), FORMS)
STARTS = {
    group: [compose(path)[group] for root in conf_roots()[1:] for path in sorted((root / group).glob("*.yaml"))]
    for group in REGISTRIES
}
ELSEWHERE = ("trace", "file", "natural")  # these need their own files or data
SMALL = {"size": 2, "min_size": 1, "cut": "body.1"}  # options that fit the tiny run


def plausible(group):
    """A shipped component that fits, or any component by name, in half of the cases with two options at any values."""
    fitting = [
        {key: SMALL.get(key, value) for key, value in start.items()}
        for start in STARTS[group]
        if start["name"] not in ELSEWHERE
    ]
    starts = [*fitting, *({"name": entry.name} for entry in REGISTRIES[group])]

    def changed(start):
        options = {option.name: str(option.type) for option in fields(REGISTRIES[group].get(start["name"]).cls)}
        values = {name: TYPED.get(kind.removesuffix(" | None"), ANY) for name, kind in options.items()}
        some = st.lists(st.sampled_from(sorted(values)), max_size=2, unique=True) if values else st.just([])
        chosen = some.flatmap(lambda names: st.fixed_dictionaries({name: values[name] for name in names}))
        return chosen.map(lambda options: {**start, **options})

    return st.one_of(st.sampled_from(fitting), st.sampled_from(starts).flatmap(changed))


def some(**options):
    """A group with any of these keys."""
    return st.fixed_dictionaries({}, optional=options)


WORLDS = st.fixed_dictionaries(
    {group: plausible(group) for group in REGISTRIES},
    optional={
        "num_clients": st.integers(1, 7),
        "dtype": st.sampled_from(["float32", "float64"]),
        "weights": st.sampled_from(["uniform", "data_size"]),
        "local": some(
            lr=st.sampled_from([1e-3, 0.1, 1e30]),
            steps=st.one_of(st.integers(1, 3), ANY),
            batch_size=st.one_of(st.integers(1, 70), st.just("full"), ANY),
            momentum=st.sampled_from([0.0, 0.9]),
            clip_norm=st.sampled_from([0.1, None]),
            sampling=st.sampled_from(["reshuffle", "with_replacement"]),
            optimizer=st.sampled_from(["sgd", "module"]),
            lr_schedule=st.sampled_from(["constant", "sqrt", {"name": "exponential", "decay": 0.9}]),
            buffers=st.sampled_from(["average", "local"]),
            dynamic=st.booleans(),
        ),
        "system": some(seconds_per_step=ANY, bandwidth=st.sampled_from([None, 1e6])),
        "eval": some(
            every=st.integers(0, 3),
            batch_size=st.integers(1, 9),
            random_clients=st.integers(0, 9),
            **{"global": st.booleans(), "clients": st.booleans(), "participants": st.booleans()},
        ),
        "checkpoint": some(every=st.integers(0, 2), keep=st.integers(1, 2)),
        "runtime": some(
            vectorize=st.sampled_from(["auto", "always", "never"]),
            micro_cohort=st.integers(1, 3),
            client_timeout=st.sampled_from([None, 20.0]),
            on_nonfinite=st.sampled_from(["fail", "drop"]),
            precision=st.sampled_from([None, "bf16-mixed", "32-true", "64-true"]),
        ),
    },
)


@given(WORLDS)
@settings(max_examples=15 * TIMES)
@pytest.mark.timeout(120 * TIMES)
def test_a_plausible_config_is_refused_with_a_message_or_runs(world):
    with tempfile.TemporaryDirectory() as folder:
        place = {"dir": folder, "report": False}
        local = {**world.get("runtime", {}), "backend": "local"}
        config = {**TINY, "rounds": 2, "logging": place, **world, "runtime": local}
        try:
            result = raylfl.run(config)
        except RaylflError as error:  # BadConfig before it starts; a client or the server that diverges
            assert str(error).strip()
        else:
            assert [row["round"] for row in result.metrics] == [0, 1]
