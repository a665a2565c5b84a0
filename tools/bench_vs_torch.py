"""Trains the same model on the same real SQuAD batches with PyTorch and with azulejo, in turn, and prints both.

  tools/bench_vs_torch.sh [--json] [--rounds 7] [--cases padded,full] [--model DIR] [--train FILE]

For each case every engine is a process that performs one step when told to; only one runs at a time, in the order
azulejo, PyTorch bf16, PyTorch f32, azulejo, ... so that drift of a shared machine hits all alike. The first round warms
up and is not counted; the figures are medians over the rounds. "padded" is run_qa.py's default (PyTorch pads every
feature to 384, azulejo never pads), "full" uses only features of exactly 384 tokens. PyTorch runs with tcmalloc
preloaded when the library is found. The ratio is against the best of PyTorch's dtypes.
"""
import argparse
import glob
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)


class Engine:
    """A co-process that answers every line on its standard input with one JSON object."""

    def __init__(self, name, command, env):
        self.name, self.rows = name, []
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended early with status {self.process.wait()}")
        return json.loads(line)

    def step(self):
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    shared = os.environ.get("AZULEJO_SHARED", os.path.join(ROOT, "..", "shared"))
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cases", default="padded,full")
    parser.add_argument("--dtypes", default="bf16,f32")
    parser.add_argument("--ours", default="bf16")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", default=os.path.join(ROOT, "third_party", "minilm"))
    parser.add_argument("--train", default=os.path.join(shared, "data", "squad", "train-v1.1-part.json"))
    parser.add_argument("--binary", required=True, help="the compiled bench `step` of azulejo-bert")
    args = parser.parse_args()

    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    tcmalloc = sorted(glob.glob("/usr/lib/*/libtcmalloc_minimal.so.4"))
    torch_env = dict(env, LD_PRELOAD=tcmalloc[0]) if tcmalloc else env
    common = ["--model", args.model, "--train", args.train, "--batch", str(args.batch), "--threads", str(args.threads)]
    for case in args.cases.split(","):
        engines = [Engine("azulejo", [args.binary, "--serve", "--dtype", args.ours, "--case", case, *common], env)]
        for dtype in args.dtypes.split(","):
            script = os.path.join(HERE, "bench_torch.py")
            engines.append(Engine(f"torch-{dtype}", [sys.executable, script, "--dtype", dtype, "--case", case, *common], torch_env))
        if len({e.about["features"] for e in engines}) != 1:
            sys.exit(f"the engines disagree on the number of features: {[(e.name, e.about) for e in engines]}")
        for counted in [False] + [True] * args.rounds:
            tokens = set()
            for engine in engines:
                row = engine.step()
                tokens.add(row["tokens"])
                if counted:
                    engine.rows.append(row)
            if len(tokens) != 1:
                sys.exit(f"the engines disagree on the tokens of a batch: {tokens}")
        for engine in engines:
            engine.close()
        seconds = {e.name: statistics.median(r["seconds"] for r in e.rows) for e in engines}
        best = min((name for name in seconds if name != "azulejo"), key=seconds.get)
        for engine in engines:
            times = [r["seconds"] for r in engine.rows]
            record = {
                "case": case,
                "engine": engine.name,
                "seconds": round(seconds[engine.name], 4),
                "min": round(min(times), 4),
                "max": round(max(times), 4),
                "samples_per_second": round(args.batch / seconds[engine.name], 3),
                "rounds": len(times),
                "last_loss": round(engine.rows[-1]["loss"], 4),
            }
            if engine.name == "azulejo":
                record["kernel"] = engine.about.get("kernel")
                record["ratio_to_best_torch"] = round(seconds[best] / seconds["azulejo"], 3)
                record["best_torch"] = best
            if args.json:
                print(json.dumps(record), flush=True)
            else:
                print("  ".join(f"{k} {v}" for k, v in record.items()), flush=True)


if __name__ == "__main__":
    main()
