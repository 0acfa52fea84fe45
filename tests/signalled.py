"""gmmc that sends $SIGNAL to all its processes after update $UPDATE: at the same place on any machine."""

import os

from gmmc.base.leader import is_leader
from gmmc.cli import app
from gmmc.train.learner import Learner

update = Learner.update


def signalled(learner: Learner) -> None:
    update(learner)
    if is_leader() and learner.step == int(os.environ["UPDATE"]):
        os.killpg(0, int(os.environ["SIGNAL"]))


if __name__ == "__main__":
    Learner.update = signalled
    app.main()
