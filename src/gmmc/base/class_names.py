"""Rules for class names, which others choose: they are printed, and become parts of file names and pages."""

from collections import Counter
from typing import Any

from gmmc.base.limits import CLASS_NAME, CLASSES
from gmmc.base.text import INVISIBLE, printable, shortened
from gmmc.errors import InputError


def check_class_names(names: Any, where: str) -> tuple[str, ...]:
    """Return the class names as a tuple; InputError in one line that begins with `where` if one is unusable.

    Parameters
    ----------
    names : list or tuple of str
        1 to `limits.CLASSES` different names of 1 to `limits.CLASS_NAME` printable characters.
    where : str
        The subject of the error, such as "class_names" or "the class names of photos".
    """
    if not isinstance(names, list | tuple):
        raise InputError(f"{where} must be a list of strings, got {shortened(names)}")
    if not 1 <= len(names) <= CLASSES:
        raise InputError(f"{where} must be 1 to {CLASSES:,} names (limits.CLASSES), got {len(names):,}")
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"{where} must be strings, got {shortened(name)}")
        if _is_blank(name):  # an empty answer means that the model abstains
            raise InputError(f"{where} must not be blank, got {shortened(name)}")
        if len(name) > CLASS_NAME:
            rule = f"must have at most {CLASS_NAME} characters (limits.CLASS_NAME)"
            raise InputError(f"{where} {rule}, got {len(name):,} in {shortened(name)}")
        if printable(name) != name:
            raise InputError(f"{where} must have printable characters only, got {shortened(name)}")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise InputError(f"{where} must differ, got {shortened(name)} {'twice' if count == 2 else 'often'}")
    return tuple(names)


def _is_blank(name: str) -> bool:
    return all(character.isspace() or character in INVISIBLE for character in name)
