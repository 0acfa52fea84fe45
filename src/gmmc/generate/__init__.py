"""Many images from one model, one seed each, in a tensor, a file or a folder. Drawing can be interrupted.

What a label and a seed look like depends on nothing else than what `fingerprint` is made of. So whatever was
finished before and bears the same fingerprint is taken as it is, and the rest is drawn.
"""

from gmmc.generate.files import FILES, to_file
from gmmc.generate.folder import IN_GRID, to_folder
from gmmc.generate.parts import drawn, fingerprint

__all__ = ["FILES", "IN_GRID", "drawn", "fingerprint", "to_file", "to_folder"]
