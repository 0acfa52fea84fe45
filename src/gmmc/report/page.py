"""One self-contained HTML page about one run or several; no model is loaded for it.

Files of a run → `reading` → `card`, `headline`, `training`, `sections` (with `figures`, `pictures`) → the
template.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from gmmc import __version__
from gmmc.base.atomic import write_atomic
from gmmc.base.outputs import PAGE_MARK, check_replaceable, check_writable, has_mark
from gmmc.base.progress import Progress
from gmmc.base.text import printable, shortened
from gmmc.errors import InputError
from gmmc.report import card, pictures, sections
from gmmc.report.conditions import short_commit
from gmmc.report.headline import headline
from gmmc.report.ood import SETS
from gmmc.report.parts import NOT_OURS, Section
from gmmc.report.reading import Run, read_runs
from gmmc.report.training import status, training
from gmmc.runs import shipped
from gmmc.runs.layout import REPORT, RESULTS


def write_report(runs: Sequence[str | Path], out: Path | None = None) -> Path:
    """Write the page about these runs; by default report.html in the first, or in its place under runs/.

    An earlier report is replaced; any other file of that name is refused.
    """
    read = read_runs(runs)
    path = Path(out) if out else shipped.workplace(runs[0]) / REPORT
    check_writable(path.parent, "--out")
    check_replaceable(path, "--out", lambda page: page.is_dir() or has_mark(page, PAGE_MARK))
    if path.is_dir():
        raise InputError(f"--out must be the name of a file, got the folder {shortened(str(path))}")
    write_atomic(path, render(read).encode())
    return path


def templates() -> jinja2.Environment:
    """Return the templates of the page; `grid` of parts.html.jinja renders a `Table` as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.globals["NOT_OURS"] = NOT_OURS
    return environment


def _shown(value: Any) -> Any:
    """Text of a record with its control characters as escapes; line breaks stay."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\n".join(map(printable, value.split("\n")))


def render(runs: list[Run]) -> str:
    """The page as text."""
    now = datetime.now().astimezone()
    return (
        templates()
        .get_template("page.html.jinja")
        .render(
            runs=[(run, status(run)) for run in runs],
            title=", ".join(run.name for run in runs),
            data=", ".join(dict.fromkeys(SETS.get(run.data, run.data) for run in runs)),
            date=f"{now.day} {now:%B %Y}",
            version=__version__,
            commits=list(dict.fromkeys(short_commit(commit) for run in runs for commit in run.commits)),
            sections=build_sections(runs),
            evaluated=any(run.results for run in runs),
        )
    )


def build_sections(runs: list[Run]) -> list[Section]:
    cards = {
        run.name: card.words(run) for run in runs if run.card is not None
    }  # bad words are refused at once
    names = sections.names(runs)
    most = pictures.share(runs)
    built = []
    with Progress("report", len(names) + 1) as bar:
        for done, name in enumerate(names):
            bar.update(done, name)
            try:
                built.append(sections.build(name, runs, most))
            except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
                places = ", ".join(str(run.path / RESULTS) for run in runs if name in run.results)
                why = " ".join(f"{type(error).__name__}: {error}".split())
                raise InputError(
                    f"the entry {shortened(name)} in {places} cannot be shown ({why}); evaluate it again"
                ) from None
        bar.update(len(names), "training")
        trained = [run for run in runs if run.state != "measured"]
        built += [training(trained)] if trained else []
        bar.update(len(names) + 1)
    first = headline(runs)
    if any(table.lines for group in first.groups for table in group.tables):
        built.insert(0, first)
    return [card.section(cards, runs, most), *built] if cards else built
