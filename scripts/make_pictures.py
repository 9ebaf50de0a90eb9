"""Makes the pictures of docs/adc.md in docs/pictures, with curves computed by the library's own functions.

    python scripts/make_pictures.py

Writes the numbers to pictures.json and draws the pictures from them. All random numbers have fixed seeds.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glf.config.adc import AdcOptions
from glf.constrain.adc import DCM, LPM, kernels, lpm
from glf.constrain.adc.neighbours import NeighbourDistributions, entropy, normalise_over_others
from glf.data.sources import load_images
from glf.nn.memory import covariance_of
from glf.similarity import off_diagonal
from glf.types import Embeddings

OUT = Path(__file__).parents[1] / "docs" / "pictures"
RHO, NARROW, WIDE = AdcOptions.rho, AdcOptions.effective_dim, 16.0  # defaults, and a larger effective dimension
Numbers = dict[str, list[float] | float]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def on_sphere(z: Tensor) -> Embeddings:
    return Embeddings(z=F.normalize(z, dim=-1).unsqueeze(0))


def log_student(distance: Tensor, dim: float) -> Tensor:
    """Student-t kernel of squared distances under the Gaussian's covariance, with the printed scale."""
    return kernels.log_student(distance * kernels.student_factor(RHO, "printed"), RHO, dim)


def crossover(dim: float) -> float:
    """Squared distance on the sphere at which both kernels are equally steep, so that DCM has no gradient."""
    factor = kernels.student_factor(RHO, "printed") / RHO
    return ((RHO + dim) * factor - 1) / (dim * factor)


def kernels_by_distance() -> Numbers:
    """Both kernels, and the share of anchors that DCM sharpens, for batches with more or less spread on the sphere."""
    distance = torch.linspace(0, 3, 61, dtype=torch.float64)
    centre = torch.eye(64, dtype=torch.float64)[0]
    cloud = torch.randn(128, 64, generator=generator(), dtype=torch.float64)
    found: Numbers = {"distance": distance.tolist()}
    for dim in (NARROW, WIDE):
        found[f"gaussian {dim:g}"] = kernels.log_gaussian(distance * dim).tolist()
        found[f"t {dim:g}"] = log_student(distance * dim, dim).tolist()
        found[f"crossover {dim:g}"] = crossover(dim)
        spread, sharpened = [], []
        for noise in torch.logspace(-1.4, 0, 29).tolist():
            e = on_sphere(centre + noise * cloud)
            spread.append(float(off_diagonal(kernels.squared_distances(e.z)).mean()))
            dcm = DCM(neighbours=NeighbourDistributions(rho=RHO, effective_dim=dim))
            sharpened.append(float(dcm.diagnose(e)["sharpens/dcm"]))
        found[f"spread {dim:g}"], found[f"sharpened {dim:g}"] = spread, sharpened
    return found


def dirichlets_on_a_line() -> Numbers:
    """Log-densities over three neighbours: the share of the first varies from 0 to 1, the others keep their ratio."""
    alpha = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    share = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)
    others = (1 - share).unsqueeze(1) * alpha[1:] / alpha[1:].sum()
    beta = torch.cat([share.unsqueeze(1), others], 1).log()
    found: Numbers = {"share": share.tolist(), "prior": float(alpha[0])}
    for reading in ("paper", "calibrated"):
        found[reading] = [-float(lpm(b.view(1, 1, 3), alpha.log().view(1, 3), reading=reading)) for b in beta]
    return found


def pixels(count: int, width: int = 64) -> Tensor:
    """Principal components of bundled images, as in the pixel prior."""
    from sklearn.decomposition import PCA

    flat = load_images("fashion-mini", "test").pixels[:count].reshape(count, -1).astype(np.float64) / 255
    return torch.from_numpy(PCA(width, random_state=0).fit_transform(flat))


def scale_over_steps(steps: int = 40) -> Numbers:
    """Scale of z for a linear projector of pixels under LPM alone, with the covariance of the current batch.

    Forty steps: with a detached covariance the path is chaotic, and rounding changes it visibly after some sixty.
    """
    images, found = pixels(2000), {}
    for name, held in (("held fixed", True), ("differentiated", False)):
        weight = nn.Parameter(torch.randn(64, 16, generator=generator(), dtype=torch.float64) / 8)
        optimizer, draw, scale = torch.optim.SGD([weight], lr=0.1), generator(1), []
        for _ in range(steps + 1):
            batch = images[torch.randperm(len(images), generator=draw)[:128]]
            z = batch @ weight
            covariance = covariance_of(z.detach() if held else z)
            whitened = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), z.T, upper=False).T
            log_dat = normalise_over_others(log_student(kernels.squared_distances(whitened), 16)).unsqueeze(0)
            loss = lpm(log_dat, NeighbourDistributions().log_pre(Embeddings(z=z.unsqueeze(0), prior=batch)))
            scale.append(float(z.detach().pow(2).mean().sqrt()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found[name] = scale
    return found


def entropy_by_dimension() -> Numbers:
    """Entropies of the three neighbour distributions, and LPM, for 256 images and a random z."""
    z = on_sphere(torch.randn(256, 64, generator=generator(), dtype=torch.float64)).z
    e = Embeddings(z=z, prior=pixels(256))
    dims = [2.0**power for power in range(9)]
    found: Numbers = {"dim": dims, "flat": math.log(255), "gaussian": [], "t": [], "prior": [], "lpm": []}
    for dim in dims:
        n = NeighbourDistributions(rho=RHO, effective_dim=dim, prior_effective_dim=dim)
        for name, log_p in (("gaussian", n.log_cal(e)), ("t", n.log_dat(e)), ("prior", n.log_pre(e))):
            found[name] += [float(entropy(log_p).mean())]  # type: ignore[operator]
        term = LPM(neighbours=NeighbourDistributions(rho=RHO, effective_dim=dim))
        found["lpm"] += [float(term(e))]  # type: ignore[operator]
    return found


PICTURES: dict[str, Callable[[], Numbers]] = {
    "kernels": kernels_by_distance,
    "dirichlet": dirichlets_on_a_line,
    "runaway": scale_over_steps,
    "entropy": entropy_by_dimension,
}


def main() -> None:
    from draw_pictures import draw

    parser = argparse.ArgumentParser(description="Compute and draw the pictures of docs/adc.md.")
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    found = {name: rounded(compute()) for name, compute in PICTURES.items()}
    (out / "pictures.json").write_text(json.dumps(found, indent=1) + "\n")
    draw(found, out)


def rounded(numbers: Numbers) -> Numbers:
    """Rounded to six digits, which other machines reproduce."""
    return {
        name: [float(f"{v:.6g}") for v in value] if isinstance(value, list) else float(f"{value:.6g}")
        for name, value in numbers.items()
    }


if __name__ == "__main__":
    main()
