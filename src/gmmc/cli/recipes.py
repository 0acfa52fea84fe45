"""`gmmc recipes`."""

EXAMPLE = "gmmc recipes"


def recipes() -> None:
    """List the recipes that ship with gmmc."""
    from gmmc.cli.listing import print_recipes

    print_recipes()
