"""Transfer to object detection and instance segmentation: from annotated images to average precision."""
