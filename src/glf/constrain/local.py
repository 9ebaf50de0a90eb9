"""VICReg's constraints on matched local features: each match's own variance and covariance over the batch."""

from glf.align.local import Local
from glf.constrain.moments import covariance, variance
from glf.terms import mean
from glf.types import Embeddings, Scalar


class LocalVariance(Local):
    """Every dimension of every match keeps its spread over the batch."""

    name, role, formula = "local_variance", "constrain", "max(0, 1 - std map^j)"

    def forward(self, e: Embeddings) -> Scalar:
        return 2 * mean(variance(x) for pair in self.sets(e) for x in pair)


class LocalCovariance(Local):
    """Different dimensions of a match are uncorrelated over the batch."""

    name, role, formula = "local_covariance", "constrain", "sum_{i != j} Cov(map)_ij^2 / d"

    def forward(self, e: Embeddings) -> Scalar:
        return 2 * mean(covariance(x) for pair in self.sets(e) for x in pair)
