"""Values that a config cannot have, or has in another meaning than yaml: names, URLs, numbers with colons."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from raylfl.cli import main
from raylfl.config.load import load_config
from raylfl.config.text import dump, parse
from raylfl.errors import BadConfig
from raylfl.heterogeneity.participation.uniform import Weighted

ODD = ["a\ud800", "a\x1b[31m", "a\u202eb", "a\x7f", "a\u200bb", "a\tb", "a\x85b", "\u2028", "a\x00", "x" * 201]


@pytest.mark.parametrize("name", ODD, ids=ascii)
@pytest.mark.parametrize("key", ["name", "logging.id"])
def test_names_that_a_terminal_would_not_show_are_refused(name, key, capsys):
    with pytest.raises(BadConfig, match="the name of one folder: printable") as error:
        load_config({"name": name} if key == "name" else {"logging": {"id": name}})
    assert str(error.value).isascii()


@pytest.mark.parametrize("name", ["Größe 2", "实验", "a-b_c.d", "x" * 200])
def test_names_in_any_language_are_names(name):
    assert load_config({"name": name}).top.name == name


@pytest.mark.parametrize("query", ["secret=abc", "token=abc", "X-Amz-Signature=1", "a"])
def test_a_url_with_a_query_is_refused_and_not_shown(query):
    with pytest.raises(BadConfig, match=r"must be a URL without a password and without \?") as error:
        load_config({"logging": {"dir": f"s3://bucket/runs?{query}"}})
    assert query not in str(error.value).replace("a URL without a password", "") or query == "a"


NUMBERS = {
    "7": 7,
    "-7": -7,
    "+7": 7,
    "0": 0,
    "1_000": 1000,
    "0x1f": 31,
    "0b11": 3,
    "1e3": 1000.0,
    "1.5": 1.5,
}
TEXTS = ["1:2:3", "1:30", "-1:30", "1:30.5", "08:15", "1_0:00", "017", "-007", "08"]


def test_numbers_with_colons_or_leading_zeros_are_texts_and_others_numbers():
    assert {text: parse(text) for text in NUMBERS} == NUMBERS
    assert [parse(text) for text in TEXTS] == TEXTS


def test_leading_zeros_change_no_number_and_stay_in_a_name():
    config = load_config("digits", ["rounds=010", "logging.id=007"])
    assert (config.top.rounds, config.logging.id) == (10, "007")


@pytest.mark.parametrize("number", ["1e3", "1.50"])
def test_a_name_that_yaml_reads_as_a_fraction_is_refused_without_quotes(number):
    with pytest.raises(BadConfig, match="must be a string or null, in quotes if it looks like a number"):
        load_config("digits", [f"logging.id={number}"])
    assert load_config("digits", [f"logging.id='{number}'"]).logging.id == number


@pytest.mark.parametrize("text", [*NUMBERS, *TEXTS, "12e4567", "+1e3", "1.e3", "1_0e3", "2001-01-01", "yes", ".nan"])
def test_saved_texts_are_read_back_as_texts(text):
    assert parse(dump({"a": text})) == {"a": text}
    assert "'" not in dump({"a": parse(text)}) or isinstance(parse(text), str)


def test_a_seed_with_colons_is_refused(capsys):
    assert main(["run", "digits", "seed=1:2:3"]) == 2
    assert "seed=1:2:3, but must be a whole number" in capsys.readouterr().err


@pytest.mark.parametrize("weights", [[1e308] * 4, [0.0] * 4, [1.7e308, 1e308]])
def test_weights_without_a_finite_positive_sum_are_refused(weights):
    with pytest.raises(BadConfig, match="above 0 for at least one client, with a finite sum"):
        Weighted(size=2, weights=weights)
    assert Weighted(size=2, weights=[1e308, 0.0]).weights == [1e308, 0.0]


class Halves:
    """Two classes in bfloat16."""

    def __init__(self):
        x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
        self.train_dataset = self.test_dataset = TensorDataset(x.bfloat16(), (x[:, 0] > 0).long())
