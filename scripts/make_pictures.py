"""Makes docs/pictures: what docs/adc.md shows of ADC's rows, each curve computed by the library's own functions.

    python scripts/make_pictures.py

The numbers go to pictures.json, the pictures beside it are drawn from those. Whatever is random has a fixed seed.
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

from glf.constrain.adc import kernels
from glf.constrain.adc.equations import DCM, LPM, lpm
from glf.constrain.adc.neighbours import NeighbourDistributions
from glf.data.sources import load_images
from glf.nn.memory import covariance_of
from glf.types import Embeddings

OUT = Path(__file__).parents[1] / "docs" / "pictures"
RHO, NARROW, WIDE = 5.0, 8.0, 16.0  # ADC's defaults, and its former effective dimension
Numbers = dict[str, list[float] | float]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def on_sphere(z: Tensor) -> Embeddings:
    return Embeddings(z=F.normalize(z, dim=-1).unsqueeze(0))


def log_student(distance: Tensor, dim: float) -> Tensor:
    """The t's kernel as the rows have it: the printed scale."""
    return kernels.log_student(distance * kernels.student_factor(RHO, "printed"), RHO, dim)


def crossover(dim: float) -> float:
    """The squared distance on the sphere at which both kernels fall equally fast, so that DCM asks for nothing."""
    factor = kernels.student_factor(RHO, "printed") / RHO
    return ((RHO + dim) * factor - 1) / (dim * factor)


def rows_by_distance() -> Numbers:
    """Both kernels, and what DCM does to clouds that are more or less spread over the sphere."""
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
            spread.append(float(kernels.off_diagonal(kernels.squared_distances(e.z)).mean()))
            sharpened.append(
                float(DCM(rows=NeighbourDistributions(rho=RHO, effective_dim=dim)).diagnose(e)["sharpens/dcm"])
            )
        found[f"spread {dim:g}"], found[f"sharpened {dim:g}"] = spread, sharpened
    return found


def dirichlets_on_a_line() -> Numbers:
    """Log-densities over three neighbours: the first one's share goes from 0 to 1, the others keep their proportion."""
    alpha = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    share = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)
    others = (1 - share).unsqueeze(1) * alpha[1:] / alpha[1:].sum()
    beta = torch.cat([share.unsqueeze(1), others], 1).log()
    found: Numbers = {"share": share.tolist(), "prior": float(alpha[0])}
    for reading in ("paper", "calibrated"):
        found[reading] = [-float(lpm(row.view(1, 1, 3), alpha.log().view(1, 3), reading=reading)) for row in beta]
    return found


def pixels(count: int, width: int = 64) -> Tensor:
    """Principal components of embedded images, as the pixel prior has them."""
    from sklearn.decomposition import PCA

    flat = load_images("fashion-mini", "test").pixels[:count].reshape(count, -1).astype(np.float64) / 255
    return torch.from_numpy(PCA(width, random_state=0).fit_transform(flat))


def scale_over_steps(steps: int = 200) -> Numbers:
    """A linear projector of pixels under LPM alone, distances measured by the covariance of the batch at hand."""
    images, found = pixels(2000), {}
    for name, held in (("held fixed", True), ("differentiated", False)):
        weight = nn.Parameter(torch.randn(64, 16, generator=generator(), dtype=torch.float64) / 8)
        optimizer, draw, scale = torch.optim.SGD([weight], lr=0.1), generator(1), []
        for _ in range(steps + 1):
            batch = images[torch.randperm(len(images), generator=draw)[:128]]
            z = batch @ weight
            covariance = covariance_of(z.detach() if held else z)
            whitened = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), z.T, upper=False).T
            log_dat = kernels.log_rows(log_student(kernels.squared_distances(whitened), 16)).unsqueeze(0)
            loss = lpm(log_dat, NeighbourDistributions().pre(Embeddings(z=z.unsqueeze(0), prior=batch)))
            scale.append(float(z.detach().pow(2).mean().sqrt()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found[name] = scale
    return found


def entropy_by_dimension() -> Numbers:
    """Entropies of the three families of rows, and LPM, for 256 images and a z that knows nothing of them."""
    z = on_sphere(torch.randn(256, 64, generator=generator(), dtype=torch.float64)).z
    e = Embeddings(z=z, prior=pixels(256))
    dims = [2.0**power for power in range(9)]
    found: Numbers = {"dim": dims, "flat": math.log(255), "gaussian": [], "t": [], "prior": [], "lpm": []}
    for dim in dims:
        rows = NeighbourDistributions(rho=RHO, effective_dim=dim, prior_effective_dim=dim)
        for name, row in (("gaussian", rows.cal(e)), ("t", rows.dat(e)), ("prior", rows.pre(e))):
            found[name] += [float(kernels.entropy(row).mean())]  # type: ignore[operator]
        found["lpm"] += [float(LPM(rows=NeighbourDistributions(rho=RHO, effective_dim=dim))(e))]  # type: ignore[operator]
    return found


PICTURES: dict[str, Callable[[], Numbers]] = {
    "rows": rows_by_distance,
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
    """To six digits: what a picture can show, and what other machines reproduce."""
    return {
        name: [float(f"{v:.6g}") for v in value] if isinstance(value, list) else float(f"{value:.6g}")
        for name, value in numbers.items()
    }


if __name__ == "__main__":
    main()
