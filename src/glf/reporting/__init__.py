"""Results in, one self-contained HTML page out: from result.json, metrics.jsonl and artifacts/, never the data."""
