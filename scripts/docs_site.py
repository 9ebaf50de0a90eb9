"""mkdocs hooks: pages from outside docs/, links between pages, options of the commands, formulas as MathML.

Links in the repository's pages are relative paths, so that they work wherever it is read. PAGES and FILES become part
of the site; a link to anything else (folders, scripts) becomes plain code. Browsers render MathML without a script.
"""

import html
import posixpath
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import glf
from glf.commands import COMMANDS, Command
from glf.config.base import groups
from glf.config.help_groups import option_docs

ROOT = Path(__file__).parents[1]
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/RESULTS.md", "benchmarks/SPEED.md")
FILES = ("benchmarks/results/speed.svg",)
COMMAND_LIST = "<!-- commands: docs_site.py -->"
CODE = r"```.*?```|`[^`\n]*`"  # left unchanged
LINK = re.compile(
    CODE + r"|(?P<mark>!?)\[(?P<text>(?:[^\]`]|`[^`]*`)*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)", re.DOTALL
)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures outside docs/, under their paths in the repository."""
    for name in PAGES + FILES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert the list of commands, and translate relative links."""
    if COMMAND_LIST in markdown:
        commands = [command for command in COMMANDS.values() if command.name in glf.__all__]
        markdown = markdown.replace(COMMAND_LIST, "\n".join(command_section(command) for command in commands))
    here = page.file.src_uri if page.file.src_uri in PAGES else f"docs/{page.file.src_uri}"
    return LINK.sub(lambda found: relinked(found, here, page.file.src_uri), markdown)


def command_section(command: Command) -> str:
    """Summary, examples and options of a command, as Markdown; the options fold away."""
    rows = [f"| `{option}` | {text} |" for option, text in options(command.config).items()]
    return "\n".join(
        [
            f"### `glf.{command.name}` {{#glf.{command.name}}}\n",
            f"{command.summary}\n",
            "```bash",
            *command.examples,
            "```\n",
            '<details markdown="1"><summary>Options</summary>\n',
            "| option | |\n|---|---|",
            *rows,
            "\n</details>\n",
        ]
    )


def options(config: type[Any], start: Any = None) -> dict[str, str]:
    """Options of a config with their defaults, or those of ``start``, and their descriptions; nested ones too.

    >>> from glf.config.evaluation import DoctorConfig
    >>> options(DoctorConfig)
    {'run': 'Run directory.'}
    """
    texts, nested, found = option_docs(config), groups(config), dict[str, str]()
    for field in fields(config):
        if field.name in nested:
            found |= options(type(nested[field.name]), nested[field.name])
        else:
            value = field.default if start is None else getattr(start, field.name)
            default = "" if value is MISSING or value is None else f"={_shown(value)}"
            found[field.name + default] = html.escape(texts[field.name], quote=False).replace("|", "&#124;")
    return found


def _shown(default: object) -> str:
    return repr(str(default) if isinstance(default, Path) else default)


def relinked(link: re.Match[str], here: str, uri: str) -> str:
    """Return the link for the site, given the path of its page in the repository (`here`) and in the site (`uri`)."""
    mark, text, target, anchor = link["mark"], link["text"], link["target"], link["anchor"] or ""
    if target is None or ":" in target:
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
    if path.startswith("docs/") or path in PAGES + FILES:
        inside = posixpath.relpath(path.removeprefix("docs/"), posixpath.dirname(uri) or ".")
        return f"{mark}[{text}]({inside}{anchor})"
    if not (ROOT / path).exists():
        raise FileNotFoundError(f"{here} links to {target}, but {path} does not exist")
    return text if "`" in text else f"`{text}`"


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Convert the formulas to MathML."""
    return FORMULA.sub(lambda found: mathml(html.unescape(found[2]), block=found[1] == "div"), content)


def mathml(latex: str, *, block: bool) -> str:
    """Convert a formula from LaTeX.

    >>> mathml("x", block=False)
    '<math xmlns="http://www.w3.org/1998/Math/MathML" display="inline"><mrow><mi>x</mi></mrow></math>'
    """
    return convert(latex.strip(), display="block" if block else "inline")
