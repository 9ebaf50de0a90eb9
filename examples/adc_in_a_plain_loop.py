"""ADC in a plain torch loop: any two-view loss, any frozen encoder, three lines of glf.

Run: python examples/adc_in_a_plain_loop.py
"""

import torch
from torch import nn
from torch.nn import functional as F
from torchvision.transforms import v2

from glf.constrain.adc.equations import ADC
from glf.data.sources import load_images  # 1

torch.manual_seed(0)
pixels = torch.from_numpy(load_images("fashion-mini").pixels[:1024]).permute(0, 3, 1, 2).float() / 255
views = v2.Compose([v2.RandomResizedCrop(28, scale=(0.4, 1.0), antialias=True), v2.RandomHorizontalFlip()])

backbone = nn.Sequential(nn.Conv2d(1, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 64, 3, 2), nn.ReLU(), nn.Flatten())
projector = nn.Sequential(nn.LazyLinear(128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64))
frozen = nn.Flatten()  # the encoder whose neighbourhoods ADC trusts: here the pixels, better a pretrained one
model = nn.Sequential(backbone, projector)
model(pixels[:2])  # gives the lazy layer its width
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
adc = ADC(nu=0.3, upsilon=1.0)  # 2

for step in range(8):
    x = pixels[torch.randint(len(pixels), (128,))]
    z0, z1 = model(views(x)), model(views(x))
    with torch.no_grad():
        prior = frozen(x)
    align = -F.cosine_similarity(z0, z1).mean()  # alone, this would collapse
    added = adc(z0, z1, prior=prior)  # 3
    loss = align + added
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}  align {align:.3f}  adc {added:.3f}  spread of z {F.normalize(z0).std(0).mean():.3f}")
