#!/usr/bin/env bash
# PyTorch against azulejo on the same real batches, interleaved in one run; see bench_vs_torch.py for the arguments.
# AZULEJO_TORCH_PYTHON names a Python with torch and transformers; without it a virtual environment is made under target/.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${AZULEJO_TORCH_PYTHON:-}
if [ -z "$python" ]; then
  venv=target/torch-venv
  [ -x "$venv/bin/python" ] || { python3 -m venv "$venv"; "$venv/bin/pip" install -q torch transformers safetensors numpy; }
  python=$venv/bin/python
fi
[ -d third_party/minilm ] || tools/fetch_minilm.sh >&2
binary=$(cargo bench -q -p azulejo-bert --bench step --no-run --message-format=json 2>/dev/null |
  python3 -c 'import json,sys; print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable") and m["target"]["name"] == "step"][-1])')
exec "$python" tools/bench_vs_torch.py --binary "$binary" "$@"
