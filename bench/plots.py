"""Pictures of results, with gnuplot."""
import os
import subprocess

from kit import interval, median_of

SIZES = ((8, "8 B"), (64, "64 B"), (256, "256 B"), (1 << 10, "1 KiB"), (4 << 10, "4 KiB"), (16 << 10, "16 KiB"),
         (64 << 10, "64 KiB"), (256 << 10, "256 KiB"), (1 << 20, "1 MiB"), (4 << 20, "4 MiB"))


def gnuplot(out, name, script, height=420):
    head = ("set terminal svg noenhanced size 900,%d font 'DejaVu Sans,13' background 'white'\n"
            "set output '%s'\nset border 3\nset tics nomirror\nset grid y lc '#e0e0e0'\n"
            % (height, os.path.join(out, name + ".svg")))
    path = os.path.join(out, name + ".gp")
    with open(path, "w", encoding="utf-8") as file:
        file.write(head + script)
    subprocess.run(["gnuplot", path], check=False)


def quoted(text):
    return '"' + text.replace('"', "'") + '"'


def figures(group, pin, contender, figure):
    """Median and the ends of its interval, or None."""
    values = group.values(pin, contender, figure)
    if not any(v is not None for v in values):
        return None
    return (median_of(values), *interval(values, median_of))


def bars(out, group, title, unit, figure):
    """One bar with its interval for each contender, pinned and unpinned side by side."""
    blocks = []
    for pin in group.pins:
        found = [(key, figures(group, pin, key, figure)) for key in group.contenders]
        lines = [quoted(key) + " %g %g %g" % three for key, three in found if three]
        if lines:
            blocks.append((pin, lines))
    if not blocks:
        return
    data = "".join("$%s << EOD\n%s\nEOD\n" % (pin, "\n".join(lines)) for pin, lines in blocks)
    parts = ", ".join("$%s using 2:3:4:xtic(1) title %s lc '%s'" % (pin, quoted(pin), colour)
                      for (pin, _), colour in zip(blocks, ("#1f6f8b", "#c2571a")))
    gnuplot(out, group.name, data + "set title %s\nset ylabel %s\nset yrange [0:*]\nset style data histogram\n"
            "set style histogram errorbars gap 1 lw 1\nset style fill solid 0.85 noborder\n"
            "set key top right\nplot %s\n"
            % (quoted(title), quoted(unit), parts))


def sizes(out, name, title, unit, figure, groups, contenders=None):
    """A line for each contender; groups: (size, group). If contenders are chosen they may differ by factors of a
    hundred, so both axes are logarithmic."""
    lines = {}
    for size, group in groups:
        for key, (label, _) in group.contenders.items():
            three = figures(group, "pinned", key, figure) or figures(group, "unpinned", key, figure)
            if three and (contenders is None or key in contenders):
                lines.setdefault(key, (label.partition(" (--")[0].partition(" (flue-")[0], []))[1].append(
                    "%d %g %g %g" % (size, *three))
    if not lines:
        return
    data = "".join("$s%d << EOD\n%s\nEOD\n" % (i, "\n".join(rows)) for i, (_, rows) in enumerate(lines.values()))
    parts = ", ".join("$s%d using 1:2:3:4 with yerrorlines title %s lw 2 pt 7 ps 0.6" % (i, quoted(label))
                      for i, (label, _) in enumerate(lines.values()))
    scale, height = "set yrange [0:*]\nset key bottom right\n", 420
    if contenders is not None:
        # Below the picture: their names are long.
        scale, height = "set logscale y\nset key below left Left reverse maxcols 1\n", 420 + 18 * len(lines)
    ticks = ", ".join("'%s' %d" % (text, size) for size, text in SIZES)
    gnuplot(out, name, data + "set title %s\nset ylabel %s\nset logscale x 2\n%sset xtics (%s)\nplot %s\n"
            % (quoted(title), quoted(unit), scale, ticks, parts), height)
