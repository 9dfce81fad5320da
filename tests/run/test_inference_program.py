"""An inference by the command line: counts of simulated galaxies, with a selection and h, by a sampler that accepts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from inferences import SMALL
from runs import command

from pmwd_dist.infer.chain.folder import load_chain

pytestmark = pytest.mark.slow

COUNTS = (
    SMALL.replace('"linear"\nbias = "eulerian"\nb1 = 1.8\nline_of_sight = "none"', '"lpt"\nb1 = 0.8')
    .replace("sigma = 0.5", 'kind = "poisson"\nnbar = 3.0\n[data]\nselection = "selection.npy"')
    .replace("mean = 1.5", "mean = 0.8")
    .replace("energy_variance = 2e-4\nsteps = 36", 'method = "hmc"\nsteps = 24')
    .replace("[devices]\n", "[devices]\nhalo = 0\n")
    .replace("a_stop = 0.5", "a_stop = 0.5\nlpt_order = 1")
    .replace("[priors]", '[priors]\nh = { kind = "normal", mean = 0.68, sd = 0.03 }')
)


@pytest.mark.usefixtures("no_pictures")
def test_counts_with_a_selection_are_sampled_and_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """By programs of the chains that are compiled once."""
    np.save(tmp_path / "selection.npy", np.linspace(0.2, 1, 64).reshape(4, 4, 4))
    file, folder = tmp_path / "counts.toml", tmp_path / "run"
    file.write_text(COUNTS)
    with jax.log_compiles():
        assert command("infer", file, "--output", folder) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(re.match(r"tuning 14%  step size \S+, L \S+  ", line) for line in lines)
    chunks = [line for line in lines if line.startswith("step ")]
    assert len(chunks) == 2 and all(re.search(r" gradients/s  \d+% accepted  ESS ", line) for line in chunks)
    # A finished run whose checks fail is no failed run: it says so last, and where programs read it.
    assert lines[-1].startswith("not converged: ") and "effective samples are fewer than 400" in "".join(lines[-4:])
    told = json.loads((folder / "run.json").read_text())
    assert (told["status"], told["trusted"]) == ("finished", False)
    assert lines[-1] == f"not converged: {told['reasons'][-1]}"
    assert {"maps.png", "fields.png"} < {path.name for path in folder.iterdir()}
    chain = load_chain(folder)
    assert 0 < chain.acceptance_rate.mean() < 1
    assert all(np.ptp(chain.parameters[name]) > 0 for name in ("b1", "h"))
    compiled = [match[1] for text in caplog.messages if (match := re.match(r"Compiling (?:jit\()?(\w+)", text))]
    assert [compiled.count(name) for name in ("begin", "tuning_block", "_advance")] == [1, 2, 1]
    # hmc is tuned by mclmc first.
