"""A page has at most as many lines by hand, and a sentence at most as many words, as a reader has patience for."""

import re

import pytest

from docs import reference

LONGEST = 35  # words of a sentence
MOST = {"README.md": 60, "CONTRIBUTING.md": 35, "CHANGELOG.md": 40}  # lines with text, generated parts left out
OF_ANY = 150
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
    assert reference.lines_by_hand(page) <= MOST.get(name_of(page), OF_ANY)


def test_the_pages_together_are_within_their_length():
    assert sum(map(reference.lines_by_hand, reference.PAGES)) <= TOGETHER


@pytest.mark.parametrize("page", reference.PAGES, ids=name_of)
def test_no_sentence_has_to_be_read_twice(page):
    text = "" if page.name in reference.GENERATED else page.read_text()
    long = [sentence for sentence in sentences(text) if len(sentence.split()) > LONGEST]
    assert long == []
