"""Numbers as a reader wants them: fractions as percent, as many digits as the interval supports."""

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

MISSING = "–"
FRACTION = re.compile(r"(^|_)(top\d|ece|accuracy|agreement|saturated|fpr95|share|fraction|rate|clean)($|_)")
RANKING = {"auroc", "aupr"}  # fractions too, but the field writes them as .84


def shown(name: str, value: Any, interval: Sequence[float] | None = None) -> str:
    """A value of results.json; `name` may be a place in a table, its last part decides how it is written."""
    kind = name.rsplit("/", 1)[-1]
    if value is None:
        return MISSING
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if kind in RANKING:
        return f"{value:.3f}"
    if FRACTION.search(kind):
        return f"{100 * value:.{_percent_digits(value, interval)}f}%"
    return plain(value)


def shown_interval(name: str, interval: Sequence[float] | None) -> str:
    """Both ends, with the digits of the value they belong to; empty when there is none."""
    if (
        interval is None
        or len(interval) != 2
        or any(end is None or not math.isfinite(end) for end in interval)
    ):
        return ""
    low, high = interval
    kind = name.rsplit("/", 1)[-1]
    if kind in RANKING:
        return f"{low:.3f}–{high:.3f}"
    if FRACTION.search(kind):
        digits = _percent_digits(high, interval)
        return f"{100 * low:.{digits}f}–{100 * high:.{digits}f}%"
    return f"{plain(low)}–{plain(high)}"


def _percent_digits(value: float, interval: Sequence[float] | None) -> int:
    """As many as the interval's half-width has to say; without one, two for small shares, else one."""
    if interval is None or len(interval) != 2 or None in interval or not interval[1] > interval[0]:
        return 2 if 0 < value < 0.1 else 1
    half_width = 50 * (interval[1] - interval[0])
    return 0 if half_width >= 10 else 1 if half_width >= 0.5 else 2


def plain(value: float) -> str:
    """Whole numbers in full, others to three digits or more; large and small ones as powers of ten."""
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e6):
        return minus(f"{int(value):,}".replace(",", "\N{NARROW NO-BREAK SPACE}"))
    if 1e-3 <= abs(value) < 1e5:
        return minus(f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}")
    mantissa, exponent = f"{value:.2e}".split("e")
    return minus(f"{mantissa}·10{_raised(int(exponent))}")


def _raised(exponent: int) -> str:
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def printed(name: str, value: Decimal | None) -> str:
    """A published number with exactly the digits that were printed."""
    if value is None:
        return MISSING
    if FRACTION.search(name):
        return f"{value.scaleb(2):f}%"
    return minus(f"{value:f}")


def minus(text: str) -> str:
    return text.replace("-", "−")


def duration(seconds: Any) -> str:
    if not isinstance(seconds, (int, float)) or not math.isfinite(seconds):
        return MISSING
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
