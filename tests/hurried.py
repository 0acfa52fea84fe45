"""gmmc whose drawings and attacks keep what they have after every block, and whose AutoAttack is short."""

from gmmc import cli
from gmmc.attacks import campaign, protocol
from gmmc.drawing import parts
from gmmc.evaluations import autoattack

if __name__ == "__main__":
    parts.PART_SECONDS = campaign.SAVE_EVERY = 0.0
    protocol.QUERIES = autoattack.QUERIES = 50
    cli.main()
