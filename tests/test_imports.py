"""Files of the package import each other in one direction; files of one process of pytest-xdist exist."""

from graphlib import TopologicalSorter

import grimp

from tests.conftest import GROUPS, HERE


def test_no_files_import_each_other_in_a_circle():
    """Imports inside functions and under TYPE_CHECKING count; a cycle would raise CycleError with its files."""
    graph = grimp.build_graph("raylfl", cache_dir=None)
    packages = {m for m in graph.modules if graph.find_children(m)}  # a package may import its own modules
    files = graph.modules - packages
    order = TopologicalSorter({m: graph.find_modules_directly_imported_by(m) - packages for m in files})
    assert set(order.static_order()) == files


def test_every_file_of_a_group_exists():
    assert [path for path in GROUPS if not (HERE / path).is_file()] == []
