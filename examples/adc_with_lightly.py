"""ADC in a LightningModule with lightly's NT-Xent loss, projection head and transform: five lines of glf.

Run: python examples/adc_with_lightly.py
"""

import logging

import lightning as L
import torch
from lightly.loss import NTXentLoss
from lightly.models.modules import SimCLRProjectionHead
from lightly.transforms import SimCLRTransform
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from glf import ADC, load_images  # 1

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Clothes(Dataset):
    """Two views of each bundled image, by lightly's transform, and its index."""

    pixels = load_images("fashion-mini").pixels[:512, :, :, 0]
    views = SimCLRTransform(input_size=32, gaussian_blur=0.0)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[list[torch.Tensor], int]:
        return self.views(Image.fromarray(self.pixels[index]).convert("RGB")), index


class SimCLR(L.LightningModule):
    def __init__(self, prior: torch.Tensor) -> None:
        super().__init__()
        layers = nn.Conv2d(3, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 64, 3, 2), nn.ReLU(), nn.Flatten()
        self.model = nn.Sequential(*layers, SimCLRProjectionHead(64 * 49, 128, 64))
        self.criterion = NTXentLoss(temperature=0.5)
        self.adc = ADC()  # 2
        self.register_buffer("prior", prior)  # 3: features of any frozen encoder, one vector per image; here the pixels

    def training_step(self, batch: list, step: int) -> torch.Tensor:
        (x0, x1), indices = batch
        z0, z1 = self.model(x0), self.model(x1)
        base = self.criterion(z0, z1)
        added = self.adc(z0, z1, prior=self.prior[indices])  # 4
        print(f"step {step}  nt-xent {base:.3f}  adc {added:.3f}")
        return base + added  # 5

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


L.seed_everything(0, verbose=False)
prior = torch.from_numpy(Clothes.pixels).flatten(1).float() / 255
trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
trainer.fit(SimCLR(prior), DataLoader(Clothes(), batch_size=64, shuffle=True, drop_last=True))
