"""Embedding a folder of images with Ray Data: workers on this machine, or on every node of a Ray cluster.

Needs `pip install 'glf[ray]'`. Run: python examples/embed_with_ray.py runs/a photos/ embeddings/ --workers 2

Each worker loads the encoder once. Ray starts a worker that dies again, and repeats its blocks. The names of the files
do not tell the order of the images; the column `index` does. `error` says why an image has no embedding.
"""

import argparse
from pathlib import Path

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy

import glf
from glf.data.decode import EXTENSIONS

BATCH = 128  # that of glf embed: the same batches give the same features to the last bit


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("run", help="what glf embed takes: a run directory, timm:<model>, pixels, ...")
    options.add_argument("data", type=Path, help="folder of images, at the same path on every node")
    options.add_argument("out", help="folder or URL of the Parquet files")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--batches", type=int, default=32, help="per block, and so per file")
    given = options.parse_args()

    paths = sorted(str(path) for path in given.data.rglob("*") if path.suffix.lower() in EXTENSIONS)
    rows = given.batches * BATCH  # whole batches, so that no batch is cut where a block ends
    blocks = [
        pa.table({"index": range(at, min(at + rows, len(paths))), "path": paths[at : at + rows]})
        for at in range(0, len(paths), rows)
    ]
    ray.init()
    images = ray.data.from_arrow(blocks).map_batches(
        glf.Embedder,
        fn_constructor_kwargs={"run": given.run},
        batch_size=BATCH,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=given.workers),
        num_cpus=1,  # or num_gpus=1
    )
    images.write_parquet(given.out)
    print(f"{len(paths):,} images in {len(blocks):,} blocks: {given.out}")


if __name__ == "__main__":
    main()
