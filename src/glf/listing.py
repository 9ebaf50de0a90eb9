"""glf methods: the table of methods and constraints; of one method, its parts, options and recipes."""

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
        _print_method(method, console)
        return {method.name: method}
    plugins.load_installed()
    table = Table("method", "aligning part", "constraining part", "paper", show_lines=True)
    for name, method in METHODS.items():
        parts = method.describe()
        table.add_row(name, _lines(parts["align"]), _lines(parts["constrain"]), as_text(method.paper))
    console.print(table)
    added = Table("add with +", "constraining part")
    for name, constraint in CONSTRAINTS.items():
        added.add_row(name, _lines(describe_term(constraint.term(AdcOptions(), {}))))
    console.print(added)
    return METHODS


def _lines(parts: list[Part]) -> Text:
    return as_text("\n".join(str(part) for part in parts))


def _print_method(method: Method, console: Console) -> None:
    say(console, f"{method.title}: {method.paper}")
    for role, parts in method.describe().items():
        for part in parts:
            say(console, f"  {role:11}{part}")
    options = "  ".join(f"{key} {value:g}" for key, value in method.options.items())
    say(console, f"options (--options NAME VALUE): {options or 'none'}")
    for key, recipe in recipes(method.name).items():
        say(console, *recipe.described(method.name, key).split("\n"))
