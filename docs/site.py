"""What the site has beyond docs/ (a hook of mkdocs.yml).

README, CONTRIBUTING and CHANGELOG as pages, the pictures of the ledger, pictures in the reader's theme, a link from
each word of the glossary at its first use on a page, and llms.txt, the list of pages for language models.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from docs.glossary import linked

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PICTURES = "results"  # of the ledger, which lies beside docs/
PAGES = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
PICTURE = re.compile(r"!\[([^\]]*)\]\(((?:docs/)?img/)([\w-]+)\.png\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, with their links as seen from docs/."""
    for page, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        text = re.sub(r"\]\((?:docs/)?([\w./-]+\.(?:md|png))(#[\w-]+)?\)", _link, text)
        files.append(File.generated(config, page, content=text))
    for picture in sorted((ROOT / PICTURES).rglob("*.png")):
        files.append(File.generated(config, picture.relative_to(ROOT).as_posix(), abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with its words linked, and its pictures in both themes; those of the ledger as seen from results/."""
    text = markdown.replace("](../../results/", "](")
    path = page.file.src_uri
    if path.startswith(("api/", "results", "claims", "glossary", "changelog")):
        return text
    up = "../" * path.count("/")
    return linked(PICTURE.sub(_themes, text), f"{up}glossary.md")


def on_post_build(config: Any) -> None:
    """Writes llms.txt: every page with its title, in the order of the navigation."""
    site = Path(config["site_dir"])
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    for path in _pages(config["nav"]):
        source = ROOT / PAGES[path] if path in PAGES else DOCS / path
        title = re.search(r"^# (.*)", source.read_text(encoding="utf-8"), re.MULTILINE)[1]  # type: ignore[index]
        lines.append(f"- [{title}]({path.removesuffix('.md').removesuffix('index') or '.'}/)")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _themes(match: re.Match[str]) -> str:
    """A picture that has a dark form, as one for each theme."""
    text, folder, name = match.groups()
    if not (DOCS / "img" / f"{name}-dark.png").exists():
        return match[0]
    return f"![{text}]({folder}{name}.png#only-light)\n![{text}]({folder}{name}-dark.png#only-dark)"


def _pages(nav: Any) -> list[str]:
    """The pages of a navigation, in its order."""
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav
    return [page for each in inner for page in _pages(each)]


def _link(match: re.Match[str]) -> str:
    places = {source: page for page, source in PAGES.items()}
    return f"]({places.get(match[1], match[1])}{match[2] or ''})"
