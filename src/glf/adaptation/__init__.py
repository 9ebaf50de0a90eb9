"""glf adapt: a pretrained encoder, adapted to images without labels; the better of both is kept."""
