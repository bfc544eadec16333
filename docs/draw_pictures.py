"""Draws the pictures of the explanations: `python docs/draw_pictures.py` writes SVG files to docs/images."""

from __future__ import annotations

import random
from pathlib import Path

IMAGES = Path(__file__).parent / "images"

# The pictures bring their own background, so that they are readable on a page of either scheme.
STYLE = """
  svg { --paper: #ffffff; --ink: #1f2933; --soft: #5f6c7b; --line: #9aa5b1; }
  svg { --inside: #e8eef4; --outside: #fbe6c8; --dot: #b4530a; --heat: 200, 90, 10; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #14171c; --ink: #e4e7eb; --soft: #a3adb8; --line: #6b7785; }
    svg { --inside: #232b35; --outside: #5a3b12; --dot: #f5a54a; --heat: 245, 165, 74; }
  }
  text { font-family: system-ui, sans-serif; fill: var(--ink); font-size: 14px; text-anchor: middle; }
  .title { font-weight: 600; font-size: 18px; }
  .soft { fill: var(--soft); }
  .paper { fill: var(--paper); }
  .inside { fill: var(--inside); stroke: var(--line); }
  .outside { fill: var(--outside); stroke: var(--line); }
  .line { fill: none; stroke: var(--line); stroke-width: 1.5; }
  .brace { fill: none; stroke: var(--soft); stroke-width: 1.5; }
  .dot { fill: var(--dot); }
  .grid { fill: none; stroke: var(--line); }
"""


def svg(width: int, height: int, title: str, parts: list[str]) -> str:
    """Returns a complete SVG file. title: read aloud instead of the picture."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    paper = f'<rect class="paper" width="{width}" height="{height}" rx="8"/>'
    return "\n".join([head, f"<title>{title}</title>", f"<style>{STYLE}</style>", paper, *parts, "</svg>", ""])


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Returns a line of text, centred at x."""
    return f'<text x="{x:g}" y="{y:g}"{f" class={kind!r}" if kind else ""}>{words}</text>'


def one_rule() -> str:
    """Returns the five steps from logs to a release."""
    steps = (
        ("read", ("records", "of the logs"), "inside"),
        ("bound", ("each user adds", "a bounded amount"), "inside"),
        ("charge", ("epsilon goes", "into the ledger"), "inside"),
        ("noise", ("from the key,", "for that bound"), "inside"),
        ("publish", ("page, tables,", "manifest"), "outside"),
    )
    width, gap, top, height = 148, 18, 24, 96
    parts = []
    for index, (name, lines, kind) in enumerate(steps):
        left = 24 + index * (width + gap)
        middle = left + width / 2
        parts.append(f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{height}" rx="6"/>')
        parts.append(text(middle, top + 32, name, "title"))
        parts += [text(middle, top + 56 + 20 * row, line) for row, line in enumerate(lines)]
        if index:
            tip, row = left - 4, top + height / 2
            parts.append(f'<path class="line" d="M{left - gap + 3} {row}H{tip}m-6 -4l6 4l-6 4"/>')
    for first, last, words in ((0, 3, "only the operator sees this"), (4, 4, "all readers see this")):
        left, right, low = 24 + first * (width + gap), 24 + last * (width + gap) + width, top + height + 14
        parts.append(f'<path class="brace" d="M{left} {low}v8H{right}v-8"/>')
        parts.append(text((left + right) / 2, low + 30, words, "soft"))
    return svg(860, 180, "Five steps: read, bound, charge, noise, publish. Only the last is public.", parts)


def quadtree() -> str:
    """Returns three panels: users, the noisy counts of a coarse grid, and the grid after crowded cells were split."""
    draw = random.Random(4)
    side, top = 240, 48
    users = [(draw.gauss(0.3, 0.09), draw.gauss(0.32, 0.09)) for _ in range(260)]
    users += [(draw.gauss(0.72, 0.05), draw.gauss(0.7, 0.05)) for _ in range(160)]
    users += [(draw.random(), draw.random()) for _ in range(40)]
    users = [place for place in users if min(place) >= 0 and max(place) < 1]

    def noisy(x: float, y: float, width: float, scale: float) -> int:
        inside = sum(x <= east < x + width and y <= north < y + width for east, north in users)
        return round(inside + draw.expovariate(1 / scale) - draw.expovariate(1 / scale))

    def square(left: float, x: float, y: float, width: float, count: float) -> str:
        density = min(0.85, max(0.0, count) / width**2 / 6000)
        box = f'x="{left + x * side:g}" y="{top + y * side:g}" width="{width * side:g}" height="{width * side:g}"'
        return f'<rect {box} style="fill: rgba(var(--heat), {density:.2f}); stroke: var(--line)"/>'

    lefts = [28 + index * (side + 42) for index in range(3)]
    names = ("users: never published", "first answer: 16 noisy counts", "second answer: crowded cells split")
    parts = [text(left + side / 2, 30, name) for left, name in zip(lefts, names, strict=True)]
    parts.append(f'<rect class="grid" x="{lefts[0]}" y="{top}" width="{side}" height="{side}"/>')
    parts += [
        f'<circle class="dot" cx="{lefts[0] + x * side:.1f}" cy="{top + y * side:.1f}" r="1.8"/>' for x, y in users
    ]
    for row in range(4):
        for column in range(4):
            x, y = column / 4, row / 4
            count = noisy(x, y, 1 / 4, 5)
            parts.append(square(lefts[1], x, y, 1 / 4, count))
            parts.append(
                text(lefts[1] + (x + 1 / 8) * side, top + (y + 1 / 8) * side + 5, str(count).replace("-", "−"))
            )
            if count < 16:  # about twice the standard deviation of the noise, so the cell may be empty
                parts.append(square(lefts[2], x, y, 1 / 4, count))
                continue
            for part in range(16):
                inner = x + part % 4 / 16, y + part // 4 / 16
                parts.append(square(lefts[2], *inner, 1 / 16, noisy(*inner, 1 / 16, 1.5)))
    return svg(860, 312, "A quadtree is refined where noisy counts show users", parts)


def shards() -> str:
    """Returns three shards of users, whose noisy sums add up to the answer of a sub-query."""
    parts = []
    for index in range(3):
        top = 20 + index * 84
        parts.append(f'<rect class="inside" x="24" y="{top}" width="220" height="66" rx="6"/>')
        parts += [
            f'<circle class="dot" cx="{44 + 20 * (dot % 10)}" cy="{top + 20 + 26 * (dot // 10)}" r="4"/>'
            for dot in range(20)
        ]
        parts.append(f'<path class="line" d="M252 {top + 33}H302m-6 -4l6 4l-6 4"/>')
        parts.append(f'<rect class="outside" x="310" y="{top}" width="210" height="66" rx="6"/>')
        parts.append(text(415, top + 28, f"sum of shard {index + 1}"))
        parts.append(text(415, top + 50, "+ its own noise"))
        parts.append(f'<path class="line" d="M528 {top + 33}L602 137"/>')
    parts.append('<rect class="outside" x="606" y="92" width="230" height="90" rx="6"/>')
    parts.append(text(721, 132, "answer", "title"))
    parts.append(text(721, 156, "sum of all noisy sums"))
    parts.append(text(134, 286, "users: about 10,000 in each shard", "soft"))
    parts.append(text(573, 286, "a server sees only noisy sums", "soft"))
    return svg(860, 304, "Shards of users: each adds its own noise to its sum, and the answer is the sum of all", parts)


def windows() -> str:
    """Returns ten days of charges under a limit of epsilon 1 in 5 days, the fullest window, and a refused charge."""
    charges = (0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.4)
    width, left, floor = 76, 50, 150
    parts = []
    for day, epsilon in enumerate(charges):
        x, height, refused = left + day * width, epsilon * 250, epsilon > 0.2
        box = f'x="{x + 8}" y="{floor - height:g}" width="{width - 16}" height="{height:g}" rx="4"'
        parts.append(f'<rect class="{"outside" if refused else "inside"}" {box}/>')
        parts.append(text(x + width / 2, floor - height / 2 + 5, f"{epsilon:g}"))
        parts.append(text(x + width / 2, floor + 20, f"day {day + 1}", "soft"))
    parts.append(text(left + 9.5 * width, floor - 112, "refused"))
    braces = ((0, "days 1 to 5: epsilon 1, allowed"), (5, "days 6 to 10: epsilon 1.2, above the limit"))
    for first, words in braces:
        x, end = left + first * width + 8, left + (first + 5) * width - 8
        parts.append(f'<path class="brace" d="M{x} {floor + 34}v8H{end}v-8"/>')
        parts.append(text((x + end) / 2, floor + 64, words))
    return svg(860, 232, "A limit of epsilon 1 in any 5 days: the charge of day 10 would make its window 1.2", parts)


def cohorts() -> str:
    """Returns twelve nights with six cohorts: each night queries one of them, and each cohort every sixth night."""
    width, height, left, top = 58, 28, 130, 40
    parts = [text(72, 26, "night", "soft")]
    parts += [text(left + (night + 0.5) * width, 26, f"{night + 1}", "soft") for night in range(12)]
    for cohort in range(6):
        y = top + cohort * height
        parts.append(text(72, y + 19, f"cohort {cohort + 1}"))
        for night in range(12):
            kind = "outside" if night % 6 == cohort else "inside"
            parts.append(f'<rect class="{kind}" x="{left + night * width}" y="{y}" width="{width}" height="{height}"/>')
            if kind == "outside":
                parts.append(text(left + (night + 0.5) * width, y + 19, "ε"))
    parts.append(text(478, top + 6 * height + 28, "any 6 consecutive nights query each user once", "soft"))
    return svg(
        860, 252, "Six rotating cohorts: each night queries one of them with the whole epsilon of a night", parts
    )


def main() -> None:
    """Writes all pictures."""
    for draw in (one_rule, quadtree, shards, windows, cohorts):
        (IMAGES / f"{draw.__name__}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
