"""Pages and docstrings use the field's words and those of the glossary, which the site links at their first use."""

import ast
import re

import pytest

from docs import reference
from docs.glossary import PAGE, linked, words

HOUSE = {  # word -> the field's word
    "arena": "fixed memory",
    "carried out": "run, done",
    "carries out": "runs, does",
    "carry out": "run, do",
    "departure": "difference from the paper",
    "doubt": "the reason in words",
    "emd": "L1 label distance",
    "facet": "scenario",
    "geometry": "memory layout",
    "handle": "reference",
    "held": "stored",
    "lane": "CUDA stream",
    "last bits": "rounding",
    "law": "distribution",
    "masses": "push-sum weights",
    "peers": "other workers",
    "piece": "part",
    "refusal": "reason",
    "relay": "through the server",
    "rung": "milestone of ASHA",
    "samples innermost": "batch-last layout",
    "sheet": "part of the report",
    "slot": "record, fixed memory",
    "spell": "period",
    "tape": "recording",
    "the carry": "the name `carry`",
    "trait": "class attribute",
    "variate": "control variate",
    "wave": "group of calls",
}
FIELD = r"(?:control|gamma)\s+variate"
WORD = re.compile(rf"\b({'|'.join(word.replace(' ', chr(92) + 's+') for word in HOUSE)})s?\b", re.IGNORECASE)
QUOTED = re.compile(rf'``.*?``|`[^`]*`|"[^"\n]*"|^ *>>> .*$|^ {{4,}}.*$|{FIELD}', re.MULTILINE | re.IGNORECASE)
MODULES = sorted(
    path
    for path in (reference.ROOT / "raylfl").rglob("*.py")
    if not any(part[0] == "_" and part != "__init__.py" for part in path.parts[-3:])
)
PAGES = [page for page in reference.PAGES if page.name not in {"CHANGELOG.md", "faults.md", "kernels.md"}]


def name_of(path):
    return path.relative_to(reference.ROOT).as_posix()


def house_words(text, names=frozenset()):
    """The house words of a text that are no names of the code."""
    plain = re.sub(r"\b(carr\w+)\s+(?:it|them)\s+out\b", r"\1 out", QUOTED.sub(" ", text))
    words = (" ".join(match[1].lower().split()) for match in WORD.finditer(plain))
    return [f"{word} (write: {HOUSE[word]})" for word in words if not {word, f"{word}s"} & names]


def public(tree):
    """(name, docstring, names of the code that it may use) of a module and its public classes and functions."""

    def inside(node, outer):
        for child in node.body:
            if isinstance(child, ast.ClassDef | ast.FunctionDef) and child.name[0] != "_":
                names = outer | names_in(child)
                yield child.name, ast.get_docstring(child) or "", names
                if isinstance(child, ast.ClassDef):
                    yield from inside(child, names)

    yield "module", ast.get_docstring(tree) or "", names_in(tree)
    yield from inside(tree, frozenset())


def names_in(node):
    """The words of the names of classes, functions, parameters and fields in this code."""
    names = set()
    for each in ast.walk(node):
        if isinstance(each, ast.arg):
            names.add(each.arg)
        elif isinstance(each, ast.ClassDef | ast.FunctionDef):
            names.add(each.name)
        elif isinstance(each, ast.AnnAssign | ast.Assign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
            names |= {target.attr for target in targets if isinstance(target, ast.Attribute)}
    return frozenset(word.lower() for name in names for word in re.findall(r"[A-Z]?[a-z]+", name))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_has_no_house_word(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert house_words(re.sub(r"<!--.*?-->|\]\([^)]*\)", "", text)) == []


def test_a_public_docstring_has_no_house_word():
    used = [
        f"{name_of(path)}, {name}: {', '.join(words)}"
        for path in MODULES
        for name, text, names in public(ast.parse(path.read_text()))
        if (words := house_words(text, names | set(path.stem.split("_"))))
    ]
    assert not used, "\n".join(used)


def test_house_words_are_found_and_names_of_the_code_are_not():
    tree = ast.parse('def f(lane):\n    """The lane of a slot; `slot` and a control variate."""')
    (_, _, _), (name, text, names) = public(tree)
    assert (name, house_words(text, names)) == ("f", ["slot (write: record, fixed memory)"])
    assert house_words("It carries them out\nin a round of two handles.") == [
        "carries out (write: runs, does)",
        "handle (write: reference)",
    ]


TEXT = """# A worker

| client | a `worker` |
| --- | --- |

The `client` and [a worker](x.md) of worker=2 send an upload. Each worker has a client; the worker of a node
sends uploads in a round.

```text
client worker
```
"""
LINKED = """# A worker

| client | a `worker` |
| --- | --- |

The `client` and [a worker](x.md) of worker=2 send an [upload](g.md#upload). Each [worker](g.md#worker) has a \
[client](g.md#client); the worker of a [node](g.md#node)
sends uploads in a [round](g.md#round).

```text
client worker
```
"""


def test_the_glossary_has_about_twenty_words_whose_first_uses_are_linked():
    assert linked(TEXT, "g.md") == LINKED
    assert 18 <= len(words()) <= 24
    assert all(f'<a id="{anchor}"></a>' in PAGE.read_text() for anchor in words().values())
