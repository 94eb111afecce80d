#!/usr/bin/env python3
"""Draws docs/recording.svg: what `dev` and `task submit --follow` print, recorded from the built program.

    cargo build && docs/recording.py target/debug/bloom-runtime

Both commands run in terminals of their own, with an empty home directory and no `claude` in the PATH, on the default port. Nothing is
written by hand; only the home directory is shown as /home/me, and lines are cut at the right edge.
"""

import html
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

COLUMNS, WIDTH, HEIGHT, LEFT, TOP = 108, 7.8, 19, 18, 40
ROOT = Path(__file__).resolve().parent.parent
PROMPT = "Write a line about queues"
CLASSES = {"1": "bold", "2": "dim", "3": "italic", "31": "red", "32": "green", "33": "yellow", "36": "blue"}


def start(command, env):
    """Starts a command in a terminal; returns the process and its output."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=env["HOME"], start_new_session=True)
    os.close(theirs)
    return process, ours


def read(terminal, until, lines):
    """Adds lines until one matches, the terminal is closed, or nothing comes for half a minute."""
    rest = ""
    while select.select([terminal], [], [], 30)[0]:
        try:
            rest += os.read(terminal, 65536).decode()
        except OSError:
            break
        *whole, rest = rest.split("\r\n")
        lines += whole
        if any(until in line for line in whole):
            return True
    return False


def record(program):
    path = f"{Path(program).resolve().parent}:/usr/bin:/bin"
    with tempfile.TemporaryDirectory() as home:
        env = {"HOME": home, "PATH": path, "TERM": "xterm-256color"}
        dev, first = start(["bloom-runtime", "dev"], env)
        above, below = ["$ bloom-runtime dev"], [f'$ bloom-runtime task submit --follow "{PROMPT}"']
        try:
            if not read(first, "registered", above):
                sys.exit("the server did not start: " + "\n".join(above))
            task, second = start(["bloom-runtime", "task", "submit", "--follow", PROMPT], env)
            read(second, "\0", below)
            if task.wait(10) != 0:
                sys.exit("the task failed: " + "\n".join(below))
            read(first, "run ended", above)
        finally:
            dev.send_signal(signal.SIGTERM)
            dev.wait(30)
        return ["\n".join(lines).replace(home, "/home/me").strip().split("\n") for lines in (above, below)]


def spans(line):
    """The line as tspans, with the classes of its escape sequences, cut at the edge of the window."""
    out, classes, room = [], [], COLUMNS
    for code, text in re.findall(r"(?:\x1b\[([0-9;]*)m)?([^\x1b]*)", line):
        for part in code.split(";") if code else []:
            classes = [] if part == "0" else [*classes, CLASSES.get(part, "")]
        text = text if len(text) <= room else text[: max(room - 1, 0)] + "…"
        room -= len(text)
        if text and room >= -1:
            names = " ".join(filter(None, classes))
            out.append(f'<tspan class="{names}">{html.escape(text)}</tspan>' if names else html.escape(text))
        if room <= 0:
            break
    return "".join(out)


def window(title, lines, top):
    width, height = COLUMNS * WIDTH + 2 * LEFT, TOP + len(lines) * HEIGHT + 8
    out = [f'<rect class="window" x="0.5" y="{top + 0.5}" width="{width:.0f}" height="{height}" rx="8"/>']
    out.append(f'<text class="dim" x="{LEFT}" y="{top + 22}">{title}</text>')
    for number, line in filter(lambda one: one[1], enumerate(lines)):
        kind = ' class="command"' if line.startswith("$ ") else ""
        y = top + TOP + number * HEIGHT + 6
        out.append(f'<text{kind} x="{LEFT}" y="{y}">{spans(line)}</text>')
    return "\n".join(out), top + height + 12


STYLE = """
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; fill: #1f2328 }
.window { fill: #f6f8fa; stroke: #d1d9e0 } .command, .bold { font-weight: 600 } .italic { font-style: italic }
.dim { fill: #59636e } .green { fill: #116329 } .red { fill: #a40e26 } .yellow { fill: #7d4e00 } .blue { fill: #0550ae }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .window { fill: #0d1117; stroke: #3d444d }
  .dim { fill: #9198a1 } .green { fill: #56d364 } .red { fill: #ff7b72 } .yellow { fill: #e3b341 } .blue { fill: #79c0ff }
}
"""


def main():
    above, below = record(sys.argv[1])
    first, top = window("Terminal 1", above, 0)
    second, bottom = window("Terminal 2", below, top)
    width = COLUMNS * WIDTH + 2 * LEFT + 1
    title = "bloom-runtime dev in one terminal, task submit --follow in another"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {bottom - 10}" width="{width:.0f}" role="img" xml:space="preserve">'
    picture = f"{head}\n<title>{title}</title>\n<style>{STYLE}</style>\n{first}\n{second}\n</svg>\n"
    (ROOT / "docs" / "recording.svg").write_text(picture)


main()
