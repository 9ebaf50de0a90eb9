"""Tables with a column of images: Parquet files, and data sets of Hugging Face's library ``datasets``."""
