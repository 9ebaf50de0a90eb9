"""Makes src/glf/data/embedded/fashion_mini.npz: a stratified sample of Fashion-MNIST, small enough to ship.

1,000 training and 200 test images of each class, drawn without replacement by a generator with a fixed seed
from the training and the test split respectively, in their original order. The same input always gives the
same file.

    python scripts/make_fashion_mini.py
"""

import argparse
from pathlib import Path

import numpy as np

from glf.data.arrays import read_idx
from glf.data.datasets import DEBIAN, FASHION_CLASSES

SEED = 20170825  # the day Fashion-MNIST was published
PER_CLASS = {"train": 1000, "test": 200}
LIMIT = 6_000_000  # bytes: what the package may grow by
OUT = Path(__file__).parents[1] / "src" / "glf" / "data" / "embedded" / "fashion_mini.npz"


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the sample of Fashion-MNIST that comes with glf.")
    parser.add_argument("--source", type=Path, default=DEBIAN, help="folder of the four gzipped idx files")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()

    generator = np.random.default_rng(SEED)
    arrays = {"classes": np.array(FASHION_CLASSES)}
    for split, stem in (("train", "train"), ("test", "t10k")):
        images = read_idx(options.source / f"{stem}-images-idx3-ubyte.gz")
        labels = read_idx(options.source / f"{stem}-labels-idx1-ubyte.gz")
        rows = [
            generator.choice(np.flatnonzero(labels == number), PER_CLASS[split], replace=False)
            for number in range(len(FASHION_CLASSES))
        ]
        chosen = np.sort(np.concatenate(rows))
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = images[chosen], labels[chosen]

    options.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(options.out, allow_pickle=False, **arrays)
    size = options.out.stat().st_size
    print(f"{options.out}: {size:,} bytes")
    if size > LIMIT:
        raise SystemExit(f"that is more than {LIMIT:,} bytes")


if __name__ == "__main__":
    main()
