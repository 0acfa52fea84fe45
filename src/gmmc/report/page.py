"""One self-contained HTML page about one run or several; no model is loaded for it.

Files of a run → `reading` → `card`, `headline`, `training`, `sections` (with `figures`, `pictures`) → the
template. Several runs are also compared with the first (`compare/`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from gmmc import __version__
from gmmc.base.atomic import write_atomic
from gmmc.base.outputs import PAGE_MARK, check_replaceable, check_within, check_writable, has_mark
from gmmc.base.progress import Progress
from gmmc.base.text import printable, shortened
from gmmc.errors import InputError
from gmmc.report import card, pictures, sections
from gmmc.report.compare import comparison
from gmmc.report.compare.section import NAME as COMPARISON
from gmmc.report.conditions import short_commit
from gmmc.report.headline import headline
from gmmc.report.ood import SETS
from gmmc.report.parts import NOT_OURS, Section
from gmmc.report.reading import Run, damage_refused, read_runs
from gmmc.report.training import status, training
from gmmc.runs import shipped
from gmmc.runs.layout import REPORT


@dataclass(frozen=True)
class Report:
    """A page that was written; `folder` has the comparison of its runs, where there is one."""

    page: Path
    folder: Path
    comparison: dict[str, Any] | None  # the entry of results.json in the folder
    notes: list[str]  # why runs were not compared, a line each


def write_report(runs: Sequence[str | Path], out: Path | None = None) -> Report:
    """Write the page about these runs; by default report.html in the first, or in its place under runs/.

    Several runs are compared with the first by their validation results: the page has a section about it,
    and the folder `comparison` beside the page its numbers and its picture. Earlier files of gmmc are
    replaced; any other file in their place is refused.
    """
    read = read_runs(runs, without=_own_files(Path(out)) if out and len(runs) > 1 else ())
    page = Path(out) if out else shipped.workplace(runs[0]) / REPORT
    folder = page.parent / COMPARISON
    _check_page(page)
    compared, notes = comparison.comparable(read)
    if compared:
        _check_folder(folder)
    found = comparison.compare_runs(compared) if compared else None
    text = render(read, found.as_run(folder) if found else None)
    if found:
        comparison.write(found, folder)
    write_atomic(page, text.encode())
    return Report(page, folder, found.entry if found else None, notes)


def _own_files(page: Path) -> list[Path]:
    """Files of an earlier report, which `*` among the runs may name too."""
    return [*([page] if page.is_file() else []), page.parent / COMPARISON]


def _check_page(path: Path) -> None:
    check_writable(path.parent, "--out")
    check_replaceable(path, "--out", lambda page: page.is_dir() or has_mark(page, PAGE_MARK))
    if path.is_dir():
        raise InputError(f"--out must be the name of a file, got the folder {shortened(str(path))}")


def _check_folder(folder: Path) -> None:
    check_replaceable(folder, "--out", Path.is_dir)
    check_within(folder, folder.parent, "--out")
    comparison.check_replaces_own_files(folder)


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


def render(runs: list[Run], compared: Run | None = None) -> str:
    """The page as text; `compared` holds the comparison of the runs."""
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
            sections=build_sections(runs, compared),
            evaluated=any(run.results for run in runs),
        )
    )


def build_sections(runs: list[Run], compared: Run | None = None) -> list[Section]:
    cards = {
        run.name: card.words(run) for run in runs if run.card is not None
    }  # bad words are refused at once
    with_results = [compared, *runs] if compared else runs
    names = sections.names(with_results)
    most = pictures.share(with_results)
    built = []
    with Progress("report", len(names) + 1) as bar:
        for done, name in enumerate(names):
            bar.update(done, name)
            # A run may be a folder of an earlier comparison; no other run has a place in that section.
            about = [run for run in with_results if name in run.results] if name == COMPARISON else runs
            with damage_refused(name, about):
                built.append(sections.build(name, about, most))
        bar.update(len(names), "training")
        trained = [run for run in runs if run.state != "measured"]
        built += [training(trained)] if trained else []
        bar.update(len(names) + 1)
    first = headline(runs)
    if any(table.lines for group in first.groups for table in group.tables):
        built.insert(0, first)
    return [card.section(cards, runs, most), *built] if cards else built
