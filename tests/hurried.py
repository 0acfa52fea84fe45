"""gmmc whose drawings and attacks keep what they have after every block, and whose AutoAttack is short."""

from gmmc.cli import app
from gmmc.evaluations import autoattack
from gmmc.evaluations.attacks import campaign, protocol
from gmmc.generate import parts

if __name__ == "__main__":
    parts.PART_SECONDS = campaign.SAVE_EVERY = 0.0
    protocol.QUERIES = autoattack.QUERIES = 50
    app.main()
