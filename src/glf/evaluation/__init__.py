"""Evaluation of backbones: k-NN, probes, geometry, Theorem 1, fine-tuning and detection."""
