"""The type checker that jaxtyping calls on every function of glf under pytest (see pyproject.toml)."""

from beartype import BeartypeConf, beartype

# The numeric tower of PEP 484: a float parameter takes an int, as mypy has it.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
