"""Draws what ran when: a row per run, a column per slice of time, a colour for each kind of work.

Where the output is not a terminal, letters stand for the colours."""

import sys

# kind -> letter, ANSI colour of its block
KINDS = {
    "forward_backward": ("F", 34),
    "forward": ("F", 36),
    "optim_step": ("O", 33),
    "sample": ("s", 32),
}
ORDER = ["optim_step", "forward_backward", "forward", "sample"]  # what a slice shows when there is more than one


def slices(spans, begin, end, width):
    """The kind that each of `width` slices of [begin, end) shows, None where nothing ran. Spans are (kind, begin, end); of several in a
    slice the first of ORDER is shown, so that a short optimizer step is not hidden."""
    cells = [None] * width
    for kind, a, b in spans:
        if kind not in KINDS or b < begin or a >= end:
            continue
        first = max(0, int((a - begin) / (end - begin) * width))
        last = min(width - 1, int((b - begin) / (end - begin) * width))
        for i in range(first, last + 1):
            if cells[i] is None or ORDER.index(kind) < ORDER.index(cells[i]):
                cells[i] = kind
    return cells


def bars(cycles, begin, end, width):
    """A line with a mark where each clock cycle begins, and its number where there is room. Cycles are (number, begin, end)."""
    line = [" "] * width
    marks = sorted((int((a - begin) / (end - begin) * width), number) for number, a, _ in cycles if begin <= a < end)
    for i, (at, number) in enumerate(marks):
        room = (marks[i + 1][0] if i + 1 < len(marks) else width) - at - 1
        text = "|" + (str(number) if len(str(number)) < room else "")
        line[at : at + len(text)] = text
    return "".join(line[:width])


def draw(rows, cycles, begin, end, width=100, out=sys.stdout):
    """Rows are (name, spans)."""
    colours = out.isatty()
    margin = max([len(name) for name, _ in rows] + [len("clock cycle")]) + 1

    def cell(kind):
        letter, colour = KINDS[kind]
        return f"\033[{colour}m█\033[0m" if colours else letter

    print(f"{'clock cycle':<{margin}}{bars(cycles, begin, end, width)}", file=out)
    for name, spans in rows:
        print(f"{name:<{margin}}{''.join(cell(k) if k else '·' for k in slices(spans, begin, end, width))}", file=out)
    print(f"{'':<{margin}}{f'{end - begin:.2f} s':>{width}}", file=out)
    print(f"{'':<{margin}}" + "   ".join(f"{cell(k)} {k}" for k in ("forward_backward", "optim_step", "sample")), file=out)
