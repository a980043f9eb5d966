"""A small live chart for the terminal: one series, drawn with block characters and redrawn in place.

Where the output is not a terminal it prints one plain line per point instead, so that a log stays readable."""

import shutil
import sys

BLOCKS = " ▁▂▃▄▅▆▇█"


def columns(values, width):
    """Fits a series into at most `width` columns: neighbours are averaged, so that a column is a mean and no point is dropped."""
    if len(values) <= width:
        return list(values)
    edges = [i * len(values) // width for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in zip(edges, edges[1:])]


def rows(values, low, high, height):
    """The chart's lines from top to bottom: a value at or below `low` is the thinnest bar, one at or above `high` is full."""
    eighths = []
    for value in values:
        share = (value - low) / (high - low) if high > low else 0.0
        eighths.append(max(1, round(min(1.0, max(0.0, share)) * height * 8)))
    return [
        "".join(BLOCKS[min(8, max(0, e - 8 * level))] for e in eighths)
        for level in reversed(range(height))
    ]


class Chart:
    """Draws one series under a title. `low` and `high` fix the scale; without `high` it is the largest value seen."""

    def __init__(self, title, steps, low=0.0, high=None, height=8, out=sys.stdout):
        self.title, self.steps, self.low, self.high, self.height, self.out = title, steps, low, high, height, out
        self.values = []
        self.live = out.isatty()
        self.drawn = 0
        if not self.live:
            print(title, file=out)

    def add(self, value, note=""):
        """Adds a point and shows it; `note` stands beside the newest value."""
        self.values.append(value)
        step = f"step {len(self.values):>3} of {self.steps}   {value:6.3f}   {note}"
        if not self.live:
            print(f"  {step}", file=self.out, flush=True)
            return
        width = max(20, min(shutil.get_terminal_size().columns - 10, self.steps))
        high = self.high if self.high is not None else max(self.values)
        lines = [self.title]
        for i, line in enumerate(rows(columns(self.values, width), self.low, high, self.height)):
            label = high if i == 0 else self.low if i == self.height - 1 else None
            lines.append(f"{label:7.2f} │" + line if label is not None else "        │" + line)
        lines.append("        └" + "─" * width)
        lines.append(f"         {step}")
        back = f"\x1b[{self.drawn}A" if self.drawn else ""
        self.out.write(back + "".join(f"\x1b[2K{line}\n" for line in lines))
        self.out.flush()
        self.drawn = len(lines)
