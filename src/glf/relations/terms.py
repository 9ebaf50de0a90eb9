"""Relate, a divergence of two distributions per anchor; Attract and RowPartition, into which its KL form splits."""

from typing import cast, get_args

from torch import Tensor

from glf.config.base import nearest
from glf.constrain.adc.neighbours import entropy
from glf.relations.divergences import DIVERGENCES
from glf.relations.kernels import Kernel
from glf.relations.rows import Among, Bank, LogRows, Place, Rows
from glf.terms import Banked, Term, mean
from glf.types import Embeddings, Scalar


class Relate(Banked):
    r"""A divergence of each anchor's distribution ``rows`` from its ``target``, which has no gradient.

    .. math:: \frac{1}{n} \sum_i D(\mathrm{sg}(p_i) | q_i)

    ``divergence`` is ``kl``, ``reverse``, ``js`` or ``tv`` (divergences.py); ``among`` names the entries (rows.py).
    With ``across``, the target comes from another view than the rows; ``target_view`` then chooses one view for all
    targets. The mean over the views that both have, or over pairs of views. The KL form is ``Attract`` plus
    ``RowPartition``, minus the target's entropy.

    Reference: Alshammari et al. 2025 (I-Con), Eq. 1.

    >>> import torch
    >>> from glf.relations import CosineSoftmax, OtherView
    >>> simclr = Relate(target=OtherView(), rows=CosineSoftmax(temperature=1.0), among="views")
    >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> round(float(simclr(z, z)), 4)  # log(e + 1 + 1) - 1
    0.5514
    """

    role = "constrain"

    def __init__(
        self,
        target: Rows,
        rows: Rows,
        divergence: str = "kl",
        *,
        among: str = "batch",
        across: bool = False,
        target_view: int | None = None,
        name: str = "relate",
    ) -> None:
        super().__init__()
        if divergence not in DIVERGENCES:
            known = ", ".join(DIVERGENCES)
            raise ValueError(f"unknown divergence {divergence!r}{nearest(divergence, DIVERGENCES)} ({known})")
        if among not in get_args(Among):
            known = ", ".join(get_args(Among))
            raise ValueError(f"unknown entries {among!r}{nearest(among, get_args(Among))} ({known})")
        self.target, self.rows, self.divergence, self.among = target, rows, divergence, cast(Among, among)
        self.across, self.target_view = across, target_view
        self.name = name  # type: ignore[misc]
        self.formula = f"{divergence} divergence of q from sg p, p: {target}, q: {rows}, among {among}"  # type: ignore[misc]
        own = {"z", *(["indices", "prior"] if among == "bank" else [])}
        self.needs = frozenset(own) | target.needs | rows.needs

    @property
    def reads_bank(self) -> bool:
        return self.among == "bank"

    def places(self, e: Embeddings) -> list[tuple[Place, Place]]:
        """Places of rows and target, pair by pair."""
        if self.among == "views":
            return [(Place("views"), Place("views"))]
        of_rows, of_target = self.rows.views(e) or 1, self.target.views(e)
        if of_target is None:
            pairs = [(v, 0) for v in range(of_rows)]
        elif self.across:
            chosen = None if self.target_view is None else self.target_view % of_target
            pairs = [(v, w) for v in range(of_rows) for w in range(of_target) if v != w and chosen in (None, w)]
        else:
            pairs = [(v, v) for v in range(min(of_rows, of_target))]
        several = self.among == "queue" and len(e.require("queue")) > 1
        return [(Place(self.among, v, w * several), Place(self.among, w, w * several)) for v, w in pairs]

    def log_target(self, e: Embeddings, place: Place) -> LogRows:
        """The target's log-probabilities, without gradient."""
        return self.target.log_p(e, place, self._bank()).detach()

    def log_kernel(self, e: Embeddings, place: Place) -> LogRows:
        """Logarithms of the rows' kernel: an error for rows that are no kernel."""
        if not isinstance(self.rows, Kernel):
            raise ValueError(f"only a kernel has a partition, not {self.rows}")
        return self.rows.log_kernel(e, place, self._bank())

    def forward(self, e: Embeddings) -> Scalar:
        compare, values = DIVERGENCES[self.divergence], []
        for here, there in self.places(e):
            log_p = self.log_target(e, there)
            found = compare(log_p, self.rows.log_p(e, here, self._bank()))
            values.append((found * (log_p.exp().sum(-1) > 0)).mean())  # no target, no loss
        return mean(values)

    def diagnose(self, e: Embeddings) -> dict[str, Tensor]:
        """Entropies of target and rows: look here first when the term has no effect."""
        found: dict[str, list[Tensor]] = {"target": [], "rows": []}
        for here, there in self.places(e):
            for name, rows, place in (("target", self.target, there), ("rows", self.rows, here)):
                log_p = rows.log_p(e, place, self._bank())
                found[name].append(entropy(log_p).mean())
        return {f"entropy/{self.name}/{name}": mean(values) for name, values in found.items()}

    def _bank(self) -> Bank | None:
        return None if self.bank is None or self.bank_indices is None else Bank(self.bank, self.bank_indices)


class Attract(Term):
    r"""The aligning part of a relation in its KL form: the expected logarithm of the rows' kernel under the target.

    .. math:: -\frac{1}{n} \sum_i \sum_j \mathrm{sg}(p_{ij}) \log k_{ij}

    >>> import torch
    >>> from glf.relations import CosineSoftmax, OtherView
    >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> float(Attract(Relate(OtherView(), CosineSoftmax(temperature=0.5), among="views"))(z, z))
    -2.0
    """

    name, role = "attract", "align"

    def __init__(self, relation: Relate) -> None:
        super().__init__()
        self.relation, self.needs = relation, relation.needs
        self.formula = f"-sum_j p(j) log k(i, j), p: {relation.target}, k: {relation.rows}, among {relation.among}"  # type: ignore[misc]

    def forward(self, e: Embeddings) -> Scalar:
        relation = self.relation
        pairs = [
            (relation.log_target(e, there).exp(), relation.log_kernel(e, here)) for here, there in relation.places(e)
        ]
        return mean(-(p * log_k).sum(-1).mean() for p, log_k in pairs)


class RowPartition(Term):
    r"""The constraining part of a relation in its KL form: the logarithm of the kernel's sum over the entries.

    .. math:: \frac{1}{n} \sum_i \log \sum_j k_{ij}

    >>> import torch
    >>> from glf.relations import CosineSoftmax, Uniform
    >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    >>> round(float(RowPartition(Relate(Uniform(), CosineSoftmax(temperature=1.0)))(z)), 4)  # log(1 + 1 + 1/e)
    0.862
    """

    name, role = "row_partition", "constrain"

    def __init__(self, relation: Relate) -> None:
        super().__init__()
        self.relation, self.needs = relation, relation.needs
        self.formula = f"log sum_j k(i, j), k: {relation.rows}, among {relation.among}"  # type: ignore[misc]

    def forward(self, e: Embeddings) -> Scalar:
        relation = self.relation
        return mean(relation.log_kernel(e, here).logsumexp(-1).mean() for here, _ in relation.places(e))
