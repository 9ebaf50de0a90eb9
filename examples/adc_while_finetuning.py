"""Fine-tuning a timm model while ADC preserves the neighbourhoods of a frozen copy: cross-entropy plus three lines.

Run: python examples/adc_while_finetuning.py
"""

import timm
import torch
from torch.nn import functional as F
from torchvision.transforms import v2

from glf import ADC, load_images  # 1

torch.manual_seed(0)
images = load_images("fashion-mini")
pixels = torch.from_numpy(images.pixels[:1024]).permute(0, 3, 1, 2).float() / 255
pixels, labels = pixels.expand(-1, 3, -1, -1), torch.from_numpy(images.targets[:1024])
views = v2.Compose([v2.RandomResizedCrop(32, scale=(0.4, 1.0), antialias=True), v2.RandomHorizontalFlip()])
whole = v2.Resize((32, 32), antialias=True)

# Random weights, to avoid a download; use pretrained=True for real fine-tuning.
model = timm.create_model("test_resnet", num_classes=10)
frozen = timm.create_model("test_resnet", num_classes=0).eval()
frozen.load_state_dict(model.state_dict(), strict=False)
with torch.no_grad():
    prior = frozen(whole(pixels))  # computed once: one feature vector per image
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
adc = ADC(nu=0.1, upsilon=0.3)  # 2

for step in range(8):
    batch = torch.randint(len(pixels), (64,))
    h0, h1 = (model.forward_features(views(pixels[batch])) for _ in range(2))
    z0, z1 = (model.forward_head(h, pre_logits=True) for h in (h0, h1))
    classified = F.cross_entropy(model.forward_head(h0), labels[batch])
    added = adc(z0, z1, prior=prior[batch])  # 3
    loss = classified + added
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}  cross-entropy {classified:.3f}  adc {added:.3f}")
