"""glf methods: the table of methods and constraints; of one method, its parts, options and recipes."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from glf.config.evaluation import MethodsConfig
from glf.config.training import AdcOptions
from glf.methods import CONSTRAINTS, METHODS, parse
from glf.objective import Method
from glf.recipes import recipes
from glf.terms import Term


def methods(config: MethodsConfig, console: Console | None = None) -> dict[str, Method]:
    """Print the table of methods, or one method; return what was printed, by name."""
    console = console or Console()
    if config.name is None:
        console.print(methods_table())
        console.print(constraints_table())
        return METHODS
    method = parse(config.name)
    _print_method(method, console)
    return {method.name: method}


def describe(weight: float, term: Term) -> str:
    """Return a weighted term as text: weight, name, formula."""
    return f"{'' if weight == 1 else f'{weight:g} '}{term.name}: {term.formula}"


def methods_table() -> Table:
    """Return the table of methods: aligning part, constraining part, paper."""
    table = Table("method", "aligning part", "constraining part", "paper", show_lines=True)
    for name, method in METHODS.items():
        objective = method.build()
        align = [describe(weight, term) for weight, term in objective.align.parts]
        constrain = [describe(w, t) for w, t in objective.constrain.parts] if objective.constrain else []
        constrain += [f"transform: {transform.formula}" for transform in objective.transforms]
        constrain += [f"architecture: {method.architecture}"] if method.architecture else []
        table.add_row(name, "\n".join(align), "\n".join(constrain), method.paper)
    return table


def constraints_table() -> Table:
    """Return the table of constraints that can be added to any method with a +."""
    table = Table("add with +", "constraining part")
    for name, build in CONSTRAINTS.items():
        table.add_row(name, "\n".join(describe(weight, term) for weight, term in build(AdcOptions()).parts))
    return table


def _print_method(method: Method, console: Console) -> None:
    objective = method.build()
    lines: list[Any] = [f"[bold]{method.title}[/]: {escape(method.paper)}"]
    lines += [f"  {term.role:13}{escape(describe(weight, term))}" for weight, term in objective.parts]
    lines += [f"  transform    {escape(str(transform.formula))}" for transform in objective.transforms]
    lines += [f"  architecture {escape(method.architecture)}"] if method.architecture else []
    options = "  ".join(f"{key} {value:g}" for key, value in method.options.items())
    lines += [f"options (--options NAME VALUE): {options or 'none'}"]
    lines += [escape(recipe.described(method.name, key)) for key, recipe in recipes(method.name).items()]
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
