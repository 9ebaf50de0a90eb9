"""Transfer to object detection and instance segmentation: annotated images in, average precision out."""
