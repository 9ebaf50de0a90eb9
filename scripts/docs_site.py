"""What mkdocs calls while it builds the site: pages from outside docs/, links between all of them, formulas as MathML.

Links in the repository's pages are those of its folders, so that they work wherever it is read. Pages of PAGES are part
of the site; what else is linked to (folders, scripts) stays a name. Browsers draw MathML without a script.
"""

import html
import posixpath
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/RESULTS.md", "benchmarks/SPEED.md")
FILES = ("benchmarks/results/speed.svg",)
CODE = r"```.*?```|`[^`\n]*`"  # which is left alone
LINK = re.compile(
    CODE + r"|(?P<mark>!?)\[(?P<text>(?:[^\]`]|`[^`]*`)*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)", re.DOTALL
)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Pages and pictures that live beside docs/ are in the site under the path that they have in the repository."""
    for name in PAGES + FILES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Relative links lead to the site's pages."""
    here = page.file.src_uri if page.file.src_uri in PAGES else f"docs/{page.file.src_uri}"
    return LINK.sub(lambda found: relinked(found, here, page.file.src_uri), markdown)


def relinked(link: re.Match[str], here: str, uri: str) -> str:
    """The link as the site has it, given the page's path in the repository and in the site."""
    mark, text, target, anchor = link["mark"], link["text"], link["target"], link["anchor"] or ""
    if target is None or ":" in target:
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
    if path.startswith("docs/") or path in PAGES + FILES:
        inside = posixpath.relpath(path.removeprefix("docs/"), posixpath.dirname(uri) or ".")
        return f"{mark}[{text}]({inside}{anchor})"
    if not (ROOT / path).exists():
        raise FileNotFoundError(f"{here} links to {target}, and there is no {path}")
    return text if "`" in text else f"`{text}`"


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas as MathML."""
    return FORMULA.sub(lambda found: mathml(html.unescape(found[2]), block=found[1] == "div"), content)


def mathml(latex: str, *, block: bool) -> str:
    """A formula that browsers draw themselves.

    >>> mathml("x", block=False)
    '<math xmlns="http://www.w3.org/1998/Math/MathML" display="inline"><mrow><mi>x</mi></mrow></math>'
    """
    return convert(latex.strip(), display="block" if block else "inline")
