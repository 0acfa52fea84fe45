"""matplotlib → an SVG that belongs to the page: its colours, its font, light and dark."""

import hashlib
import html
import io
import re
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

# matplotlib knows no CSS: it draws in colours that nobody would choose, and each is replaced by its variable.
INK, SOFT, RULE, ACCENT, WARM, GOOD, BAD = (f"#0a0b{i:02x}" for i in range(1, 8))
RUNS = tuple(f"#0a0c{i:02x}" for i in range(1, 7))
PAINT = {
    INK: "currentColor",
    SOFT: "var(--soft)",
    RULE: "var(--rule)",
    ACCENT: "var(--accent)",
    WARM: "var(--warm)",
    GOOD: "var(--good)",
    BAD: "var(--bad)",
    **{colour: f"var(--run-{i})" for i, colour in enumerate(RUNS, 1)},
}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "gmmc",  # the same figure gives the same bytes
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
    "axes.labelsize": 11,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
}
RASTER_DPI = 200


def draw(paint: Callable[[Figure], None], label: str, *, width: int, height: int) -> Markup:
    """A figure of so many CSS pixels. The label says what it shows, and must differ from figure to figure."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # matplotlib only measures the text; the browser draws it, and has a font for every script.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(width / 72, height / 72))
        paint(figure)
        text = io.StringIO()
        figure.savefig(text, format="svg", dpi=RASTER_DPI)
    return _inline(text.getvalue(), label, width, height)


def margins(figure: Figure, *, left: float, right: float = 12, top: float = 10, bottom: float = 38) -> None:
    """Fixed margins in pixels, so that the axes of neighbours line up."""
    width, height = figure.get_size_inches() * 72
    figure.subplots_adjust(
        left=left / width, right=1 - right / width, top=1 - top / height, bottom=bottom / height
    )


def _inline(svg: str, label: str, width: int, height: int) -> Markup:
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = body.replace("xlink:href", "href")
    body = _own_ids(body, "f" + hashlib.sha256(label.encode()).hexdigest()[:10])
    # The page decides the font; matplotlib's own list would be a different one in every browser.
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    body = re.sub(r"font: (?:\w+ )*?([\d.]+px) [^;\"]*", r"font-size: \1", body)
    body = re.sub("|".join(PAINT), lambda found: PAINT[found[0]], body)
    name = html.escape(label, quote=True)
    opening = (
        f'<svg viewBox="0 0 {width} {height}" style="--natural: {width}px" role="img" aria-label="{name}">'
        f"<title>{name}</title>"
    )
    return Markup(opening + re.sub(r"\n\s*", "\n", body).strip())  # safe: the label is escaped


def _own_ids(body: str, prefix: str) -> str:
    """Ids are of the whole page: keep those that are used, and make them this figure's own."""
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', body))

    def renamed(found: re.Match[str]) -> str:
        return f' id="{prefix}-{found[1]}"' if found[1] in used else ""

    body = re.sub(r' id="([^"]*)"', renamed, body)
    return re.sub(r'(url\(#|href="#)', rf"\1{prefix}-", body)
