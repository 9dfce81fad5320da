"""Hooks of mkdocs: pages that are generated from the code, and equations as MathML."""

from __future__ import annotations

import base64
import csv
import html
import re
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import typer
from latex2mathml.converter import convert
from matplotlib.figure import Figure
from mkdocs.structure.files import File
from notebooks import pages
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
COLOURS = ("#0072B2", "#D55E00", "#009E73")
_RESULTS = re.compile(r"\]\((?:\.\./)+benchmarks/RESULTS\.md")
_MATH = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the tutorials, as they run now."""
    sources = sorted((ROOT / "docs").glob("*/*.py"))
    for source, text in zip(sources, pages(sources), strict=True):
        files.append(File.generated(config, f"{source.parent.name}/{source.stem}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the generated part of a page, and lead links to the results to their page."""
    for name, generate in _GENERATED.items():
        mark = f"<!-- generated: {name} -->"
        if mark in markdown:
            markdown = markdown.replace(mark, "\n".join(generate()))
    up = "../" * page.file.src_uri.count("/")
    return _RESULTS.sub(f"]({up}results.md", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Turn equations into MathML, which browsers draw by themselves."""
    return _MATH.sub(_mathml, html)


def _mathml(match: re.Match[str]) -> str:
    latex = html.unescape(match[3]).replace(r"\mathrm{", r"\text{")  # upright, which the converter's \mathrm is not
    return convert(latex, display="block" if match[2] == "[" else "inline")


def settings() -> Iterator[str]:
    """The keys of the config files, section by section, from the models of the settings."""
    from pmwd_dist.run.settings import InferenceSettings, SimulationSettings

    simulation, inference = SimulationSettings.sections, InferenceSettings.sections
    both = [name for name, model in simulation.items() if inference.get(name) is model]
    yield "## Simulations and inferences\n"
    yield from _sections({name: simulation[name] for name in both})
    yield "## Simulations only\n"
    yield from _sections({name: model for name, model in simulation.items() if name not in both})
    yield "## Inferences only\n"
    yield from _sections({name: model for name, model in inference.items() if name not in both})


def _sections(models: dict[str, type[BaseModel]]) -> Iterator[str]:
    for name, model in models.items():
        yield f"### `[{name}]`\n\n{(model.__doc__ or '').strip()}\n"
        if model.model_fields:
            yield "| key | meaning | default |\n|---|---|---|"
        for key, field in model.model_fields.items():
            text = "; ".join([field.description or "", *_bounds(field)]).replace("|", "\\|").replace("<", "&lt;")
            yield f"| `{key}` | {text} | {_default(field)} |"
        yield ""


def _bounds(field: Any) -> list[str]:
    """The bounds of a number, in words."""
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    found = ((name, getattr(bound, name, None)) for bound in field.metadata for name in words)
    return [f"{words[name]} {value}" for name, value in found if value is not None]


def _default(field: Any) -> str:
    from pmwd_dist.run.settings.writing import toml_value

    example = (field.examples or [None])[0]
    if field.default is PydanticUndefined:
        return f"required; for example `{toml_value(example)}`" if example is not None else "required"
    if field.default is None:
        return f"unset; for example `{toml_value(example)}`" if example is not None else "unset"
    return f"`{toml_value(field.default)}`"


def command_line() -> Iterator[str]:
    """The commands of the program, from its parser."""
    from pmwd_dist.cli.commands import app

    group: Any = typer.main.get_command(app)
    context = group.context_class(group, info_name="pmwd-dist")
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        below = group.context_class(command, info_name=name, parent=context)
        yield f"## `{name}`\n\n{command.help}\n"
        yield f"```text\n{command.get_usage(below).removeprefix('Usage: ')}\n```\n"
        yield "| argument or option | meaning |\n|---|---|"
        for parameter in command.get_params(below):
            record = parameter.get_help_record(below)
            if record:
                label, text = (part.replace("|", "\\|").replace("  ", " ") for part in record)
                yield f"| `{label}` | {text} |"
        yield ""


def results() -> Iterator[str]:
    """The measurements, without the title, below figures of two of them."""
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    for draw, words in ((speed, "Time beside the peers on two cores"), (cost, "Accuracy against cost on a GPU")):
        yield f'<img alt="{words}" src="data:image/png;base64,{draw(text)}">\n'
    yield text.split("\n", 1)[1].replace("](../docs/", "](")


def speed(text: str) -> str:
    """Bars of time beside the peers, from the measurements."""
    number = r"([\d.]+)"
    pattern = rf"forward 128³, {number} ms a step.*?PM\+\+.*?[\d.]+ {number}.*?JaxPM [\d.]+ {number}.*?gradient 64³, "
    found = re.search(rf"{pattern}{number} s.*?PM\+\+ {number}.*?JaxPM\s{number}", text, re.DOTALL)
    assert found
    times = [float(x) for x in found.groups()]
    figure = Figure(figsize=(8, 2.4), layout="constrained")
    titles = ("forward, 128³, ms a step", "gradient of ten steps, 64³, s")
    for panel, title, values in zip(figure.subplots(1, 2), titles, (times[:3], times[3:]), strict=True):
        bars = panel.barh(["pmwd_dist", "PM++", "JaxPM"], values, color=COLOURS[:3])
        panel.bar_label(bars, fmt="{:g}", padding=3)
        panel.set(title=title, xlim=(0, 1.2 * max(values)))
        panel.invert_yaxis()
    return png(figure)


def cost(text: str) -> str:
    """Error of P(k) at z = 0 up to k_Ny / 2 over the time of a run, from the measurements."""
    times = re.search(r"3LPT (\d+); a step ([\d.]+) with one\s+cell a particle, ([\d.]+)", text)
    assert times
    start, *step = map(float, times.groups())
    figure = Figure(figsize=(8, 4), layout="constrained")
    panel = figure.subplots()
    panel.set(xscale="log", yscale="log")
    for spacing, colour in zip("124", COLOURS, strict=False):
        pattern = rf"^\| {spacing} \| (\d) \| (\d+) \| 3(, corrected)? \|[^|]*\| [\d.]+, ([\d.]+),"
        for kind, marker in (("", "o"), (", corrected", "s")):
            rows = [row for row in re.findall(pattern, text, re.MULTILINE) if row[2] == kind]
            if not rows:
                continue
            x = [start + step[int(cells) - 1] * int(steps) for cells, steps, *_ in rows]
            panel.plot(x, [float(row[3]) for row in rows], marker, color=colour, label=f"{spacing} Mpc/h{kind}")
    for axis, ticks in ((panel.xaxis, (200, 500, 1000, 2000)), (panel.yaxis, (1, 2, 5, 10, 20))):
        axis.set_ticks(ticks, list(map(str, ticks)))
        axis.set_minor_formatter("")
    panel.set(xlabel="time of a run of 512³ particles [ms]", ylabel="error of P(k) to half the Nyquist frequency [%]")
    panel.legend(title="spacing", fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return png(figure)


def png(figure: Figure) -> str:
    """A figure as base64."""
    image = BytesIO()
    figure.savefig(image, dpi=110)
    return base64.b64encode(image.getvalue()).decode("ascii")


def transforms() -> Iterator[str]:
    """The transforms under which functions work, from the table that tests keep."""
    first, *rows = csv.reader((ROOT / "docs" / "reference" / "transforms.csv").open(encoding="utf-8"))
    yield f"| {' | '.join(first)} |\n|{'---|' * len(first)}"
    words = {"yes": "✓", "no": "no", "": ""}
    for name, *cells in rows:
        page = "simulation.md" if "." not in name else f"{name.partition('.')[0]}.md"
        target = ".".join(["pmwd_dist", *name.split(".")[:3]]).removesuffix(".step")
        target = re.sub(r"(Model|Posterior)\..*", r"\1", target)
        page = "devices.md" if name.startswith(("p", "halo_")) and name != "power_spectrum" else page
        yield f"| [`{name}`]({page}#{target}) | {' | '.join(words[cell] for cell in cells)} |"


_GENERATED = {"settings": settings, "command line": command_line, "results": results, "transforms": transforms}
