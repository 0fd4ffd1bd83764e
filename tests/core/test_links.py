"""Totals of links: any order of messages, resumed totals, the busiest link."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from raylfl.core.links import HEAD, Links


@pytest.mark.parametrize("seed", range(3))
def test_totals_are_those_of_counting_by_hand(seed):
    """The rounds use known links, new links or none; some links lead to a server."""
    rng = np.random.default_rng(seed)
    links, messages, floats = Links(), Counter(), Counter()
    for _ in range(20):
        ends = rng.integers(-1, 4, (rng.integers(0, 6), 2))
        sent = rng.integers(1, 9, len(ends)).astype(np.float64)
        links = links.add(ends, sent)
        for (a, b), n in zip(ends.tolist(), sent.tolist(), strict=True):
            messages[a, b] += 1
            floats[a, b] += n
    names = {-1: "server"}
    lines = (f"{names.get(a, a)},{names.get(b, b)},{messages[a, b]},{int(floats[a, b])}\n" for a, b in sorted(floats))
    assert links.csv() == HEAD + "".join(lines)
    both = Counter()
    for (a, b), n in floats.items():
        both[tuple(sorted((a, b)))] += n
    a, b, most = links.busiest()
    assert most == both[a, b] == max(both.values())


def test_nothing_sent_has_no_busiest_link():
    none = Links().add(np.zeros((0, 2), dtype=np.int64), np.zeros(0))
    assert none.busiest() is None
    assert none.csv() == HEAD


def test_a_mean_over_clients_keeps_its_fraction():
    assert Links().add(np.array([[0, -1]]), np.array([2.5])).csv().endswith("0,server,1,2.5\n")


def test_columns_that_are_no_table_are_refused():
    links = Links().add(np.array([[0, 1], [1, 0]]), np.array([1.0, 2.0]))
    assert Links.of_columns(links.columns()).csv() == links.csv()
    turned = {name: values[::-1] for name, values in links.columns().items()}
    for broken in ({**links.columns(), "floats": np.zeros(1)}, turned, {**links.columns(), "codes": np.zeros(2)}):
        with pytest.raises(ValueError, match="floats on links is damaged"):
            Links.of_columns(broken)
