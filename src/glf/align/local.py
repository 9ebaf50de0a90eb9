"""Local features of two views, matched by where they lie in the image or by how alike they are (VICRegL)."""

from glf.align.distance import mse
from glf.similarity import MatchedCells
from glf.terms import mean
from glf.types import Embeddings, Scalar


class LocalMSE(MatchedCells):
    """Matched cells agree: twice the mean over the sets, the sum over both ways of matching.

    Reference: Bardes et al. 2022 (VICRegL), Eq. 3 to 5. lightly's loss is the same; the authors' code overwrites the
    sum in its loop over pairs of views.
    """

    name, role, formula = "local_mse", "align", "|map_i - map'_match(i)|^2 / d"

    def forward(self, e: Embeddings) -> Scalar:
        return 2 * mean(mse(a.flatten(0, 1), b.flatten(0, 1)) for a, b in self.matches(e))
