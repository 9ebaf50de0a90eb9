"""docs/relations.md: DCM, LPM, the relation of ReSSL, SupCon, SimCLR and SNE are one line each."""

import pytest
import torch
from torch.nn import functional as F

import reference
from glf.config.adc import AdcOptions
from glf.constrain.adc import LPM
from glf.constrain.adc.neighbours import NeighbourDistributions, entropy
from glf.constrain.contrast import FromQueue
from glf.methods import CONSTRAINTS, parse
from glf.relations import CosineSoftmax, Gaussian, Labels, OtherView, Relate, StudentT
from glf.types import Embeddings
from reference import draw, draw_fields

FIELDS = draw_fields(batch=7, dim=5)
ADC = AdcOptions(perplexity=3.0, prior_power=0.7)


def equal(ours, theirs, *names, tolerance=1e-10):
    """Values and gradients at these fields."""
    results = []
    for loss in (ours, theirs):
        leaves = {name: FIELDS[name].clone().requires_grad_() for name in names}
        value = loss({**FIELDS, **leaves})
        value.backward()
        results.append([value.detach(), *(leaf.grad for leaf in leaves.values())])
        assert all(gradient.any() for gradient in results[-1][1:])
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)


DCM = {
    "own": Gaussian(),
    "clean": Gaussian("clean", perplexity=3.0),
    "prior": Gaussian() * StudentT("prior") ** 0.7,
}


@pytest.mark.parametrize("target", DCM)
def test_dcm(target):
    adc = AdcOptions(**{**vars(ADC), "target": target, "nu": 1.0})
    dcm = CONSTRAINTS["dcm"].term(adc, {})
    relation = Relate(DCM[target], StudentT())
    tolerance = 1e-5 if target == "clean" else 1e-9  # of the bisection
    equal(lambda f: relation(Embeddings(**f)), lambda f: dcm(Embeddings(**f)), "z", tolerance=tolerance)


def test_dcm_at_a_centre_and_over_a_memory_are_no_relations_of_two_kernels():
    """docs/relations.md says so: their points come from a first distribution, and from a memory of clean images."""
    assert set(DCM) == {"own", "clean", "centre", "memory", "prior"} - {"centre", "memory"}


@pytest.mark.parametrize("at", ["z", "h", "bank"])
def test_lpm(at):
    """LPM is the cross-entropy: the divergence plus the entropy of the prior's distribution."""
    term = LPM(at=at)
    read, space = ("z", "unit") if at == "z" else ("r", "unit" if at == "h" else "standard")
    rows = StudentT(read, space=space, dim=16.0 if at == "bank" else 8.0)
    relation = Relate(StudentT("prior"), rows, among="bank" if at == "bank" else "batch")
    for one in (term, relation):
        one.set_bank(draw(12, 3, seed=9), torch.arange(12))

    def ours(f):
        e = Embeddings(**f)
        return relation(e) + relation.diagnose(e)["entropy/relate/target"]

    equal(ours, lambda f: term(Embeddings(**f)), read)
    if at == "z":
        h = entropy(NeighbourDistributions().log_pre(Embeddings(**FIELDS))).mean()
        torch.testing.assert_close(relation.diagnose(Embeddings(**FIELDS))["entropy/relate/target"], h)


def test_simclr():
    relation = Relate(OtherView(), CosineSoftmax(temperature=0.2), among="views")
    equal(lambda f: relation(Embeddings(**f)), lambda f: parse("simclr").build()(Embeddings(z=f["z"])).total, "z")


def test_supcon():
    relation = Relate(Labels(), CosineSoftmax(temperature=0.1), among="views")

    def theirs(f):
        others = torch.bincount(f["target"])[f["target"]] * len(f["z"]) - 1  # of the same class
        return parse("supcon").build()(Embeddings(z=f["z"], target=f["target"])).total - others.double().log().mean()

    equal(lambda f: relation(Embeddings(**f)), theirs, "z")


def test_the_relation_of_ressl():
    relation = Relate(
        CosineSoftmax("teacher", temperature=0.04),
        CosineSoftmax(temperature=0.1),
        among="queue",
        across=True,
        target_view=-1,
    )

    def ours(f):
        e = FromQueue(16)(Embeddings(z=f["z"], teacher=f["teacher"]))
        return relation(e) + relation.diagnose(e)["entropy/relate/target"]

    def theirs(f):
        return parse("ressl").build(queue=16)(Embeddings(z=f["z"], teacher=f["teacher"])).total

    equal(ours, theirs, "z")


def test_sne():
    """Hinton and Roweis 2002: Gaussian distributions of the input with a perplexity, and of z with unit variance."""
    relation = Relate(Gaussian("prior", space="raw", perplexity=3.0), Gaussian(space="raw", scale=2.0))
    target = reference.gaussian_with_perplexity(FIELDS["prior"], 3.0)

    def theirs(f):
        kernel = reference.gaussian_kernel(2.0, reference.as_it_is)  # exp(-|z_i - z_j|^2)
        return sum(
            reference.relate(target, reference.over(view, view, kernel, reference.itself)) for view in f["z"]
        ) / len(f["z"])

    equal(lambda f: relation(Embeddings(**f)), theirs, "z", tolerance=1e-5)


@pytest.mark.parametrize("name", ["tsimclr", "xsample", "distil"])
def test_methods_that_are_relations_are_kl_plus_an_entropy(name):
    objective = parse(name).build(**({"queue": 16} if name == "distil" else {}))
    relation = objective.align.relation
    e = Embeddings(**FIELDS)
    for transform in objective.transforms:
        e = transform(e)
    expected = relation(e) + relation.diagnose(e)["entropy/relate/target"]
    again = parse(name).build(**({"queue": 16} if name == "distil" else {}))
    torch.testing.assert_close(again(Embeddings(**FIELDS)).total, expected, rtol=1e-10, atol=0)


def test_xsample_without_the_prior_is_simclr():
    e = Embeddings(**FIELDS)
    found = parse("xsample").build(share=0.0, temperature=0.2)(e).total
    torch.testing.assert_close(found, parse("simclr").build(temperature=0.2)(e).total, rtol=1e-10, atol=0)
    assert (F.normalize(e.z, dim=-1) - e.z).abs().max() > 0.1  # z is not normalised already
