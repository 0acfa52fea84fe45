"""What a page of docs/ holds: fenced blocks, the commands in them, links."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
# A comment above a block says what it takes to run it: <!-- slow -->, or one of gpu, network and package.
FENCED = re.compile(r"(?:<!-- (?P<mark>\w+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    mark: str

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command line of a shell block, without comments."""
        lines = self.text.replace("\\\n", " ").splitlines()
        words = [shlex.split(line, comments=True) for line in lines]
        return [line for line in words if line]


def blocks_of(page: Path) -> list[Block]:
    found = FENCED.finditer(page.read_text())
    return [Block(match["language"], match["text"], match["mark"] or "") for match in found]


def linked_files(page: Path) -> list[Path]:
    """Where the links lead that are no addresses of other sites."""
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    return [page.parent / target for target in targets]
