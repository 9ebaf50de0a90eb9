"""Ray Data with two workers on this machine: the example, and what is left of it when a worker is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from PIL import Image

import glf
from glf.data.sources import load_images

ROOT = Path(__file__).parent.parent.parent
IMAGES, BATCH = 2000, 128
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for i, pixels in enumerate(load_images("fashion-mini").pixels[:IMAGES, :, :, 0]):
        Image.fromarray(pixels).save(folder / f"{i:05}.png")
    return folder


def parents(process: int) -> Iterator[int]:
    """The processes that a process descends from."""
    while process > 1:
        try:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return
        yield process


def workers(of: int) -> list[int]:
    """The processes of Embedder that a driver has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name = (folder / "cmdline").read_text()
        except OSError:
            continue
        if name.startswith("ray::MapWorker(MapBatches(Embedder))") and of in parents(int(folder.name)):
            found.append(int(folder.name))
    return found


def embeddings(table: pa.Table) -> bytes:
    return np.ascontiguousarray(table["embedding"].combine_chunks().flatten()).tobytes()


@pytest.mark.parametrize("kill", [False, True], ids=["undisturbed", "one worker killed"])
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the workers in /proc")
def test_two_workers_give_the_table_of_one_process(
    kill: bool, photos: Path, small_run: Callable[..., Path], tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="pip install 'glf[ray]'")
    run, out = small_run(backbone="resnet18"), tmp_path / "out"
    environment = {
        **os.environ,
        "HOME": str(tmp_path),  # where Ray keeps the token of its cluster
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(ROOT / "examples" / "embed_with_ray.py"), str(run), str(photos), str(out)]
    with (tmp_path / "log").open("w") as log:
        job = subprocess.Popen([*command, "--batches", "1"], stdout=log, stderr=log, env=environment)
        try:
            if kill:
                while not list(out.glob("*.parquet")):
                    assert job.poll() is None, (tmp_path / "log").read_text()
                    time.sleep(0.05)
                alive = workers(job.pid)
                assert len(alive) == 2
                os.kill(alive[0], signal.SIGKILL)
                assert len(list(out.glob("*.parquet"))) < -(-IMAGES // BATCH), "in the middle"
            assert job.wait(600) == 0, (tmp_path / "log").read_text()
        finally:
            job.kill()
    table = pyarrow.dataset.dataset(out, format="parquet").to_table().sort_by("index")
    assert table["index"].to_pylist() == list(range(IMAGES))
    assert set(table["error"].to_pylist()) == {""}
    glf.embed(run=str(run), data=str(photos), out=tmp_path / "whole.parquet", batch_size=BATCH, device="cpu")
    whole = pq.read_table(tmp_path / "whole.parquet")
    assert table["path"].to_pylist() == whole["path"].to_pylist()
    assert embeddings(table) == embeddings(whole)
