"""The report's charts as SVG: ExpRate by length of the true caption, with intervals (the paper's Fig. 3); speed-ups."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from evaluation.scoring.interval import proportion_interval

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 540, 300, 44, 8, 26, 44
COLOURS, MARKERS = 5, ["circle", "square", "diamond", "triangle", "cross", "ring"]
ROOM = 15  # px between lines of the legend


class Series(NamedTuple):
    """A run, or the paper's numbers, on a set: (bucket, n, exact) for every bucket."""

    name: str
    counts: Sequence[tuple[str, int, int]]
    reported: bool = False


def length_chart(title: str, series: Sequence[Series]) -> Markup:
    """One set as an SVG figure; markers differ in form, so that colours need not be told apart."""
    buckets = [(bucket, n) for bucket, n, _ in series[0].counts]
    height = HEIGHT + ROOM * len(series)
    step = (WIDTH - LEFT - RIGHT) / len(buckets)
    parts = [Markup('<text x="{}" y="15" font-weight="600">{}</text>').format(LEFT, title)]
    parts += [_tick(rate) for rate in range(0, 101, 20)]
    for place, (bucket, n) in enumerate(buckets):
        x, y = LEFT + (place + 0.5) * step, HEIGHT - BOTTOM
        parts.append(
            Markup(
                '<text x="{x:.0f}" y="{a}" text-anchor="middle">{bucket}</text>'
                '<text x="{x:.0f}" y="{b}" text-anchor="middle" opacity=".7">n = {n}</text>'
            ).format(x=x, a=y + 15, b=y + 29, bucket=bucket, n=n)
        )
    for number, one in enumerate(series):
        shift = (number - (len(series) - 1) / 2) * min(9, step / (len(series) + 1))
        parts.append(_line(one, number, step, shift))
        parts.append(_legend(one, number))
    words = f"{title}: ExpRate by length for {', '.join(one.name for one in series)}"
    return Markup('<svg role="img" aria-label="{}" viewBox="0 0 {w} {h}" width="{w}" height="{h}">{}</svg>').format(
        words, Markup("").join(parts), w=WIDTH, h=height
    )


def ratio_chart(title: str, bars: Sequence[tuple[str, float, str]]) -> Markup:
    """Ratios above 0 as bars from 1, on a logarithmic axis: (name, ratio, words for the tooltip)."""
    left, right, height = 220, 52, TOP + ROOM * len(bars) + 10
    logs = [math.log(ratio) for _, ratio, _ in bars]
    low, high = min(0.0, *logs), max(math.log(2), *logs)

    def x(log: float) -> float:
        return left + (log - low) / (high - low) * (WIDTH - left - right)

    parts = [Markup('<text x="0" y="15" font-weight="600">{}</text>').format(title)]
    for number, ((name, ratio, words), log) in enumerate(zip(bars, logs, strict=True)):
        y, start, end = TOP + ROOM * number, min(x(0), x(log)), max(x(0), x(log))
        parts.append(
            Markup(
                '<g><title>{}</title><text x="{:.0f}" y="{t:.0f}" text-anchor="end">{}</text>'
                '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="9" fill="var(--s1)"/>'
                '<text x="{:.1f}" y="{t:.0f}">{}</text></g>'
            ).format(
                *(f"{name}: {words}", left - 8, name, start, y, max(1, end - start), end + 5, f"{ratio:.1f}×"),
                t=y + 9,
            )
        )
    line = Markup('<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{}" y2="{}"/>').format(TOP - 4, height - 6, x=x(0))
    words = f"{title}: {', '.join(f'{name} {ratio:.1f}' for name, ratio, _ in bars)}"
    return Markup('<svg role="img" aria-label="{}" viewBox="0 0 {w} {h}" width="{w}" height="{h}">{}</svg>').format(
        words, Markup("").join([*parts, line]), w=WIDTH, h=height
    )


def _y(rate: float) -> float:
    return TOP + (100 - rate) / 100 * (HEIGHT - TOP - BOTTOM)


def _tick(rate: int) -> Markup:
    line = '<line class="grid" x1="{}" x2="{}" y1="{y:.1f}" y2="{y:.1f}"/>'
    text = '<text x="{}" y="{:.1f}" text-anchor="end">{}{}</text>'
    return Markup(line).format(LEFT, WIDTH - RIGHT, y=_y(rate)) + Markup(text).format(
        LEFT - 6, _y(rate) + 4, rate, " %" if rate == 100 else ""
    )


def _line(series: Series, number: int, step: float, shift: float) -> Markup:
    colour = _colour(series, number)
    points, marks = [], []
    for place, (bucket, n, exact) in enumerate(series.counts):
        if not n:
            continue
        x, y = LEFT + (place + 0.5) * step + shift, _y(100 * exact / n)
        low, high = proportion_interval(exact, n)
        points.append(f"{x:.1f},{y:.1f}")
        marks.append(
            Markup(
                '<g><title>{}</title><line x1="{x:.1f}" x2="{x:.1f}" y1="{:.1f}" y2="{:.1f}" stroke="{c}"/>{}</g>'
            ).format(
                f"{series.name}, {bucket}: {exact} of {n} = {100 * exact / n:.1f} % "
                f"({100 * low:.1f} to {100 * high:.1f})",
                _y(100 * low),
                _y(100 * high),
                _marker(x, y, number, colour),
                x=x,
                c=colour,
            )
        )
    dash = ' stroke-dasharray="5 4"' if series.reported else ""
    line = Markup('<polyline points="{}" fill="none" stroke="{}" opacity=".55"{}/>')
    return line.format(" ".join(points), colour, Markup(dash)) + Markup("").join(marks)


def _legend(series: Series, number: int) -> Markup:
    y = HEIGHT + number * ROOM + 4
    marker = _marker(LEFT + 6, y - 4, number, _colour(series, number))
    return marker + Markup('<text x="{}" y="{}">{}</text>').format(LEFT + 18, y, series.name)


def _colour(series: Series, number: int) -> str:
    """One of the page's colours; grey is the paper's."""
    return "var(--s0)" if series.reported else f"var(--s{number % COLOURS + 1})"


def _marker(x: float, y: float, number: int, colour: str) -> Markup:
    forms = {
        "circle": '<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{c}"/>',
        "square": '<rect x="{l:.1f}" y="{t:.1f}" width="7" height="7" fill="{c}"/>',
        "diamond": '<path d="M{x:.1f} {t:.1f}l4.5 3.5l-4.5 4.5l-4.5-4.5z" fill="{c}"/>',
        "triangle": '<path d="M{x:.1f} {t:.1f}l4.5 7.5h-9z" fill="{c}"/>',
        "cross": '<path d="M{l:.1f} {t:.1f}l7 7m0-7l-7 7" stroke="{c}" stroke-width="2"/>',
        "ring": '<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="var(--paper)" stroke="{c}" stroke-width="2"/>',
    }
    form = Markup(forms[MARKERS[number % len(MARKERS)]])
    return form.format(x=x, y=y, l=x - 3.5, t=y - 3.5, c=colour)
