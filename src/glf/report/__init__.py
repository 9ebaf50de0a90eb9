"""Results in, one self-contained HTML page out. Reads result.json and metrics.jsonl, never data or checkpoints."""
