"""Objective in, checkpoint out: the training loop, on Lightning."""
