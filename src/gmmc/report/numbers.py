"""Numbers as a reader wants them: fractions as percent, as many digits as the interval supports."""

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from gmmc.base.tables import MISSING

FRACTION = re.compile(
    r"(^|_)(top\d|ece|accuracy|agreement|saturated|fpr95|share|fraction|rate|clean|accepted)($|_)"
)
# fractions too, but the field writes them as .84; a density may pass 1
RANKING = {"auroc", "aupr", "precision", "recall", "density", "coverage"}
SCORES = {"fid", "inception_score"}
RANKING_DIGITS = 3


def shown(name: str, value: Any, interval: Sequence[float] | None = None, digits: int | None = None) -> str:
    """A value of results.json; `name` may be a place in a table, its last part decides how it is written.

    `digits`: of a percentage, where it stands beside others; else its own interval decides.
    """
    kind = name.rsplit("/", 1)[-1]
    if value is None:
        return MISSING
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if not math.isfinite(value):
        return plain(value)
    if kind in RANKING:
        return proportion(value, RANKING_DIGITS)
    if FRACTION.search(kind):
        return percent(value, percent_digits(value, interval) if digits is None else digits)
    return score(value) if kind in SCORES else plain(value)


def shown_interval(name: str, interval: Sequence[float] | None, digits: int | None = None) -> str:
    """Both ends, with the digits of the value they belong to; empty when there is none."""
    if (
        interval is None
        or len(interval) != 2
        or any(end is None or not math.isfinite(end) for end in interval)
    ):
        return ""
    kind = name.rsplit("/", 1)[-1]
    if kind in RANKING:
        low, high = (proportion(end, RANKING_DIGITS) for end in interval)
    elif FRACTION.search(kind):
        digits = percent_digits(interval[1], interval) if digits is None else digits
        low, high = (percent(end, digits) for end in interval)
        low = low.removesuffix("%")
    else:
        low, high = map(score if kind in SCORES else plain, interval)
    if low[0] not in "<>" and high[0] not in "<>":
        return f"{low}–{high}"
    return high if low == high.removesuffix("%") else f"{low} to {high}"


def proportion(value: float, digits: int) -> str:
    """A fraction of 1. What is below 1 never reads as 1, and what is above 0 never as 0."""
    return _within(value, 1, digits)


def percent(value: float, digits: int) -> str:
    """Likewise as a percentage."""
    return f"{_within(100 * value, 100, digits)}%"


def _within(value: float, most: int, digits: int) -> str:
    text, least = f"{value:.{digits}f}", 10.0**-digits
    if value < most and float(text) >= most:
        return f">{most - least:.{digits}f}"
    if value > 0 and float(text) == 0:
        return f"<{least:.{digits}f}"
    return minus(text)


def common_digits(values: Sequence[tuple[Any, Sequence[float] | None]]) -> int | None:
    """Digits after the point for percentages that are compared: those of the most exact one."""
    known = [
        percent_digits(value, interval)
        for value, interval in values
        if isinstance(value, (int, float)) and math.isfinite(value)
    ]
    return max(known, default=None)


def percent_digits(value: float, interval: Sequence[float] | None) -> int:
    """As many as the interval's half-width has to say; without one, two for small shares, else one."""
    if interval is None or len(interval) != 2 or None in interval or not interval[1] > interval[0]:
        return 2 if 0 < value < 0.1 else 1
    half_width = 50 * (interval[1] - interval[0])
    return 0 if half_width >= 10 else 1 if half_width >= 0.5 else 2


def plain(value: float) -> str:
    """Whole numbers in full, others to three digits or more; large and small ones as powers of ten."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e6):
        return minus(f"{int(value):,}".replace(",", "\N{NARROW NO-BREAK SPACE}"))
    if 1e-3 <= abs(value) < 1e5:
        return minus(f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}")
    mantissa, exponent = f"{value:.2e}".split("e")
    return minus(f"{mantissa}·10{_raised(int(exponent))}")


def score(value: float) -> str:
    """A FID or its like, with the digits in which they are published."""
    return minus(f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}")


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
