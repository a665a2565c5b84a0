"""Makes bert/tests/fixtures/dev300.json: what transformers and run_qa.py make of 300 questions each of SQuAD 1.1 and 2.0.

Run by hand, in an environment with transformers (4.55 was used) and numpy; utils_qa.py is the file of that name in
transformers' examples/pytorch/question-answering, which pip does not install:

    python bert/reference/dev300_fixtures.py utils_qa.py MINILM_FOLDER dev-v1.1-small.json dev-v2.0-small.json

The data are not ours to pass on, so the fixture holds checksums only: of each question's windows with their labels, and of
its answers from random logits.
"""

import importlib.util
import json
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

OUT = Path(__file__).parent.parent / "tests" / "fixtures" / "dev300.json"
QUESTIONS = 300
MASK = (1 << 64) - 1


def fnv(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return f"{h:016x}"


def logit(which, feature, token):
    """A multiple of 2^-20 between -8 and 8."""
    z = ((which << 40) + (feature << 20) + token + 1) * 0x9E3779B97F4A7C15 & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    z ^= z >> 31
    return ((z >> 40) - (1 << 23)) / (1 << 20)


def label(offsets, sequence, begin, end):
    """Labels by the rules of run_qa.py, on a row without padding."""
    context = [i for i, s in enumerate(sequence) if s == 1]
    if not context or not (offsets[context[0]][0] <= begin and offsets[context[-1]][1] >= end):
        return 0, 0
    first, last = context[0], context[-1]
    while first < len(offsets) and offsets[first][0] <= begin:
        first += 1
    while offsets[last][1] >= end:
        last -= 1
    return first - 1, last + 1


def read(path):
    rows = []
    for article in json.loads(Path(path).read_text())["data"]:
        for paragraph in article["paragraphs"]:
            for q in paragraph["qas"]:
                answer = q["answers"][0] if q["answers"] else None
                rows.append({"id": q["id"], "context": paragraph["context"], "question": q["question"], "answer": answer})
    return rows[:: max(1, len(rows) // QUESTIONS)][:QUESTIONS]


def bits(x):
    return struct.pack(">f", x).hex()


class Examples(list):
    def __getitem__(self, key):
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


def make(utils_qa, tokenizer, rows, version_2, max_length, stride):
    encoded = tokenizer(
        [row["question"].lstrip() for row in rows],
        [row["context"] for row in rows],
        truncation="only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding=False,
    )
    texts, described = [""] * len(rows), []
    for i, ids in enumerate(encoded["input_ids"]):
        which = encoded["overflow_to_sample_mapping"][i]
        sequence, offsets = encoded.sequence_ids(i), encoded["offset_mapping"][i]
        answer = rows[which]["answer"]
        begin = answer["answer_start"] if answer else 0
        labels = label(offsets, sequence, begin, begin + len(answer["text"])) if answer else (0, 0)
        places = [f"{o[0]}-{o[1]}" if s == 1 else "_" for o, s in zip(offsets, sequence)]
        types = encoded["token_type_ids"][i]
        texts[which] += "|".join(",".join(map(str, part)) for part in (ids, types, places, labels)) + "\n"
        offsets = [tuple(o) if s == 1 else None for o, s in zip(offsets, sequence)]
        described.append({"example_id": rows[which]["id"], "offset_mapping": offsets})
    longest = max(map(len, encoded["input_ids"]))
    logits = tuple(
        np.array(
            [[logit(w, f, t) for t in range(len(ids))] + [-100.0] * (longest - len(ids)) for f, ids in enumerate(encoded["input_ids"])],
            dtype=np.float32,
        )
        for w in range(2)
    )
    for rows_of_logits in logits:
        for row in rows_of_logits:
            best = np.sort(row)[-21:]
            assert len(set(best)) == 21, "equal logits, which numpy sorts in no defined order"
    with tempfile.TemporaryDirectory() as folder:
        utils_qa.postprocess_qa_predictions(
            Examples(rows), described, logits, version_2_with_negative=version_2, output_dir=folder
        )
        read_back = lambda name: json.loads((Path(folder) / name).read_text())
        predictions, nbest = read_back("predictions.json"), read_back("nbest_predictions.json")
        odds = read_back("null_odds.json") if version_2 else {}
    answers = []
    for row in rows:
        lines = [predictions[row["id"]]]
        lines += [f'{e["text"]}\t{bits(e["start_logit"])}\t{bits(e["end_logit"])}' for e in nbest[row["id"]]]
        lines += [bits(odds[row["id"]])] if version_2 else []
        answers.append("\n".join(lines))
    return {
        "version_2": version_2,
        "max_length": max_length,
        "stride": stride,
        "features": len(described),
        "windows": [fnv(t) for t in texts],
        "answers": [fnv(t) for t in answers],
    }


def main():
    spec = importlib.util.spec_from_file_location("utils_qa", sys.argv[1])
    utils_qa = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(utils_qa)
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[2], use_fast=True)
    cases = []
    for path, version_2 in ((sys.argv[3], False), (sys.argv[4], True)):
        rows = read(path)
        for max_length, stride in ((384, 128), (96, 32)):
            case = make(utils_qa, tokenizer, rows, version_2, max_length, stride)
            cases.append({"file": Path(path).name, "ids": [row["id"] for row in rows], **case})
    OUT.write_text(json.dumps(cases, indent=0) + "\n")
    print(OUT, OUT.stat().st_size, [(c["file"], c["features"]) for c in cases])


main()
