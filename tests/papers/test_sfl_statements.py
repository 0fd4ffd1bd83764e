"""The statements of SFL's Sec. 4.2 and App. G.4 about tables 3 and 11, with the margins of their captions."""

from dataclasses import replace

import pytest

from papers.sfl_grid import VARIANTS, published_best
from papers.sfl_tables import Table3, Table11, mark

MNIST = ("MNIST, logistic", "MNIST, MLP", "MNIST, LeNet-5", "FMNIST, LeNet-5", "FMNIST, CNN")


def claims(table, change=lambda cell, mean: mean, keep=lambda cell: True):
    """Text -> claim, judged with the published accuracies, some of which are changed or left out."""
    numbers = published_best()
    cells = {p.without("lr", "stage") for p in table.points("paper") if "without" not in p.task}
    ends = {
        cell: replace(stat, mean=change(cell, stat.mean))
        for cell in sorted(cells, key=str)
        if keep(cell)
        for stat in [numbers[cell.task, cell.classes, cell.steps, cell.method]]
    }
    return table.claims(ends)


@pytest.mark.parametrize("table", [Table3(), Table11()])
def test_the_published_numbers_agree_with_every_statement(table):
    judged = claims(table)
    assert len(judged) == 1 + len(table.stated)
    assert all(claim.holds is True for claim in judged)


@pytest.mark.parametrize(
    ("table", "wrong", "points"),
    [
        (Table3(), lambda c: c.classes == 1 and c.steps == 50 and "ResNet" in c.task, -30.0),
        (Table3(), lambda c: "CINIC" in c.task and c.classes == 2 and c.steps == 20, -1.0),
        (Table3(), lambda c: "CIFAR" in c.task and c.classes == 2, 10.0),
        (Table11(), lambda c: c.task == "FMNIST, CNN" and c.classes == 1, -3.0),
        (Table11(), lambda c: c.task == "MNIST, logistic" and c.steps == 50, 20.0),
    ],
)
def test_a_statement_fails_if_one_of_its_settings_disagrees(table, wrong, points):
    change = lambda cell, mean: mean + points / 100 * (cell.method == "SFL" and wrong(cell))  # noqa: E731
    verdicts = [claim.holds for claim in claims(table, change)]
    assert verdicts.count(False) >= 2  # the marks and a statement


def test_a_statement_is_open_while_settings_lack_runs_and_false_as_soon_as_one_disagrees():
    first = lambda cell: cell.steps == 5  # noqa: E731
    assert [claim.holds for claim in claims(Table11(), keep=first)][:2] == [None, None]
    worse = lambda cell, mean: mean - 0.2 * (cell.method == "SFL" and cell.task == "MNIST, MLP")  # noqa: E731
    assert [claim.holds for claim in claims(Table11(), worse, first)][:2] == [False, False]


def test_networks_that_the_table_of_the_paper_lacks_are_not_counted():
    numbers = published_best()
    cells = {p.without("lr", "stage") for p in Table11().points("paper") if p.steps == 5}
    ends = {c: numbers[VARIANTS.get(c.task, c.task), c.classes, c.steps, c.method] for c in cells}
    assert {c.task for c in cells} > set(MNIST)
    first = Table11().claims(ends)[0]
    assert (first.holds, first.evidence) == (None, f"in {2 * len(MNIST)} of {2 * len(MNIST)} settings")


@pytest.mark.parametrize(
    ("task", "lead", "expected"),
    [
        ("MNIST, MLP", 0.99, "none"),
        ("MNIST, MLP", 1.01, "SFL"),
        ("FMNIST, CNN", -1.01, "PFL"),
        ("CIFAR-10, VGG-9", 1.99, "none"),
        ("CINIC-10, VGG-9", -2.01, "PFL"),
    ],
)
def test_a_method_is_marked_from_the_margin_of_the_caption_on(task, lead, expected):
    assert mark((task, 1, 5), lead) == expected
