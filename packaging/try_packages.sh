#!/usr/bin/env bash
# Install the wheels and the sdists of dist/ in fresh environments and run a simulation with each.
# try_packages.sh PYTHON JAX: the interpreter, and a version of JAX such as 0.11.
set -euo pipefail
python=$(command -v "$1") jax=$2
dist=$(cd "$(dirname "$0")/.." && pwd)/dist
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cd "$work"   # not the clone: its packages would be imported

for file in .github/ Makefile CITATION.cff mkdocs.yml docs/ tests/ sims/ benchmarks/ rust/ Cargo.lock THIRD-PARTY.txt; do
    grep -q "^[^/]*/$file" <<<"$(tar tzf "$dist"/pmwd_dist-*.tar.gz)" || { echo "no $file in the sdist" >&2; exit 1; }
done

simulate() {   # simulate PLACE NATIVE: what doctor says of the native ops
    "$1/bin/pip" check
    "$1/bin/pmwd-dist" doctor | tee doctor.txt
    grep -q "$2" doctor.txt
    "$1/bin/python" - <<'PYTHON'
import jax, jax_cosmo
import pmwd_dist as pmd

config = pmd.Config(box_size=64.0, mesh_shape=16, steps=3)
cosmo = jax_cosmo.Planck15()

def contrast(noise):
    particles = pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)
    return (pmd.density(pmd.nbody(particles, cosmo, config).raise_if_failed().particles, config) ** 2).mean()

value, gradient = jax.value_and_grad(contrast)(pmd.white_noise(jax.random.key(0), config))
assert 1 < value < 10 and jax.numpy.isfinite(gradient).all(), value
print("jax", jax.__version__, "contrast", value)
PYTHON
}

"$python" -m venv wheels
wheels/bin/pip install --quiet --find-links "$dist" "jax==$jax.*" pmwd-dist[native] --only-binary pmwd-dist,jaxdecomp-ops
simulate wheels "native ops *in use"

"$python" -m venv sdist
sdist/bin/pip install --quiet "jax==$jax.*" "$dist"/pmwd_dist-*.tar.gz
simulate sdist "native ops *not installed"
if command -v cargo >/dev/null; then
    sdist/bin/pip install --quiet "$dist"/jaxdecomp_ops-*.tar.gz
    simulate sdist "native ops *in use"
fi
echo "packages work: $("$python" --version), jax $jax"
