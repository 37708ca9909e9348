"""Take a model elsewhere: one ONNX file with everything from raw features to decisions.

Needs the extra ``onnx``: ``pip install "mpvae[onnx]"``.
"""

from mpvae.export.model import metadata_of, save_onnx, shapes_of, to_onnx

__all__ = ["metadata_of", "save_onnx", "shapes_of", "to_onnx"]
