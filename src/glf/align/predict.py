"""Aligning parts with a target without gradient: another view, a neighbour (NNCLR), or the EMA teacher (BYOL, TiCo)."""

from itertools import permutations

from glf.align.distance import cosine, unit_distance
from glf.terms import Tempered, Term, cross_view_pairs, mean
from glf.types import Embeddings, Scalar


class PredictView(Term):
    """SimSiam: predictor's output of one view against the detached projection of the other."""

    name, role, formula = "predict_view", "align", "-cos(p, sg z')"
    needs = frozenset({"z", "p"})

    def forward(self, e: Embeddings) -> Scalar:
        p = e.require("p")
        return mean(cosine(p[v], e.z[w].detach()) for v, w in permutations(range(len(p)), 2))


class PredictTeacher(Term):
    """BYOL: predictor's output of one view against the EMA teacher's projection of the other."""

    name, role, formula = "predict_teacher", "align", "|unit p - unit teacher'|^2"
    needs = frozenset({"z", "p", "teacher"})
    distance = staticmethod(unit_distance)

    def forward(self, e: Embeddings) -> Scalar:
        p, teacher = e.require("p"), e.require("teacher").detach()
        return mean(self.distance(p[v], teacher[w]) for v, w in cross_view_pairs(p, teacher))


class PredictTeacherCosine(PredictTeacher):
    """MEC: the same with a cosine, the first-order term of the coding length."""

    formula = "-cos(p, teacher')"
    distance = staticmethod(cosine)


class MatchTeacher(Tempered):
    """MoCo: projection of one view against the EMA teacher's of the other, over a temperature."""

    name, role, formula = "match_teacher", "align", "-cos(z, teacher') / temperature"
    needs = frozenset({"z", "teacher"})

    def forward(self, e: Embeddings) -> Scalar:
        teacher = e.require("teacher").detach()
        return mean(cosine(e.z[v], teacher[w], self.temperature) for v, w in cross_view_pairs(e.z, teacher))


class TeacherDistance(Term):
    """TiCo: projection of one view against the EMA teacher's of the other; half of it is 1 - cos."""

    name, role, formula = "teacher_distance", "align", "|unit z - unit teacher'|^2"
    needs = frozenset({"z", "teacher"})

    def forward(self, e: Embeddings) -> Scalar:
        teacher = e.require("teacher").detach()
        return mean(unit_distance(e.z[v], teacher[w]) for v, w in cross_view_pairs(e.z, teacher))


class PredictNeighbour(Tempered):
    """NNCLR: predictor's output of one view against the other view's nearest neighbour in a queue."""

    name, role, formula = "predict_neighbour", "align", "-cos(p, neighbour') / temperature"
    needs = frozenset({"z", "p"})

    def forward(self, e: Embeddings) -> Scalar:
        p, neighbours = e.require("p"), e.require("neighbours")
        return mean(cosine(p[v], neighbours[w], self.temperature) for v, w in cross_view_pairs(p, neighbours))
