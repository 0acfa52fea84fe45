"""Models for other programs: an ONNX graph, or a folder in the layout of the Hugging Face Hub."""

from gmmc.export.onnx import to_onnx

__all__ = ["to_onnx"]
