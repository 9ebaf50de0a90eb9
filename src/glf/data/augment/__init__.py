"""Augmentation of whole batches on their device.

- policies.py: the table of augmentation policies (``--augment``). All numbers are here: crop ranges, probabilities,
  strengths.
- crop.py: random boxes; crop, flip, resize and blur.
- colour.py: brightness, contrast, saturation, hue, grey, solarise.
- augment.py: draws the random numbers and applies all of it to a batch.
"""
