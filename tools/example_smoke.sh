#!/usr/bin/env bash
# Runs the example programs as a newcomer would and checks what they print and leave. Needs the release build.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${CARGO_TARGET_DIR:-target}/release/examples
bin=$(cd "$bin" && pwd)
shared=${AZULEJO_SHARED:-$PWD/../shared}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
passed=0; failed=0
check() { # name, command...
  local name=$1; shift
  if "$@" >"$work/log" 2>&1; then echo "ok   $name"; passed=$((passed + 1)); else echo "FAIL $name"; tail -20 "$work/log"; failed=$((failed + 1)); fi
}
field() { python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$1" "$2"; }

# The default run: eight processes, built-in data. F1 of at least 70, and the files that Trainer writes.
default_run() {
  (cd "$work" && timeout 240 "$bin/squad_4node") | tee "$work/default.log"
  python3 -c 'import sys; f1 = float(sys.argv[1]); print("F1", f1); sys.exit(f1 < 70)' "$(field "$work/squad_4node_output/all_results.json" eval_f1)"
  for f in model.safetensors config.json vocab.txt trainer_state.json eval_predictions.json train_results.json \
    training_args.json training_curves.svg README.md; do
    test -s "$work/squad_4node_output/$f"
  done
}
check "squad_4node: the default run reaches F1 70" default_run

# The log, read by TensorBoard's own reader where it is installed.
events() {
  local runs="$work/squad_4node_output/runs"
  [ "$(find "$runs" -name 'events.out.tfevents.*' -size +0 | wc -l)" = 1 ] || return 1
  if ! python3 -c 'import tensorboard' 2>/dev/null; then echo "the package tensorboard is absent: the event file was not read"; return 0; fi
  python3 examples/reference/read_events.py "$runs" >"$work/events.json"
  python3 -c 'import json, sys
events = json.load(open(sys.argv[1])); state = json.load(open(sys.argv[2])); results = json.load(open(sys.argv[3]))
assert abs(events["eval/f1"][0][1] - results["eval_f1"]) < 1e-4, events["eval/f1"]
losses = [[e["step"], e["loss"]] for e in state["log_history"] if "loss" in e]
assert [s for s, _ in events.get("train/loss", [])] == [s for s, _ in losses]
assert events["train/train_loss"] and json.loads(events["args/text_summary"][0][1])["seed"] == 42' \
    "$work/events.json" "$work/squad_4node_output/trainer_state.json" "$work/squad_4node_output/all_results.json"
}
check "squad_4node: the event file says what the JSON files say" events

# A file without answers gets predictions and no scores; one with answers the scores of evaluation.
predict() {
  local out="$work/squad_4node_output"
  python3 -c 'import json, sys
data = json.load(open(sys.argv[1]))
for article in data["data"]:
    for paragraph in article["paragraphs"]:
        for question in paragraph["qas"]: question.pop("answers")
json.dump(data, open(sys.argv[2], "w"))' "$out/demo/dev.json" "$work/test.json"
  set -- --model_name_or_path "$out" --do_predict --max_seq_length 192 --doc_stride 64 --bf16
  "$bin/squad_4node" "$@" --test_file "$work/test.json" --output_dir "$work/predicted" --nodes 1 --ppn 2
  "$bin/squad_4node" "$@" --test_file "$out/demo/dev.json" --output_dir "$work/scored"
  cmp "$work/predicted/predict_predictions.json" "$out/eval_predictions.json"
  cmp "$work/predicted/predict_nbest_predictions.json" "$work/scored/predict_nbest_predictions.json"
  python3 -c 'import json, sys
plain, scored, trained = (json.load(open(f)) for f in sys.argv[1:])
assert "test_f1" not in plain and plain["predict_samples"] == trained["eval_samples"], plain
assert scored["test_f1"] == trained["eval_f1"], (scored, trained)' \
    "$work/predicted/predict_results.json" "$work/scored/predict_results.json" "$out/eval_results.json"
}
check "squad_4node: predictions with and without answers" predict

# ask: one question on the command line, several on standard input, a batch.
ask() {
  local out="$work/squad_4node_output" context question
  python3 -c 'import json, sys
paragraph = json.load(open(sys.argv[1]))["data"][0]["paragraphs"][0]
open(sys.argv[2] + "/text.txt", "w").write(paragraph["context"])
questions = [q["question"] for q in paragraph["qas"]]
open(sys.argv[2] + "/questions.txt", "w").write("\n".join(questions) + "\n:n 3\n" + questions[0] + "\n")
rows = [{"id": q["id"], "question": q["question"], "context": paragraph["context"]} for q in paragraph["qas"]]
open(sys.argv[2] + "/questions.jsonl", "w").write("".join(json.dumps(r) + "\n" for r in rows))' "$out/demo/dev.json" "$work"
  question=$(head -1 "$work/questions.txt")
  set -- "$out" --max_seq_length 192 --doc_stride 64 --bf16
  "$bin/ask" "$@" "$question" --text "$work/text.txt" | tee "$work/one"
  grep -q ' %  .*\[.*\]' "$work/one"
  "$bin/ask" "$@" --text "$work/text.txt" <"$work/questions.txt" >"$work/lines"
  [ "$(wc -l <"$work/lines")" = $(($(wc -l <"$work/questions.txt") - 2 + 3)) ]
  head -1 "$work/lines" | cmp - "$work/one"
  "$bin/ask" "$@" --batch "$work/questions.jsonl" --output "$work/answers.jsonl"
  python3 -c 'import json, sys
predictions = json.load(open(sys.argv[1]))
for line in open(sys.argv[2]):
    row = json.loads(line); best = row["answers"][0]
    assert best["text"] == predictions[row["id"]], row' "$out/eval_predictions.json" "$work/answers.jsonl"
  ! "$bin/ask" "$@" --text "$work/no_such_file" x 2>"$work/err" && grep -q no_such_file "$work/err"
}
check "ask: answers equal those of the evaluation" ask

# The number of processes changes no bit of the weights.
same_bits() {
  local sum='' got
  for shape in "1 1 8" "2 2 2" "4 2 1"; do
    # shellcheck disable=SC2086
    set -- $shape
    "$bin/squad_4node" --nodes "$1" --ppn "$2" --gradient_accumulation_steps "$3" --max_steps 6 --output_dir "$work/bits-$1-$2"
    got=$(sha256sum <"$work/bits-$1-$2/model.safetensors")
    [ -z "$sum" ] || [ "$sum" = "$got" ] || { echo "$1 x $2 with accumulation $3 gives other weights"; return 1; }
    sum=$got
  done
}
check "squad_4node: 1 x 1, 2 x 2 and 4 x 2 processes give the same bits" same_bits

unknown_flag() {
  local status=0 text
  text=$("$bin/squad_4node" --max_stepz 3 2>&1) || status=$?
  echo "$text"
  [ "$status" = 2 ] && [[ $text == *--max_steps* ]]
}
check "squad_4node: an unknown flag suggests the nearest one, status 2" unknown_flag

not_empty() {
  mkdir -p "$work/full"; echo x >"$work/full/x"
  local status=0
  "$bin/squad_4node" --nodes 1 --ppn 1 --max_steps 1 --output_dir "$work/full" || status=$?
  [ "$status" = 1 ] && [ "$(ls "$work/full" | grep -cv '^demo$')" = 1 ]
}
check "squad_4node: a full output folder is refused" not_empty

if [ -d "$shared/data/squad" ]; then
  score() {
    "$bin/squad_score" "$shared/data/squad/dev-v1.1.json" "$shared/data/squad/predictions/$1.json" | tee "$work/score"
    python3 -c 'import json,sys; r = json.load(open(sys.argv[1])); sys.exit(abs(r["exact_match"] - float(sys.argv[2])) > 1e-9 or abs(r["f1"] - float(sys.argv[3])) > 1e-9)' "$work/score" "$2" "$3"
  }
  check "squad_score: the published score of bert-ensemble" score bert-ensemble 86.20624408703878 92.19557978351145
  check "squad_score: the published score of match-lstm" score match-lstm 67.63481551561021 76.75556184979695
  real() {
    "$bin/squad_4node" --model_name_or_path third_party/minilm --train_file "$shared/data/squad/train-v1.1-small.json" \
      --validation_file "$shared/data/squad/dev-v1.1-small.json" --do_train --do_eval --bf16 --max_steps 4 \
      --per_device_train_batch_size 16 --max_eval_samples 100 --nodes 2 --ppn 1 --output_dir "$work/real"
    test -s "$work/real/eval_results.json"
  }
  [ -d third_party/minilm ] && check "squad_4node: real weights, real data, two processes" real
else
  echo "the shared SQuAD data are absent: squad_score and the real run were NOT RUN"
fi
# A recorded machine prints what hwloc says of it; the drawing is well-formed.
recorded() {
  mkdir -p "$work/tree" && tar xjf "$shared/data/topology/$1.tar.bz2" -C "$work/tree"
  "$bin/topology" --root "$work/tree/"* --svg "$work/machine.svg" --json >"$work/machine.json"
  python3 -c 'import json,sys,xml.dom.minidom as x; x.parse(sys.argv[4]); sys.exit(json.load(open(sys.argv[1])) != json.load(open(sys.argv[2]))[sys.argv[3]])' \
    "$work/machine.json" "$shared/data/topology/expect.json" "$1" "$work/machine.svg"
}
[ -d "$shared/data/topology" ] && check "topology: a recorded machine as hwloc has it" recorded memorysidecaches

placed() {
  local each
  each=$("$bin/place" --ranks 2 -- sh -c 'grep Cpus_allowed_list /proc/self/status')
  echo "$each"
  [ "$(echo "$each" | wc -l)" = 2 ]
  # With a core for each, no two have the same.
  [ "$(nproc)" = 1 ] || [ "$(echo "$each" | sort -u | wc -l)" = 2 ]
}
check "place: two processes on CPUs of their own" placed
not_there() {
  local status=0
  "$bin/place" -- /no/such/program || status=$?
  [ "$status" = 127 ]
}
check "place: a program that is not there, status 127" not_there
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
