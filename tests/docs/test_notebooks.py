"""The tutorials as notebooks: each is that of its page, and runs in a kernel with the outputs that it shows."""

import nbformat
import pytest
from nbclient import NotebookClient

from docs import notebooks
from tests.docs.pages import compare
from tests.startup.forks import LEAN

SHELL = f"""
import sys
sys.path.insert(0, {str(notebooks.PAGES[0].parents[2])!r})
{LEAN}from IPython.core.magic import register_cell_magic
from raylfl.report.style import Drawing
from tests.docs.pages import raylfl, typed
from tests.undrawn import savefig

Drawing.savefig = savefig

@register_cell_magic
def bash(line, cell):  # the commands in this process, which saves the start of others
    print(typed(cell, raylfl, fails=bool(line)), end="")
"""


@pytest.mark.parametrize("page", notebooks.PAGES, ids=lambda page: page.stem)
def test_a_notebook_is_that_of_its_page(page):
    """`python docs/notebooks.py` writes them, and so does `make format`."""
    text = page.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert text == notebooks.written(page)
    nbformat.validate(nbformat.reads(text, as_version=4))


@pytest.mark.exhaustive
def test_a_notebook_prints_in_a_kernel_what_it_shows(tmp_path):
    """test_tutorials.py executes the same cells of this page and the others in its own process."""
    (page,) = (page for page in notebooks.PAGES if page.stem == "own-model-and-data")
    book = nbformat.read(page.with_suffix(".ipynb"), as_version=4)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    expected = [output_of(cell) for cell in code]
    book.cells.insert(0, nbformat.v4.new_code_cell(SHELL))
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert sum(map(bool, expected)) > 1
    for cell, shown in zip(code, expected, strict=True):
        if shown:
            compare(shown, output_of(cell), page)


def output_of(cell):
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")
