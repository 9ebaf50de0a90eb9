"""Networks: from views to embeddings.

- backbone.py: backbones by name (timm, torchvision, small_resnet), with the stem for their image size.
- heads.py: projectors, predictors and prototypes.
- network.py: backbone, heads and EMA teacher together: Views to Embeddings.
- memory.py: buffers of losses, such as queues and running covariances.
- weights.py: saving and loading backbones; state dicts of other libraries.
- pretrained.py: published models of timm and torchvision with their weights.
- features.py, feature_cache.py: features of an image set. prior.py: features of the frozen prior for LPM.
- schedule.py: learning-rate schedule.
"""
