"""A page has at most as many lines by hand, and a sentence at most as many words, as a reader has patience for."""

from __future__ import annotations

import re

import pytest

from docs import reference

LONGEST = 35  # words of a sentence
TARGETS = {  # lines by hand, generated parts left out
    "README.md": 80,
    "CONTRIBUTING.md": 30,
    "CHANGELOG.md": 60,
    "docs/adding-an-algorithm.md": 70,
    "docs/algorithms.md": 90,
    "docs/api/algorithm.md": 44,
    "docs/api/components.md": 40,
    "docs/api/python.md": 75,
    "docs/api/solvers.md": 20,
    "docs/api/testing.md": 45,
    "docs/architecture.md": 110,
    "docs/catalogue.md": 40,
    "docs/coming-from.md": 55,
    "docs/commands.md": 10,
    "docs/comparing.md": 45,
    "docs/config.md": 140,
    "docs/faults.md": 10,
    "docs/findings.md": 230,
    "docs/formats.md": 65,
    "docs/glossary.md": 28,
    "docs/graphs.md": 90,
    "docs/heterogeneity.md": 95,
    "docs/install.md": 40,
    "docs/kernels.md": 0,
    "docs/measurements.md": 45,
    "docs/metrics.md": 65,
    "docs/models.md": 130,
    "docs/papers.md": 40,
    "docs/placement.md": 135,
    "docs/plugins.md": 60,
    "docs/python.md": 140,
    "docs/releases.md": 30,
    "docs/reliability.md": 50,
    "docs/reproduce.md": 95,
    "docs/running.md": 160,
    "docs/scaling.md": 170,
    "docs/sweeps.md": 90,
    "docs/theory.md": 115,
    "docs/troubleshooting.md": 45,
    "docs/tutorials/cluster.md": 60,
    "docs/tutorials/first-run.md": 100,
    "docs/tutorials/own-algorithm.md": 150,
    "docs/tutorials/own-model-and-data.md": 110,
    "docs/tutorials/paper.md": 100,
    "docs/tutorials/sweep.md": 60,
}
PAGES = [page for page in reference.PAGES if page.name != "running.md"]
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


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_within_its_length(page):
    assert reference.lines_by_hand(page) <= TARGETS[name_of(page)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_sentence_has_to_be_read_twice(page):
    text = "" if page.name in reference.GENERATED else page.read_text()
    long = [sentence for sentence in sentences(text) if len(sentence.split()) > LONGEST]
    assert long == []
