# SPDX-License-Identifier: Apache-2.0
"""cairn-convert: files of torch.save, directories of torch.distributed.checkpoint and npz archives to checkpoints and back.

``cairn-convert import RUN PATH`` and ``cairn-convert export RUN --to DIR`` (also ``python -m cairn.convert``) take the
words of ``cairn import`` and ``cairn export``, which do the same for safetensors. PyTorch and NumPy read and write the
formats. Files are mapped, never loaded, and nothing that a file holds is ever executed.
"""
