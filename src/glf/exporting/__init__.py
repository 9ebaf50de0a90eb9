"""glf export: a trained backbone as files that other libraries load without glf.

- formats.py: the table of formats. A new format is one entry here (and its name in ``config.inference.Format``).
- loading_code.py: lines of Python that load an exported file without glf, for the model card.
- preprocess.py: resizing, cropping and normalisation of the input images.
- onnx.py: the backbone as an ONNX graph.
- model_card.py: the model card. card_data.py: its header. base_model.py: what it says about an adaptation.
- write.py: the command: writes the files after checking that they give the run's features.
- hub.py: glf push, which uploads the files of the timm format.
"""
