"""glf.Encoder: an encoder as a transformer of scikit-learn, which can be trained in a pipeline."""

import copy
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from glf.adaptation.run import adapt
from glf.config.base import from_dict
from glf.config.training import AdaptConfig, PretrainConfig
from glf.data.given import as_images, save_images
from glf.device import restored_random_state, torch_device
from glf.files import sidecar
from glf.inference.image_model import ImageModel, load
from glf.train.run import pretrain

TRAINING = ("method", "epochs", "lr", "options", "out")  # settings that only apply if fit trains


class Encoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """From images to features, with the interface of a transformer of scikit-learn.

    ``X`` is a list or array of paths, or images as ``glf.load`` takes them: a list, or an array (image, height, width,
    channel). ``transform`` returns the features of ``glf embed`` as float32 (image, feature).

    What ``fit`` does depends on the settings; it never looks at labels:

    - ``Encoder("runs/a")`` trains nothing: ``fit`` only loads the encoder, and ``transform`` works without it.
    - ``Encoder("timm:x", adapt=True)`` adapts the encoder to the images, as ``glf adapt``.
    - ``Encoder()`` pretrains from nothing, as ``glf pretrain``.

    ``method``, ``epochs`` and ``lr`` are theirs, ``options`` has any others (``{"backbone": "resnet18"}``). The run
    directory is temporary, unless ``out`` names a folder: then every fit adds one, ``fit-0``, ``fit-1``, ... to it.
    """

    def __init__(
        self,
        encoder: str | Path | None = None,
        *,
        adapt: bool = False,
        method: str | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        options: Mapping[str, Any] | None = None,
        weights: str | Path | None = None,
        image_size: int | None = None,
        download: bool = False,
        batch_size: int = 128,
        device: str = "auto",
        seed: int = 0,
        out: str | Path | None = None,
        verbose: bool = False,
    ) -> None:
        self.encoder = encoder
        self.adapt = adapt
        self.method = method
        self.epochs = epochs
        self.lr = lr
        self.options = options
        self.weights = weights
        self.image_size = image_size
        self.download = download
        self.batch_size = batch_size
        self.device = device
        self.seed = seed
        self.out = out
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> "Encoder":  # noqa: N803 (the name that scikit-learn calls it by)
        """Train on the images if the settings say so, and load the encoder. ``y`` is ignored.

        Sets ``model_``, which is what ``glf.load`` returns; ``result_``, the content of result.json, and ``run_``, the
        run directory: both None if nothing was trained, and ``run_`` also if it was temporary.
        """
        images = as_samples(X)
        self.result_: dict[str, Any] | None = None
        self.run_: Path | None = None
        with restored_random_state():  # a fitted transformer leaves no trace in the generators that others draw from
            if self._trains():
                with self._directory() as run:
                    self.result_ = self._train(run, save_images(images, sidecar(run, "images")))
                    self.model_ = load(run, batch_size=self.batch_size)
                    self.run_ = None if self.out is None else run
            else:
                self.model_ = self._loaded()
        self._n_features_out = self.model_.width
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:  # noqa: N803
        """Return the features of the images, a row for each; ValueError for one that cannot be read."""
        images = as_samples(X)
        check_is_fitted(self)
        model = self.model_ if hasattr(self, "model_") else self._loaded()
        features: NDArray[np.float32] = model.to(torch_device(self.device))(images).detach().cpu().numpy()
        return features

    def _trains(self) -> bool:
        """Whether fit trains; ValueError for settings that contradict each other."""
        if self.encoder is None and self.adapt:
            raise ValueError("adapt=True needs an encoder to start from: name one, or pretrain with adapt=False")
        trains = self.adapt or self.encoder is None
        unused = [name for name in TRAINING if getattr(self, name) is not None]
        if unused and not trains:
            raise ValueError(f"{unused[0]} only applies if fit trains: set adapt=True, or drop it")
        return trains

    def _loaded(self) -> ImageModel:
        if self.encoder is None:
            raise ValueError("no encoder to load: name one, or call fit")
        return load(
            self.encoder,
            weights=self.weights,
            image_size=self.image_size,
            download=self.download,
            batch_size=self.batch_size,
        )

    @contextmanager
    def _directory(self) -> Iterator[Path]:
        """Provide a run directory that is new."""
        if self.out is None:
            with tempfile.TemporaryDirectory(prefix="glf-fit-", ignore_cleanup_errors=True) as folder:
                yield Path(folder) / "run"
            return
        out = Path(self.out)
        out.mkdir(parents=True, exist_ok=True)
        number = 0
        while True:
            try:
                (out / f"fit-{number}").mkdir()
                break
            except FileExistsError:  # of an earlier fit, or of one that runs at the same time
                number += 1
        yield out / f"fit-{number}"

    def _train(self, run: Path, data: Path) -> dict[str, Any]:
        given = {"method": self.method, "epochs": self.epochs, "lr": self.lr, "image_size": self.image_size}
        values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        values |= {"data": str(data), "out": run, "seed": self.seed, "device": self.device, "download": self.download}
        if self.weights is not None:
            values["weights"] = Path(self.weights)
        if self.adapt:
            values["encoder"] = str(self.encoder)
        options = dict(self.options or {})
        if twice := values.keys() & options.keys():
            raise ValueError(
                f"options has {min(twice)!r}, which is a setting of its own or chosen by fit: drop it there"
            )
        config = from_dict(AdaptConfig if self.adapt else PretrainConfig, values | options)
        console = Console(quiet=not self.verbose)
        return adapt(config, console) if isinstance(config, AdaptConfig) else pretrain(config, console)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the model on the CPU: the file may be read by a machine without a GPU."""
        state: dict[str, Any] = super().__getstate__()
        if "model_" in state and self.model_.device.type != "cpu":
            state["model_"] = copy.deepcopy(self.model_).cpu()
        return state

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_") or not (self.adapt or self.encoder is None)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        tags.requires_fit = self.adapt or self.encoder is None
        return tags


def as_samples(X: Any) -> Any:  # noqa: N803
    """Return images as ``glf.load`` takes several; ValueError for a single one and for rows of numbers."""
    if isinstance(X, str | os.PathLike | bytes | Image.Image):
        raise ValueError(f"X is one image or folder ({X!r:.80}): give a list of images")
    if issparse(X):
        raise ValueError("X is sparse: give the images themselves, as a list or a dense array")
    if hasattr(X, "to_numpy"):  # a column of a table
        X = X.to_numpy()  # noqa: N806
    if isinstance(X, np.ndarray) and X.dtype.kind in "OSU":
        X = X[:, 0] if X.ndim == 2 and X.shape[1] == 1 else X  # noqa: N806
        if X.ndim != 1:
            raise ValueError(f"X has the shape {X.shape}: give one column of paths")
    elif isinstance(X, np.ndarray | torch.Tensor) and (X.ndim not in (3, 4) or (X.ndim == 3 and X.shape[2] in (1, 3))):
        raise ValueError(
            f"Reshape your data: X has the shape {tuple(X.shape)}, and images are (n, height, width) or (n, height,"
            " width, channel)"
        )
    return as_images(X)
