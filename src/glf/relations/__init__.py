"""Relations: losses that compare two distributions of each anchor over other samples.

- ``rows.py``: the distributions of an anchor over its entries, and where those come from; ``kernels.py``: those that
  follow from a kernel.
- ``divergences.py``: how two of them are compared.
- ``terms.py``: ``Relate``, a divergence; ``Attract`` and ``RowPartition``, its aligning and its constraining part.

docs/relations.md is the map: which methods are such comparisons, and which are not.
"""

from glf.relations.divergences import DIVERGENCES, jensen_shannon, kl, reverse_kl, total_variation
from glf.relations.kernels import CosineSoftmax, Gaussian, Kernel, Nearest, StudentT, Uniform
from glf.relations.rows import Labels, Mixture, OtherView, Product, Rows
from glf.relations.terms import Attract, Relate, RowPartition

__all__ = [
    "DIVERGENCES",
    "Attract",
    "CosineSoftmax",
    "Gaussian",
    "Kernel",
    "Labels",
    "Mixture",
    "Nearest",
    "OtherView",
    "Product",
    "Relate",
    "RowPartition",
    "Rows",
    "StudentT",
    "Uniform",
    "jensen_shannon",
    "kl",
    "reverse_kl",
    "total_variation",
]
