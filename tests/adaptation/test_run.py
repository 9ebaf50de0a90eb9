"""glf adapt from end to end on a small encoder: what changes, what stays, what is chosen, and what is written."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor, nn

from glf.adaptation import choose as comparison
from glf.adaptation import run as adaptation
from glf.adaptation.activations import batch_views
from glf.adaptation.module import Adaptation
from glf.adaptation.resolve import resolve_adaptation
from glf.adaptation.run import adapt
from glf.checkpoint import load_checkpoint
from glf.config.training import AdaptConfig
from glf.data.sources import load_images
from glf.measure.knn import neighbours_kept
from glf.nn.cut import norm_parameters
from glf.nn.features import encode
from glf.nn.norms import ConvNorm
from glf.nn.pretrained import load_encoder
from glf.nn.weights import load_backbone
from glf.runfiles import BACKBONE, LAST
from glf.train.inputs import ImageInputs, load_inputs

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def weights(run: Path | str) -> dict[str, Tensor]:
    return load_file(Path(str(run).removeprefix("run:")) / BACKBONE)


def changed(encoder: str, run: Path) -> set[str]:
    before, after = weights(encoder), weights(run)
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def trained_weights(run: Path) -> dict[str, Tensor]:
    """The adapted weights, before the choice, under the names of the backbone."""
    state = load_checkpoint(run / LAST)["state_dict"]
    prefix = "network.student.0.body."
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def result(run: Path) -> dict[str, Any]:
    return json.loads((run / "result.json").read_text())


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def prepared(config: AdaptConfig) -> tuple[ImageInputs, Adaptation]:
    """Everything up to training, as adapt() does it."""
    resolved = resolve_adaptation(config)
    inputs = load_inputs(resolved.run)
    assert isinstance(inputs, ImageInputs)
    inputs = inputs.only_used()
    encoder = adaptation.prepare(resolved, inputs)
    inputs.compute_prior(lambda text: None)
    inputs.fill_bank(resolved.run.objective)
    encoder = encoder._replace(activations=adaptation.compute_activations(resolved, inputs, encoder))
    return inputs, adaptation.build(resolved, inputs, encoder)


def test_only_the_tail_changes_and_the_result_says_how_it_was_chosen(
    adapted: Callable[..., Path], encoder: str, console: Console
) -> None:
    run = adapted()
    names = changed(encoder, run)
    found = result(run)
    about = found["adaptation"]
    assert found["kind"] == "adapt"
    assert list(about["candidates"]) == ["frozen", "average 0.25", "average 0.5", "average 0.75", "adapted"]
    assert about["candidates"]["frozen"]["kept"] == 1
    measured = {"kept", "rank", "uniformity", "recall", "knn"}
    assert all(values.keys() == measured for values in about["candidates"].values())
    accuracy = {name: values["knn"] for name, values in about["candidates"].items()}
    assert accuracy[about["chosen"]] == max(accuracy.values())
    assert about["by"] == "knn"
    last = trained_weights(run)
    tail = {name for name in last if not name.endswith(STATISTICS)}
    assert all(name.startswith("layer4.") for name in tail)
    assert names == (tail if about["share"] else set()), "statistics and all stages before the last one stay"
    start, kept = weights(encoder), weights(run)
    for name in tail:
        assert torch.equal(kept[name], torch.lerp(start[name], last[name], about["share"]))
    steps = [line for line in metrics(run) if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    assert all(line["share/constrain/lpm"] > 0.001 for line in steps), "it trains the head on h, not z"
    assert [finding["name"] for finding in found["doctor"]] == []
    assert [line["epoch"] for line in metrics(run) if "val/kept" in line] == [0, 1]
    assert found["config"]["views"] == 4
    assert found["config"]["prior"] == encoder
    assert load_backbone(run)(torch.rand(2, 1, 16, 16)).shape == (2, 256)
    text = console.file.getvalue()
    assert "training the last 1 of 4 stages (layer4)" in text
    assert "chosen    " in text
    assert "96 images are few" in text


def test_no_choose_keeps_the_adapted_weights(adapted: Callable[..., Path], encoder: str) -> None:
    run = adapted(choose=False)
    kept, last = weights(run), trained_weights(run)
    names = {name for name in last if not name.endswith(STATISTICS)}
    assert names
    assert changed(encoder, run) == names
    assert all(torch.equal(kept[name], last[name]) for name in names)
    assert (result(run)["adaptation"]["chosen"], result(run)["adaptation"]["by"]) == ("adapted", "--no-choose")


def test_without_any_change_the_frozen_weights_are_kept(settings: AdaptConfig) -> None:
    inputs, module = prepared(settings)
    module.eval()
    found = comparison.compare_weights(module, inputs.images, inputs.train, inputs.val, seed=0)
    assert found.chosen.share == 0
    assert found.sentence() == "nothing beats the frozen encoder: its weights are kept"
    assert all(one.values == found.candidates[0].values for one in found.candidates)


def test_with_labels_the_candidate_with_the_best_held_out_accuracy_is_kept(
    settings: AdaptConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, module = prepared(settings)
    module.eval()
    start = module.adapted()
    towards = {name: p + 0.05 * torch.randn_like(p) for name, p in start.items()}
    module.set_weights(towards, 1)
    assert all(torch.equal(p, towards[name]) for name, p in module.adapted().items())
    labels, shares = torch.from_numpy(inputs.images.targets[inputs.val]), iter(comparison.SHARES)

    def predict(*arguments: Any) -> Tensor:  # only the average is right
        return labels if next(shares) == 0.5 else (labels + 1) % 10

    monkeypatch.setattr(comparison, "weighted_knn_predict", predict)
    found = comparison.compare_weights(module, inputs.images, inputs.train, inputs.val, seed=0)
    assert found.chosen.share == 0.5
    assert found.described()["rules"].keys() == {"with labels", "without labels"}
    for name, p in module.adapted().items():
        assert torch.equal(p, torch.lerp(start[name], towards[name], 0.5))


def one_in(count: int, share: float) -> list[float]:
    return [1.0] * round(share * count) + [0.0] * (count - round(share * count))


@pytest.mark.parametrize(
    ("recall", "knn", "kept"),
    [
        ((0.5, 0.6, 0.7, 0.8, 0.9), None, 4),
        ((0.5, 0.7, 0.6, 0.4, 0.2), None, 1),  # harmed: the average that helped
        ((0.5, 0.4, 0.3, 0.2, 0.1), None, 0),  # harmed: frozen
        ((0.5, 0.5, 0.5, 0.5, 0.5), None, 0),  # nothing is better
        ((0.500, 0.700, 0.800, 0.800, 0.795), None, 4),  # one of 200 images is not significant: the most adapted
        ((0.500, 0.505, 0.505, 0.500, 0.495), None, 0),  # not significant, and no better than frozen
        ((0.5, 0.6, 0.7, 0.8, 0.9), (0.8, 0.8, 0.9, 0.7, 0.6), 2),  # labels come first
        ((0.5, 0.4, 0.3, 0.2, 0.1), (0.5, 0.6, 0.7, 0.8, 0.9), 4),
        ((0.5, 0.5, 0.5, 0.5, 0.5), (0.5, 0.6, 0.7, 0.8, 0.9), 4),  # only labels tell
        ((0.5, 0.6, 0.7, 0.8, 0.9), (0.8, 0.8, 0.8, 0.8, 0.8), 4),  # only the recall tells
    ],
)
def test_which_candidate_is_kept(recall: tuple[float, ...], knn: tuple[float, ...] | None, kept: int) -> None:
    hits = torch.tensor([one_in(200, share) for share in recall])
    right = None if knn is None else torch.tensor([one_in(200, share) for share in knn])
    assert comparison.most_adapted(hits, right) == kept


def test_what_is_measured_of_a_candidate_is_measured_on_its_features(settings: AdaptConfig) -> None:
    inputs, module = prepared(settings)
    module.eval()
    before = module.features(inputs.images, inputs.train)
    torch.manual_seed(0)
    module.set_weights({name: p + 0.1 * torch.randn_like(p) for name, p in module.start.items()}, 1)
    after = module.features(inputs.images, inputs.train)
    found = comparison.compare_weights(module, inputs.images, inputs.train, inputs.val, seed=0, choose=False)
    kept = [candidate.values["kept"] for candidate in found.candidates]
    assert kept[0] == 1
    assert kept[-1] == pytest.approx(float(neighbours_kept(before, after).mean()))
    assert kept[-1] < kept[1]


@pytest.mark.parametrize("changes", [{"val_images": None}, {"val_images": 0}, {"val_images": 0, "views": 0}], ids=str)
def test_without_labels_the_view_recall_decides(changes: dict[str, Any], adapted: Callable[..., Path]) -> None:
    about = result(adapted(labels="none", epochs=1, **changes))["adaptation"]
    recall = {name: values["recall"] for name, values in about["candidates"].items()}
    assert not any("knn" in values for values in about["candidates"].values())
    queries = 12 if changes["val_images"] is None else 120  # held-out images, or all
    assert recall[about["chosen"]] >= max(recall.values()) - 2 * (0.5 / queries) ** 0.5  # two standard errors at most
    assert about["rules"] == {"without labels": about["chosen"]}
    assert about["by"] == ("recall on training images" if changes["val_images"] == 0 else "recall")


def test_view_recall_is_how_often_a_view_finds_the_other_one(settings: AdaptConfig) -> None:
    inputs, module = prepared(settings)
    module.eval()
    rows, others = inputs.val, inputs.train[:40]
    one, two = (module.view_features(inputs.images, rows, number) for number in (0, 1))
    further = module.view_features(inputs.images, others, 1)
    assert not torch.equal(one, two)
    among = torch.cat((two, further))
    hits = [int(torch.cosine_similarity(view, among).argmax()) == i for i, view in enumerate(one)]
    assert comparison.finds_other_view(one, two, further).tolist() == hits
    assert comparison.finds_other_view(one, one, further).all()
    again = module.view_features(inputs.images, rows, 0)
    assert torch.equal(again, one)


def test_another_image_size(adapted: Callable[..., Path], encoder: str) -> None:
    """The saved backbone is the adapted one: at a learning rate of zero, the encoder at that size."""
    run = adapted(image_size=24, lr=0.0, views=2, epochs=1)
    found = load_backbone(run).eval()
    assert found.image_size == 24
    x = torch.rand(3, 1, 24, 24)
    assert torch.equal(found(x), load_encoder(encoder, size=24).eval()(x))


# --- what is trained


@pytest.mark.parametrize("train", ["norms", "all"])
def test_norms_or_everything_is_trained(train: str, adapted: Callable[..., Path], encoder: str) -> None:
    run = adapted(train=train, choose=False, views=None, epochs=1)
    backbone = load_backbone(Path(encoder.removeprefix("run:")))
    chosen = norm_parameters(backbone) if train == "norms" else list(backbone.parameters())
    own = {id(p) for p in chosen}
    assert changed(encoder, run) == {name for name, p in backbone.body.named_parameters() if id(p) in own}
    assert result(run)["config"]["views"] == 0


def test_a_longer_tail(adapted: Callable[..., Path], encoder: str) -> None:
    names = changed(encoder, adapted(tail=2, choose=False, epochs=1))
    assert {name.partition(".")[0] for name in names} == {"layer3", "layer4"}


def test_a_trunk_that_runs_in_every_epoch(adapted: Callable[..., Path], encoder: str, console: Console) -> None:
    run = adapted(views=0, choose=False, epochs=1)
    names = changed(encoder, run)
    assert names
    assert all(name.startswith("layer4.") and not name.endswith(STATISTICS) for name in names)
    assert "--views 0" not in console.file.getvalue(), "as given"


def test_cached_and_live_trunk_give_the_same_features(settings: AdaptConfig) -> None:
    inputs, cached = prepared(settings)
    _, live = prepared(replace(settings, views=0))
    assert cached.activations is not None
    assert live.activations is None
    rows = inputs.val
    expected = live.features(inputs.images, rows)
    found = cached.features(inputs.images, rows)
    assert expected.std(0).max() > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=5e-3)
    views = batch_views(inputs.images.pixels[:64], cached.policy, 16, 2, "fused", seed=(0, 0), device="cpu")
    with torch.no_grad():
        for column, view in enumerate(views):
            x = torch.from_numpy(cached.activations[:64, column]).float()
            torch.testing.assert_close(cached.network.encoder(x), live.backbone(view), rtol=1e-2, atol=5e-3)


def test_the_encoder_stays_in_evaluation_mode(settings: AdaptConfig) -> None:
    _, module = prepared(replace(settings, method="byol"))
    module.train()
    assert module.network.teacher is not None
    for encoder in (module.network.encoder, module.network.teacher.copy[0]):
        assert not any(layer.training for layer in encoder.modules())
    assert module.network.student[1].training, "the heads are trained as ever"
    (faster,) = module.network.faster
    assert isinstance(faster, nn.Module)
    assert any(isinstance(layer, ConvNorm) for layer in faster.modules())
    assert not any(layer.training for layer in faster.modules())


def test_the_encoder_learns_later_and_slower_than_the_heads(settings: AdaptConfig) -> None:
    _, module = prepared(replace(settings, epochs=10, head_share=0.2, lr=1e-3, head_lr=7e-3))
    made: Any = module.configure_optimizers()
    optimizer, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
    tail = {id(p) for p in module.network.encoder.parameters()}
    rates = []
    for _ in range(30):
        of = {"tail": set[float](), "heads": set[float]()}
        for group in optimizer.param_groups:
            of["tail" if {id(p) for p in group["params"]} <= tail else "heads"].add(group["lr"])
        rates.append({name: values.pop() for name, values in of.items() if len(values) == 1})
        optimizer.step()
        schedule.step()
    encoder, heads = ([rate[name] for rate in rates] for name in ("tail", "heads"))
    assert encoder[:6] == [0] * 6
    assert all(rate > 0 for rate in encoder[7:29])
    assert max(encoder) == pytest.approx(1e-3)
    assert heads[0] > 0
    assert max(heads) == pytest.approx(7e-3)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("byol", {}),
        ("swav", {"prototypes": 8}),
        ("pcl", {"options": {"clusters": 4}}),
        ("moco", {}),
        ("vicreg+dcm", {}),
        ("simclr+adc", {}),
        ("simclr+lpm", {"accumulate": 2}),
        ("simclr+lpm", {"adc": {"lpm_at": "z"}}),
        ("simclr+lpm", {"adc": {"lpm_at": "bank"}}),
        ("simclr+adc", {"adc": {"target": "clean"}}),
        ("byol+adc", {"adc": {"target": "memory", "memory_size": 64}}),
        ("simclr+dcm", {"adc": {"target": "centre"}, "accumulate": 2}),
    ],
    ids=str,
)
def test_methods_and_constraints_run(
    method: str, changes: dict[str, Any], settings: AdaptConfig, encoder: str, console: Console
) -> None:
    adc = replace(settings.adc, **changes.pop("adc", {}))
    asked = replace(settings, method=method, adc=adc, epochs=1, choose=False, **changes)
    found = adapt(asked, console)
    assert asked.out is not None
    names = changed(encoder, asked.out)
    assert names
    assert all(name.startswith("layer4.") for name in names)
    assert found["config"]["views"] == (0 if method == "pcl" else 4)
    assert all(np.isfinite(line["loss"]) for line in metrics(asked.out) if "loss" in line)


@pytest.mark.parametrize("at", ["h", "bank"])
def test_the_linear_head_begins_at_the_prior(at: str, settings: AdaptConfig) -> None:
    """The prior's features are a linear function of the frozen encoder's: LPM is then as small as it can be."""
    inputs, module = prepared(replace(settings, adc=replace(settings.adc, lpm_at=at), prior_width=8))
    assert module.network.relation is not None
    assert inputs.prior is not None
    assert inputs.prior.shape[1] == 8
    features = module.features(inputs.images, inputs.train)
    with torch.no_grad():
        found = module.network.relation(features)
    prior = torch.from_numpy(np.array(inputs.prior[inputs.train]))
    assert (found - prior).pow(2).mean() < 0.01 * prior.var()
    (lpm,) = (term for term in module.objective.modules() if type(term).__name__ == "LPM")
    assert (lpm.bank is not None) == (at == "bank")
    if lpm.bank is not None:
        assert torch.equal(lpm.bank, prior)
        assert lpm.bank_indices.tolist() == inputs.train.tolist()


@pytest.mark.parametrize("changes", [{"views": 0}, {"train": "all"}, {"train": "norms", "method": "byol"}], ids=str)
def test_activations_that_are_computed_again_change_nothing(
    changes: dict[str, Any], settings: AdaptConfig, console: Console, tmp_path: Path
) -> None:
    runs = {again: tmp_path / str(again) for again in (False, True)}
    for again, out in runs.items():
        asked = replace(settings, epochs=1, choose=False, views=None, checkpoint_activations=again, out=out)
        adapt(replace(asked, **changes), console)
    plain, found = map(trained_weights, runs.values())
    for name, value in plain.items():
        assert torch.equal(found[name], value), name


# --- statistics of batch normalisation, and L2-SP


@pytest.mark.parametrize("frozen", [False, True])
def test_statistics_are_estimated_and_the_frozen_encoder_keeps_its_own(
    frozen: bool, adapted: Callable[..., Path], encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if frozen:
        monkeypatch.setattr(comparison, "SHARES", (0.0,))
    run = adapted(norms="data", choose=frozen)
    names = changed(encoder, run)
    if frozen:
        assert result(run)["adaptation"]["chosen"] == "frozen"
        assert names == set()
        return
    backbone = load_backbone(Path(encoder.removeprefix("run:")))
    statistics = {name for name in weights(encoder) if name.endswith(STATISTICS[:2])}
    assert statistics <= names
    images = load_images("fashion-mini")
    rows = np.arange(100)
    ours = np.concatenate(list(encode(load_backbone(run), images, indices=rows, size=16)))
    theirs = np.concatenate(list(encode(backbone, images, indices=rows, size=16)))
    assert not np.allclose(ours, theirs, rtol=0.1)
    assert result(run)["adaptation"]["candidates"]["frozen"]["kept"] == 1
    assert result(run)["adaptation"]["candidates"]["average 0.25"]["kept"] < 1


def test_a_large_l2sp_keeps_the_weights_near_the_start(
    settings: AdaptConfig, encoder: str, console: Console, tmp_path: Path
) -> None:
    """Also with a batch in chunks, which have gradients at embeddings only."""
    start, distances = weights(encoder), list[float]()
    for weight, chunks in ((0.0, 1), (1e3, 1), (1e3, 2)):
        out = tmp_path / f"{weight:g} {chunks}"
        adapt(replace(settings, l2sp=weight, accumulate=chunks, choose=False, epochs=3, out=out), console)
        end = trained_weights(out)
        names = [name for name in end if not name.endswith(STATISTICS)]
        distances.append(float(sum((end[name] - start[name]).pow(2).sum() for name in names)) ** 0.5)
        lines = [line for line in metrics(out) if "loss" in line]
        assert all(("constrain/l2sp" in line) == (weight > 0) for line in lines)
        for line in lines:
            parts = [value for name, value in line.items() if name.startswith(("align/", "constrain/"))]
            assert line["loss"] == pytest.approx(sum(parts), rel=1e-4)
        if weight:
            assert lines[0]["constrain/l2sp"] == 0
            assert lines[-1]["constrain/l2sp"] > 0
    free, kept, in_chunks = distances
    assert max(kept, in_chunks) < 0.7 * free
    assert in_chunks == pytest.approx(kept, rel=0.05)


# --- a dry run


def test_a_dry_run_trains_two_steps_and_writes_no_run(settings: AdaptConfig, console: Console) -> None:
    assert adapt(replace(settings, dry_run=True), console) == {}
    assert settings.out is not None
    assert not settings.out.exists()
    assert "dry run: trained two steps, wrote nothing" in console.file.getvalue()
