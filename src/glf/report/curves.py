"""Curves as inline SVG: no script, no font, no network."""

import html
import math

Curve = list[tuple[float, float]]
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 440, 240, 52, 24, 8
# Colours that stay apart for the colour-blind and on light and dark paper (after Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#999999")


def plot(title: str, curves: dict[str, Curve]) -> str:
    """One axis for all curves, a legend in words below them."""
    finite = {name: [(x, y) for x, y in curve if math.isfinite(y)] for name, curve in curves.items()}
    points = [point for curve in finite.values() for point in curve]
    if not points:
        return f"<p>{html.escape(title)}: no finite values</p>"
    low, high = min(y for _, y in points), max(y for _, y in points)
    start, end = min(x for x, _ in points), max(x for x, _ in points)
    span, length = (high - low) or 1.0, (end - start) or 1.0

    def place(x: float, y: float) -> str:
        across = LEFT + (x - start) / length * (WIDTH - LEFT - 8)
        up = TOP + (high - y) / span * (HEIGHT - TOP - BOTTOM)
        return f"{across:.1f},{up:.1f}"

    lines, legend = [], []
    height = HEIGHT + 16 * math.ceil(len(finite) / 2)
    for i, (name, curve) in enumerate(finite.items()):
        colour = COLOURS[i % len(COLOURS)]
        joined = " ".join(place(x, y) for x, y in curve)
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{joined}"/>')
        x, y = LEFT + (i % 2) * 190, HEIGHT + 12 + 16 * (i // 2)
        legend.append(f'<rect x="{x}" y="{y - 8}" width="12" height="4" fill="{colour}"/>')
        legend.append(f'<text x="{x + 18}" y="{y - 3}">{html.escape(name)}</text>')
    foot = HEIGHT - BOTTOM
    axes = (
        f'<path class="axis" fill="none" d="M{LEFT},{TOP} V{foot} H{WIDTH - 8}"/>'
        f'<text x="{LEFT - 4}" y="{TOP + 8}" text-anchor="end">{high:.3g}</text>'
        f'<text x="{LEFT - 4}" y="{foot}" text-anchor="end">{low:.3g}</text>'
        f'<text x="{LEFT}" y="{foot + 14}">step {start:g}</text>'
        f'<text x="{WIDTH - 8}" y="{foot + 14}" text-anchor="end">{end:g}</text>'
    )
    body = axes + "".join(lines) + "".join(legend)
    label = html.escape(title)
    return f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img" aria-label="{label}">{body}</svg>'
