"""The site links a word of the glossary at its first use in running text, and nowhere else."""

from docs.glossary import PAGE, linked, words

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


def test_first_uses_in_running_text_are_linked():
    assert linked(TEXT, "g.md") == LINKED


def test_the_glossary_has_about_twenty_words():
    assert 18 <= len(words()) <= 24
    assert all(f'<a id="{anchor}"></a>' in PAGE.read_text() for anchor in words().values())
