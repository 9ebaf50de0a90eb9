"""Checkpoint in, result out: what a backbone is worth."""
