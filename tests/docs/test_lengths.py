"""A page has at most as many lines by hand, and a sentence at most as many words, as a reader has patience for."""

import re

import pytest

from docs import reference

LONGEST = 35  # words of a sentence
TARGETS = {  # lines with text, generated parts left out
    "README.md": 60,
    "CONTRIBUTING.md": 35,
    "CHANGELOG.md": 40,
    "docs/adding-an-algorithm.md": 65,
    "docs/algorithms.md": 65,
    "docs/api/algorithm.md": 10,
    "docs/api/components.md": 10,
    "docs/api/python.md": 5,
    "docs/api/solvers.md": 5,
    "docs/api/testing.md": 20,
    "docs/architecture.md": 85,
    "docs/catalogue.md": 25,
    "docs/coming-from.md": 50,
    "docs/commands.md": 10,
    "docs/comparing.md": 45,
    "docs/config.md": 70,
    "docs/faults.md": 10,
    "docs/findings.md": 150,
    "docs/formats.md": 55,
    "docs/glossary.md": 30,
    "docs/graphs.md": 65,
    "docs/heterogeneity.md": 60,
    "docs/install.md": 30,
    "docs/kernels.md": 0,
    "docs/measurements.md": 50,
    "docs/metrics.md": 55,
    "docs/models.md": 120,
    "docs/papers.md": 35,
    "docs/placement.md": 130,
    "docs/plugins.md": 45,
    "docs/python.md": 105,
    "docs/releases.md": 25,
    "docs/reliability.md": 40,
    "docs/reproduce.md": 80,
    "docs/running.md": 120,
    "docs/scaling.md": 105,
    "docs/sweeps.md": 65,
    "docs/theory.md": 100,
    "docs/troubleshooting.md": 35,
    "docs/tutorials/cluster.md": 50,
    "docs/tutorials/first-run.md": 70,
    "docs/tutorials/own-algorithm.md": 100,
    "docs/tutorials/own-model-and-data.md": 85,
    "docs/tutorials/paper.md": 70,
    "docs/tutorials/sweep.md": 50,
}
TOGETHER = 2400
FENCE = re.compile(r"^ *```.*?^ *```\n|<!--.*?-->", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^    .*\n", re.MULTILINE)


def name_of(page):
    return page.relative_to(reference.ROOT).as_posix()


def sentences(text):
    """The sentences of a page's paragraphs, list items and cells, without code."""
    text = COMMAND.sub("\n", FENCE.sub("\n", reference.BY_MACHINE.sub("\n", text)))
    text = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", text))
    for part in re.split(r"\n\s*\n|\n(?= *(?:[-*|#>]|\d+\. ))|(?<!\\)\|", text):
        yield from re.split(r"(?<=[.!?]) ", " ".join(part.split()))


@pytest.mark.parametrize("page", reference.PAGES, ids=name_of)
def test_a_page_is_within_its_length(page):
    assert reference.lines_by_hand(page) <= TARGETS[name_of(page)]


def test_the_pages_together_are_within_their_length():
    assert sum(map(reference.lines_by_hand, reference.PAGES)) <= TOGETHER


@pytest.mark.parametrize("page", reference.PAGES, ids=name_of)
def test_no_sentence_has_to_be_read_twice(page):
    text = "" if page.name in reference.GENERATED else page.read_text()
    long = [sentence for sentence in sentences(text) if len(sentence.split()) > LONGEST]
    assert long == []
