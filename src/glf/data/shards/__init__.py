"""Training on WebDataset shards instead of a folder of images. Read the files in this order:

- write.py: write a data set as shards, resuming after a kill.
- schema.py: shards.json, which describes a set of shards.
- index.py: turns ``--data`` into a ``ShardStream``.
- fetch.py: the bytes of a file, a URL or a command, with retries.
- read.py: read the samples of one shard; decode them to pixels, label and prior features.
- loader.py: batches for training: assignment to workers, shuffling, exact resuming within an epoch.

On disk, a set of shards is ``shards.json`` and ``shard-000000.tar``, ``shard-000001.tar``, ... A sample is up to three
tar members with one key: ``<key>.jpg`` (or another image format), ``<key>.cls`` (class number in decimal digits) and
``<key>.prior.npy`` (features of the prior, float32).
"""
