"""Alignment of local features of two views, matched by location in the image or by feature (VICRegL)."""

from glf.align.distance import mse
from glf.similarity import MatchedCells
from glf.terms import mean
from glf.types import Embeddings, Scalar


class LocalMSE(MatchedCells):
    """Mean squared error of matched cells: twice the mean over the sets, that is, the sum over both ways of matching.

    Reference: Bardes et al. 2022 (VICRegL), Eq. 3 to 5, as lightly does. The authors' code overwrites the sum in its
    loop over pairs of views.
    """

    name, role, formula = "local_mse", "align", "|map_i - map'_match(i)|^2 / d"

    def forward(self, e: Embeddings) -> Scalar:
        return 2 * mean(mse(a.flatten(0, 1), b.flatten(0, 1)) for a, b in self.matches(e))
