"""PyTorch's side of bench_vs_torch.py: a process that runs one training step of question answering for each line it reads.

  python bench_torch.py --model DIR --train FILE --dtype bf16|f32|f16 --case padded|longest|full [--batch 32] [--threads 2]

Prints {"ready": ...} once, then for every input line one JSON object with the seconds of one step (zero_grad, forward,
backward, clipping at 1.0, AdamW) over the next batch. The features, their order and the model are those of run_qa.py:
torch.randperm seeded with --seed, padding to --max-len ("padded"), to the batch's longest ("longest"), or only features
that are exactly --max-len tokens long ("full").
"""
import argparse
import json
import sys
import time

import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer


def questions(path):
    with open(path, encoding="utf-8") as file:
        articles = json.load(file)["data"]
    return [
        (qa["question"].lstrip(), paragraph["context"], qa["answers"][0])
        for article in articles
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]


def features(tokenizer, rows, max_len, stride):
    encoded = tokenizer(
        [row[0] for row in rows],
        [row[1] for row in rows],
        truncation="only_second",
        max_length=max_len,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    result = []
    for i, ids in enumerate(encoded["input_ids"]):
        answer = rows[encoded["overflow_to_sample_mapping"][i]][2]
        first, last = answer["answer_start"], answer["answer_start"] + len(answer["text"])
        inside = [
            k
            for k, (part, (a, b)) in enumerate(zip(encoded.sequence_ids(i), encoded["offset_mapping"][i]))
            if part == 1 and b > first and a < last
        ]
        start, end = (inside[0], inside[-1]) if inside else (0, 0)
        result.append((ids, encoded["token_type_ids"][i], start, end))
    return result


def batch_of(rows, width):
    shape = (len(rows), width)
    ids, types, mask = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
    for r, (tokens, kinds, _, _) in enumerate(rows):
        ids[r, : len(tokens)] = torch.tensor(tokens)
        types[r, : len(tokens)] = torch.tensor(kinds)
        mask[r, : len(tokens)] = 1
    return {
        "input_ids": ids,
        "token_type_ids": types,
        "attention_mask": mask,
        "start_positions": torch.tensor([row[2] for row in rows]),
        "end_positions": torch.tensor([row[3] for row in rows]),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--train", required=True)
    parser.add_argument("--dtype", choices=["bf16", "f32", "f16"], default="bf16")
    parser.add_argument("--case", choices=["padded", "longest", "full"], default="padded")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--max-len", type=int, default=384)
    parser.add_argument("--stride", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    rows = features(tokenizer, questions(args.train), args.max_len, args.stride)
    if args.case == "full":
        rows = [row for row in rows if len(row[0]) == args.max_len]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(args.seed)).tolist()
    model = AutoModelForQuestionAnswering.from_pretrained(args.model)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0, fused=True)
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}.get(args.dtype)
    print(json.dumps({"ready": True, "features": len(rows), "torch": torch.__version__}), flush=True)
    cursor = 0
    for _ in sys.stdin:
        chosen = [rows[order[(cursor + i) % len(order)]] for i in range(args.batch)]
        cursor += args.batch
        longest = max(len(row[0]) for row in chosen)
        inputs = batch_of(chosen, longest if args.case == "longest" else args.max_len)
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds = time.perf_counter() - begin
        tokens = sum(len(row[0]) for row in chosen)
        print(json.dumps({"seconds": seconds, "loss": loss.item(), "samples": args.batch, "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main()
