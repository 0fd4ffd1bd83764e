"""The files of the package import each other in one direction; `make lint` holds the layers."""

from graphlib import TopologicalSorter

import grimp


def test_no_files_import_each_other_in_a_circle():
    """Imports inside functions and under TYPE_CHECKING count; a cycle would raise CycleError with its files."""
    graph = grimp.build_graph("raylfl", cache_dir=None)
    packages = {m for m in graph.modules if graph.find_children(m)}  # a package may import its own modules
    files = graph.modules - packages
    order = TopologicalSorter({m: graph.find_modules_directly_imported_by(m) - packages for m in files})
    assert set(order.static_order()) == files
