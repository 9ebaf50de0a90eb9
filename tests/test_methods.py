import pytest
import torch

import reference
from glf.config import AdcOptions
from glf.constrain.adc import LPM
from glf.methods import METHODS, parse
from glf.types import FIELDS, Embeddings
from reference import draw_fields

SPECS = [f"{method}+{constraint}" for method in METHODS for constraint in ("none", "dcm", "lpm", "adc")]
LOOPS = {
    "simclr": lambda z, p, teacher: reference.nt_xent(*z, 0.2),
    "simsiam": lambda z, p, teacher: reference.simsiam(p, z.detach()),
    "byol": lambda z, p, teacher: reference.byol(p, teacher.detach()),
    "barlow_twins": lambda z, p, teacher: reference.barlow_twins(*z, 0.0051),
    "vicreg": lambda z, p, teacher: reference.vicreg(*z, 25.0, 25.0, 1.0),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", METHODS)
def test_align_plus_constrain_is_the_authors_loss(name, seed):
    objective, fields = parse(name).build(), draw_fields(batch=5, dim=3, seed=10 * seed)
    inputs = [fields[key] for key in ("z", "p", "teacher")]

    def ours(z, p, teacher):
        return objective(Embeddings(z=z, p=p, teacher=teacher)).total

    torch.testing.assert_close(ours(*inputs), LOOPS[name](*inputs), rtol=1e-12, atol=1e-12)
    gradients = reference.same(ours, LOOPS[name], *inputs)
    assert any(gradient.any() for gradient in gradients)


def test_options_reach_the_loss():
    z = draw_fields(batch=4)["z"]
    cases = [
        (parse("simclr").build(temperature=0.1), reference.nt_xent(*z, 0.1)),
        (parse("barlow_twins").build(redundancy=0.5), reference.barlow_twins(*z, 0.5)),
        (parse("vicreg").build(variance=3, covariance=7), reference.vicreg(*z, 25.0, 3.0, 7.0)),
    ]
    for objective, expected in cases:
        torch.testing.assert_close(objective(Embeddings(z=z)).total, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("reading", ["calibrated", "paper"])
@pytest.mark.parametrize("spec", SPECS)
def test_the_order_of_images_and_of_views_is_immaterial(spec, reading):
    objective, fields = parse(spec, AdcOptions(reading=reading)).build(), draw_fields(batch=7)
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    permuted = {name: x[order] if name == "prior" else x[:, order] for name, x in fields.items()}
    swapped = {name: x if name == "prior" else x.flip(0) for name, x in fields.items()}
    expected = objective(Embeddings(**fields)).log()
    for changed in (permuted, swapped):
        actual = objective(Embeddings(**changed)).log()
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("spec", SPECS)
def test_an_objective_reads_what_it_needs_and_no_more(spec):
    objective, fields = parse(spec).build(), draw_fields()
    assert objective.needs <= set(FIELDS)
    assert ("prior" in objective.needs) == spec.endswith(("lpm", "adc"))
    objective(Embeddings(**{name: fields[name] for name in objective.needs}))
    for missing in objective.needs - {"z"}:
        with pytest.raises(ValueError, match=f"'{missing}'"):
            objective(Embeddings(**{name: fields[name] for name in objective.needs - {missing}}))


@pytest.mark.parametrize(("name", "scale"), [("simclr", 1), ("vicreg", 10)])
def test_an_added_constraint_takes_the_methods_scale(name, scale):
    added = {term.name: weight for weight, term in parse(f"{name}+adc", AdcOptions(nu=0.1)).build().parts}
    assert (added["dcm"], added["lpm"]) == (pytest.approx(0.1 * scale), pytest.approx(0.3 * scale))
    e = Embeddings(**draw_fields())
    base, loss = parse(name).build()(e), parse(f"{name}+lpm").build()(e)
    torch.testing.assert_close(loss.total - base.total, scale * 0.3 * LPM()(e), rtol=1e-9, atol=0)


def test_adc_options_reach_the_terms():
    options = {"rho": 7.0, "effective_dim": 8.0, "prior_effective_dim": 9.0, "t_scale": "matched"}
    for constraint in ("dcm", "lpm", "adc"):
        objective = parse(f"simclr+{constraint}", AdcOptions(**options)).build()
        for _, term in objective.constrain.parts[1:]:
            assert {name: getattr(term.rows, name) for name in options} == options
    paper = parse("simclr+adc", AdcOptions(reading="paper", covariance="running", concentration=2.0)).build()
    (_, dcm), (_, lpm) = paper.constrain.parts[1:]
    assert dcm.rows is lpm.rows
    assert (lpm.rows.reading, lpm.rows.covariance, lpm.concentration) == ("paper", "running", 2.0)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("simclr", "simclr"),
        ("simclr+none", "simclr"),
        ("SimCLR + ADC", "simclr+adc"),
        ("byol+none+lpm", "byol+lpm"),
        ("vicreg+dcm+lpm", "vicreg+dcm+lpm"),
    ],
)
def test_parse(spec, name):
    method = parse(spec)
    assert method.name == name
    assert method.title == METHODS[name.split("+")[0]].title


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("simclrr", "unknown method 'simclrr' - did you mean 'simclr'.*methods: simclr, simsiam"),
        ("barlow-twins+adc", "did you mean 'barlow_twins'"),
        ("zzz", r"unknown method 'zzz' \(methods"),
        ("simclr+adcc", "unknown constraint 'adcc' - did you mean 'adc'.*none, dcm, lpm, adc"),
        ("simclr+", "unknown constraint ''"),
        ("simclr+lpm+lpm", "adds 'lpm' twice"),
        ("adc+simclr", "unknown method 'adc'"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(spec, words):
    with pytest.raises(ValueError, match=words):
        parse(spec)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("simclr+adc", "no option 'temprature' - did you mean 'temperature'.*it has: temperature"),
        ("byol", r"byol has no option 'temprature' \(it has: none\)"),
    ],
)
def test_unknown_options_are_refused_with_the_nearest(spec, words):
    with pytest.raises(ValueError, match=words):
        parse(spec).build(temprature=0.1)
