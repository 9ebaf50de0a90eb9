"""glf methods: the table of methods and constraints; of one method, its parts, options and recipes."""

import re
import shlex

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glf import plugins
from glf.config.adc import AdcOptions
from glf.config.evaluation import MethodsConfig
from glf.methods import METHODS, parse
from glf.methods.constraints import CONSTRAINTS
from glf.objective import Method, Part, describe_term
from glf.recipes import recipes
from glf.ui import as_text, say


def methods(config: MethodsConfig, console: Console | None = None) -> dict[str, Method]:
    """Print the table of methods, or one method; return what was printed, by name."""
    console = console or Console()
    plugins.load(plugins.pin(config.plugin))
    if config.name is not None:
        method = parse(config.name)
        _print_method(method, console, config.plugin)
        return {method.name: method}
    plugins.load_installed()
    table = Table("method", "aligning part", "constraining part", "from")
    for name, method in METHODS.items():
        parts = method.describe()
        table.add_row(
            name, _names(parts["align"]), _names(parts["constrain"]), as_text(re.split("[,:]", method.paper)[0])
        )
    console.print(table)
    added = Table("add with +", "constraining part")
    for name, constraint in CONSTRAINTS.items():
        added.add_row(name, as_text("\n".join(map(str, describe_term(constraint.term(AdcOptions(), {}))))))
    console.print(added)
    say(console, "formulas, options and recipes of one: glf methods NAME")
    return METHODS


def _names(parts: list[Part]) -> Text:
    """The terms of a part with their weights, then whether transforms and the architecture belong to it."""
    terms = " + ".join(part.label for part in parts if part.is_formula)
    others = ", ".join(dict.fromkeys(part.label for part in parts if not part.is_formula))
    return as_text(f"{terms} ({others})" if terms and others else terms or others or "none")


def _print_method(method: Method, console: Console, plugin: tuple[str, ...]) -> None:
    say(console, ": ".join(one for one in (method.title, method.paper) if one))
    for role, parts in method.describe().items():
        for part in parts:
            say(console, f"  {role:11}{part}")
    options = "  ".join(f"{key} {value:g}" for key, value in method.options.items())
    say(console, f"options (--options NAME VALUE): {options or 'none'}")
    own = "".join(f" --plugin {shlex.quote(str(name))}" for name in plugin)
    for key, recipe in recipes(method.name).items():
        say(console, *recipe.described(method.name + own, key).split("\n"))
