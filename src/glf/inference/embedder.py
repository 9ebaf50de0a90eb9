"""glf.Embedder: features as a new column of batches, for Ray Data and anything else that calls a class on batches."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glf.config.base import from_dict
from glf.config.inference import EncoderOptions
from glf.data.decode import decode_alone, quiet
from glf.data.decode_all import in_threads
from glf.data.files import MAX_BYTES
from glf.device import torch_device
from glf.files import read_regular
from glf.inference.common import open_encoder
from glf.nn.features import encoding

COLUMNS = ("path", "bytes", "image")  # the first of these that a batch has is read


class Embedder:
    """Adds the columns ``embedding`` and ``error`` to batches of images: ``ds.map_batches(glf.Embedder, ...)``.

    ``run``, ``weights``, ``image_size``, ``download`` and ``device`` are those of ``glf embed``. ``column`` holds
    paths, contents of image files, or uint8 arrays (height, width, channel); by default it is ``path``, ``bytes`` or
    ``image``. An image that cannot be read has nan as its embedding, and the reason in ``error``, which is empty for
    all others. Features equal those of ``glf embed`` to the last bit for the same batches on the same machine.

    >>> batch = Embedder("pixels")({"image": np.zeros((2, 32, 32, 3), np.uint8)})
    >>> batch["embedding"].shape, batch["error"].tolist()
    ((2, 3072), ['', ''])
    """

    def __init__(
        self,
        run: str | Path,
        *,
        column: str | None = None,
        weights: str | Path | None = None,
        image_size: int | None = None,
        download: bool = False,
        device: str = "auto",
    ) -> None:
        given = {"run": str(run), "weights": weights, "image_size": image_size, "download": download, "device": device}
        options = from_dict(EncoderOptions, given)
        self.column, self.encoder, self.device = column, open_encoder(options), torch_device(device)

    def __call__(self, batch: Any) -> Any:
        """Return the batch, a table of columns as arrays or a ``pyarrow.Table``, with two more columns."""
        table = None if isinstance(batch, Mapping) else batch
        names = list(batch) if table is None else table.column_names
        column = self.column or next((name for name in COLUMNS if name in names), None)
        if column not in names:
            wanted = repr(self.column) if self.column else f"one of {', '.join(COLUMNS)}"
            raise ValueError(f"a batch with the columns {', '.join(names)}: images are expected in {wanted}")
        features, errors = self._embedded(batch[column] if table is None else table[column].to_pylist())
        if table is None:
            return {**batch, "embedding": features, "error": np.array(errors, object)}
        import pyarrow as pa

        lists = pa.FixedSizeListArray.from_arrays(pa.array(features.reshape(-1)), features.shape[1])
        return table.append_column("embedding", lists).append_column("error", pa.array(errors, pa.string()))

    def _embedded(self, images: Iterable[Any]) -> tuple[np.ndarray, list[str]]:
        """Return the features of each image and why it has none."""
        with quiet():
            decoded = list(in_threads(self._decoded, images))
        good = [pixels for pixels in decoded if not isinstance(pixels, str)]
        with encoding(self.encoder.module, size=self.encoder.size, device=self.device) as features_of:
            features = features_of(good or [self._blank()])
        errors = [pixels if isinstance(pixels, str) else "" for pixels in decoded]
        found = np.full((len(decoded), features.shape[1]), np.nan, np.float32)
        found[[not error for error in errors]] = features[: len(good)]
        return found, errors

    def _decoded(self, image: Any) -> np.ndarray | str:
        try:
            if isinstance(image, np.ndarray):
                if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in (1, 3):
                    raise ValueError(
                        f"an array of {image.dtype} and shape {image.shape}, not uint8 with 1 or 3 channels"
                    )
                return self.encoder.fitted(image)
            data = image if isinstance(image, bytes) else read_regular(image, MAX_BYTES)
            return self.encoder.fitted(decode_alone(data, self.encoder.limits))
        except Exception as error:  # PIL's plugins raise almost anything on a broken file
            return str(error) or type(error).__name__

    def _blank(self) -> np.ndarray:
        side = self.encoder.size or 1
        return np.zeros((side, side, self.encoder.channels), np.uint8)
