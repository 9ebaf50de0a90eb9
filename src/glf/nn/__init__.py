"""Views in, embeddings out: backbones, heads, the teacher, memories, frozen features."""
