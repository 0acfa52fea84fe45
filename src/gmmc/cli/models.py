"""`gmmc models`."""

EXAMPLE = "gmmc models"


def models() -> None:
    """List the models that ship with gmmc."""
    from gmmc.cli.listing import print_models

    print_models()
