"""A run goes on with the images that it began with, and all of its processes have the same ones."""

from typing import Any

import lightning as L

from glf.train.callbacks import Journal
from glf.train.distributed import same_everywhere
from glf.train.feed import Feed


class SameData(L.Callback):
    """Rows, and the position in an epoch, mean nothing among other images: a run is refused where their number differs.

    Where only their key does, which copying files changes as well, it is said.
    """

    def __init__(self, data: Feed, journal: Journal) -> None:
        self.images, self.train, self.key, self.journal = data.total, data.count, data.key, journal

    def state_dict(self) -> dict[str, Any]:
        return {"images": self.images, "train": self.train, "key": self.key}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if (self.images, self.train) != (state_dict["images"], state_dict["train"]):
            raise ValueError(
                f"the run began with {state_dict['images']:,} images, {state_dict['train']:,} of them to train on, and"
                f" now there are {self.images:,} and {self.train:,}: put the data back as they were (skipped.txt has"
                " what cannot be read), or start anew with --overwrite"
            )
        if self.key != state_dict["key"]:
            self.journal("data      not the files that the run began with: copied since, or changed", "yellow")

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if not same_everywhere(self.images, self.train, device=module.device):
            raise ValueError(
                f"the processes do not see the same images, this one {self.images:,}: data lie on a disk that all nodes"
                " see, or in equal copies, and nothing is added to them meanwhile"
            )
