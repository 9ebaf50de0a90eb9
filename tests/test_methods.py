from io import BytesIO
from itertools import combinations

import pytest
import torch
from torch.nn import functional as F

import reference
from glf.config.adc import AdcOptions
from glf.constrain.adc import LPM
from glf.constrain.target_distribution import TARGET_DISTRIBUTIONS
from glf.methods import METHODS, parse
from glf.nn.memory import Clusters, Queue
from glf.types import BATCH_DIM, GIVEN, Embeddings
from reference import draw, draw_fields

SPECS = [f"{method}+{constraint}" for method in METHODS for constraint in ("none", "dcm", "lpm", "adc")]


MOVING = ("z", "r", "p", "scores", "instance_scores", "prototypes", "maps")


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", METHODS)
def test_align_plus_constrain_is_the_published_loss(name, seed):
    loops, options = reference.LOSSES[name]
    fields = draw_fields(batch=5, dim=3, seed=10 * seed)
    needs = parse(name).build(**options).needs
    moving = [key for key in MOVING if key in needs]
    inputs = [fields[key] for key in moving]

    def ours(*tensors):
        objective = parse(name).build(**options)  # built each time, because memories change
        return objective(Embeddings(**{**given, **dict(zip(moving, tensors, strict=True))})).total

    def theirs(*tensors):
        return loops({**fields, **dict(zip(moving, tensors, strict=True))})

    given = {key: fields[key] for key in needs | {"z"}}
    torch.testing.assert_close(ours(*inputs), theirs(*inputs), rtol=1e-12, atol=1e-12)
    gradients = reference.same(ours, theirs, *inputs)
    assert any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize(
    "name",
    ["align", "simsiam", "byol", "barlow_twins", "mec", "vicreg", "corinfomax", "supervised", "dino", "nnclr", "tico",
     "vcreg", "diet"],
)  # fmt: skip
def test_three_views_are_the_mean_over_their_pairs(name):
    assert _of_three_views(name) == pytest.approx(_of_their_pairs(name))


@pytest.mark.parametrize("name", ["simclr", "lmcl", "supcon", "metaug"])
def test_a_log_sum_exp_over_all_views_is_not_the_mean_over_pairs(name):
    """docs/methods.md, Views: more than two views add entries to every log-sum-exp."""
    assert _of_three_views(name) > _of_their_pairs(name) + 0.05


@pytest.mark.parametrize("name", ["lejepa", "emp"])
def test_a_distance_to_the_mean_view_is_not_the_mean_over_pairs(name):
    """docs/methods.md, Views: in more than two views each is farther from their mean than in two."""
    assert abs(_of_three_views(name) - _of_their_pairs(name)) > 1e-3


def _of_three_views(name, views=(0, 1, 2)):
    fields, objective = draw_fields(views=3, batch=8, dim=4), parse(name).build()
    of_views = {key: fields[key][list(views)] for key in OF_A_VIEW}
    given = {key: value for key, value in (fields | of_views).items() if key in objective.needs | {"z"}}
    return float(objective(Embeddings(**given)).total.detach())


OF_A_VIEW = ("z", "p", "teacher", "scores", "instance_scores", "generated")


def _of_their_pairs(name):
    return sum(_of_three_views(name, pair) for pair in combinations(range(3), 2)) / 3


def test_pcl_with_clusters():
    fields = draw_fields(batch=5, dim=3)
    objective = parse("pcl").build(queue=16, clusters=2)
    (memory,) = {m for m in objective.modules() if isinstance(m, Clusters)}
    memory.refresh(draw(9, 3, seed=5).float(), torch.arange(9), 12, epoch=0)
    assert memory.assigned[:, 9:].eq(-1).all()
    assert not memory.assigned[:, :9].eq(-1).any()
    memory.centres = F.normalize(memory.centres.double(), dim=1)
    centres = list(memory.centres.double().split(memory.counts))
    phi = list(memory.concentration.double().split(memory.counts))

    def ours(z):
        objective.transforms[0].memory = Queue(16)
        return objective(Embeddings(z=z, teacher=fields["teacher"], indices=fields["indices"])).total

    def theirs(z):
        instances = reference.moco(z, fields["teacher"], reference.filled_queue(fields), 0.2)
        return instances + reference.pcl(z, fields["indices"], centres, phi, memory.assigned)

    reference.same(ours, theirs, fields["z"])


def test_options_change_the_loss():
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
def test_the_order_of_images_and_of_views_does_not_matter(spec, reading):
    objective, fields = parse(spec, AdcOptions(reading=reading)).build(), draw_fields(batch=7)
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    changed = [
        {
            name: x.index_select(BATCH_DIM[name], order) if BATCH_DIM[name] is not None else x
            for name, x in fields.items()
        }
    ]
    if not spec.startswith(("ressl", "moco", "pcl")):  # the last view is the weak one, or each view has its queue
        changed.append({name: x.flip(0) if BATCH_DIM[name] == 1 else x for name, x in fields.items()})
    objective.eval()  # no memory changes
    expected = objective(Embeddings(**fields)).log()
    for other in changed:
        actual = objective(Embeddings(**other)).log()
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("spec", SPECS)
def test_an_objective_reads_exactly_the_fields_it_needs(spec):
    objective, fields = parse(spec).build(), draw_fields()
    assert objective.needs <= set(GIVEN)
    of_prior = spec.endswith(("lpm", "adc")) or spec.startswith(("xsample", "distil"))
    assert ("prior" in objective.needs) == of_prior
    objective(Embeddings(**{name: fields[name] for name in objective.needs}))
    for missing in objective.needs - {"z"}:
        with pytest.raises(ValueError, match=f"'{missing}'"):
            objective(Embeddings(**{name: fields[name] for name in objective.needs - {missing}}))


@pytest.mark.parametrize(("name", "scale"), [("simclr", 1), ("vicreg", 10)])
def test_an_added_constraint_is_multiplied_by_the_methods_scale(name, scale):
    added = {term.name: weight for weight, term in parse(f"{name}+adc", AdcOptions(nu=0.1)).build().parts}
    assert (added["dcm"], added["lpm"]) == (pytest.approx(0.1 * scale), pytest.approx(1.0 * scale))
    e = Embeddings(**draw_fields())
    base, loss = parse(name).build()(e), parse(f"{name}+lpm").build()(e)
    torch.testing.assert_close(loss.total - base.total, scale * LPM()(e), rtol=1e-9, atol=0)


def test_adc_options_are_passed_to_the_terms():
    options = {"rho": 7.0, "effective_dim": 8.0, "prior_effective_dim": 9.0, "t_scale": "matched"}
    for constraint in ("dcm", "lpm", "adc"):
        objective = parse(f"simclr+{constraint}", AdcOptions(**options)).build()
        for _, term in objective.constrain.parts[1:]:
            assert {name: getattr(term.neighbours, name) for name in options} == options
    for spec, weight in (("simclr+dcm", 0.3), ("simclr+adc", 0.3), ("barlow_twins+dcm", 60.0)):
        found, term = parse(spec, AdcOptions(nu=0.3, ramp_epochs=4.0)).build().constrain.parts[1]
        assert (found, term.name, term.ramp_epochs) == (weight, "dcm", 4.0)
    paper = parse("simclr+adc", AdcOptions(reading="paper", covariance="running")).build()
    (_, dcm), (_, lpm) = paper.constrain.parts[1:]
    assert dcm.neighbours is lpm.neighbours
    assert (lpm.neighbours.reading, lpm.neighbours.covariance) == ("paper", "running")


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
        ("simclrr", "unknown method 'simclrr' - did you mean 'simclr'.*methods: simclr, moco"),
        ("barlow-twins+adc", "did you mean 'barlow_twins'"),
        ("zzz", r"unknown method 'zzz' \(methods"),
        ("simclr+adcc", "unknown constraint 'adcc' - did you mean 'adc'.*none, dcm, lpm, adc"),
        ("simclr+", "unknown constraint ''"),
        ("simclr+lpm+lpm", "adds 'lpm' twice"),
        ("adc+simclr", "unknown method 'adc'"),
    ],
)
def test_unknown_names_are_refused_with_a_suggestion(spec, words):
    with pytest.raises(ValueError, match=words):
        parse(spec)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("simclr+adc", "no option 'temprature' - did you mean 'temperature'.*it has: temperature"),
        ("byol", r"byol has no option 'temprature' \(it has: none\)"),
    ],
)
def test_unknown_options_are_refused_with_a_suggestion(spec, words):
    with pytest.raises(ValueError, match=words):
        parse(spec).build(temprature=0.1)


@pytest.mark.parametrize("queue", [9.5, float("nan"), float("inf")])
def test_options_with_an_integer_default_take_whole_numbers_only(queue):
    with pytest.raises(ValueError, match=r"moco takes a whole number for queue, not|queue of moco must be"):
        parse("moco").build(queue=queue)
    assert parse("moco").build(queue=9.0).transforms[0].memory.size == 9


STATEFUL = [*METHODS, *(f"align+{name}" for name in TARGET_DISTRIBUTIONS)]


@pytest.mark.parametrize("spec", STATEFUL)
def test_state_survives_a_checkpoint(spec):
    """Three steps: saving and loading the state before the third does not change its loss."""
    options = reference.SMALL.get(spec, {})
    batches = [Embeddings(**draw_fields(batch=12, dim=4, seed=20 * i)) for i in range(3)]
    one, other = (parse(spec).build(**options) for _ in range(2))
    for memory in {m for m in one.modules() if isinstance(m, Clusters)}:
        memory.refresh(draw(30, 4, seed=5).float(), torch.arange(30), 30, epoch=0)
    for batch in batches[:2]:
        one(batch)
    file = BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(other(batches[2]).log(), one(batches[2]).log(), rtol=0, atol=0)


@pytest.mark.parametrize(
    "name", ["moco", "ressl", "corinfomax", "wmse", "pcl", "dino", "nnclr", "tico", "lejepa", "distil"]
)
def test_state_matters(name):
    """The loss of a batch depends on the batch before it: a memory without content would pass the test above."""
    batch, other = (Embeddings(**draw_fields(batch=12, dim=4, seed=seed)) for seed in (0, 20))
    fresh, used = (parse(name).build(**reference.SMALL.get(name, {})) for _ in range(2))
    used(other)
    assert used(batch).total != fresh(batch).total


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.many_views])
def test_more_views_work(name):
    fields = draw_fields(views=4, batch=12)
    if name != "ressl":  # its last view is the teacher's: small crops are refused
        fields["teacher"] = fields["teacher"][:2]  # of the full views
    objective = parse(name).build(**reference.SMALL.get(name, {}))
    z = fields["z"].requires_grad_()
    fields["p"], fields["r"] = fields["p"] + z, fields["r"] + z[..., :3]
    for name, width in (("scores", 3), ("instance_scores", 14)):
        fields[name] = fields[name] + z.sum(2, keepdim=True) * draw(width)
    objective(Embeddings(**fields)).total.backward()
    assert (z.grad.abs().flatten(1).sum(1) > 0)[:3].all()  # the last view of ressl is a target only


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.many_views])
def test_methods_for_two_views_refuse_more(name):
    with pytest.raises(ValueError, match="is defined for two views, not for 3"):
        parse(name).build()(Embeddings(**draw_fields(views=3)))
