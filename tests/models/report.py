"""The models' table: what a run measured of each model and format."""

import pathlib
import platform

COLUMNS = ["model", "format", "kernels", "perplexity", "llama.cpp's", "of 32-bit floats", "same likeliest token",
           "tokens/s, 1 stream", "16 streams"]


class Report:
    """Rows of a Markdown table; a figure that was not measured is a dash."""

    def __init__(self):
        self.rows = {}

    def note(self, model, weights, kernels, **figures):
        """Adds figures, by the columns' names, to the row of a model, a format and kernels."""
        unknown = set(figures) - set(COLUMNS)
        assert not unknown, unknown
        self.rows.setdefault((model, weights, kernels), {}).update(figures)

    def write(self, path):
        if not self.rows:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"Models, by `make test-models` on {processor()}.", "", row(COLUMNS), row(["---"] * len(COLUMNS))]
        for key, figures in self.rows.items():
            lines.append(row([*key, *(figures.get(name, "–") for name in COLUMNS[3:])]))
        path.write_text("\n".join(lines) + "\n")


def row(cells):
    return "| " + " | ".join(cells) + " |"


def processor():
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} cores of {names[0]}" if names else platform.machine()
