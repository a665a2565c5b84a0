"""Makes bert/tests/fixtures/data.json: what transformers' tokenizer and run_qa.py's post-processing make of a few questions.

Run by hand, in an environment with transformers (4.55 was used) and numpy; utils_qa.py is the file of that name in
transformers' examples/pytorch/question-answering, which pip does not install:

    python bert/reference/data_fixtures.py PATH/TO/utils_qa.py

All text is ours. Logits are small multiples of 1/8 and differ within a row, so that every order of `numpy.argsort` is defined.
"""

import importlib.util
import json
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
from transformers import BertTokenizerFast

OUT = Path(__file__).parent.parent / "tests" / "fixtures" / "data.json"
WINDOWS = [(384, 128), (56, 12), (36, 3)]

PASSAGES = [
    (
        "The harbour of Lindvik has three cranes. The blue crane, built in 1904, lifts nine tons; the red one lifts 12.5 tons. "
        "Since the flood of 1953 the white crane has stood still, and children climb it on Sundays.",
        [
            ("How much does the blue crane lift?", "nine tons"),
            ("  When was the blue crane built?", "1904"),
            ("Who climbs the white crane?", "children"),
            ("Where are the three cranes?", "Lindvik"),
            ("On which day do children climb?", "Sundays"),
            ("What is the last sign?", "."),
        ],
    ),
    (
        "Zoë's café in Malmö sells crème brûlée for 4 € — naïve tourists pay 6 €. Her brother Søren bakes 37 loaves a day.",
        [
            ("Who bakes the loaves?", "Søren"),
            ("What do naïve tourists pay?", "6 €"),
            ("\u00a0\u001cWhose café is it?", "Zoë"),
            ("What does it sell?", "crème brûlée"),
        ],
    ),
    (
        "Decomposed: cafe\u0301 and nai\u0308ve. Emoji 😀 is 42, 🧭🧭 is 7. 東京 has 23 wards [MASK] and a tower.",
        [
            ("What is 42?", "😀"),
            ("Which place is decomposed?", "cafe\u0301"),
            ("How many wards has 東京?", "23"),
            ("What [SEP] has a tower?", "東京"),
        ],
    ),
    ("unbreakable", [("What is it?", "break"), ("Is it?", "unbreakable")]),
    ("", [("What is in an empty passage?", None)]),
    (" \n\t", [("And in a blank one?", None)]),
    (
        "tic tac toe tic tac toe tic tac toe tic tac toe tic tac toe tic tac toe tic tac toe tic tac toe tic tac toe tic tac toe",
        [("Which game?", "tic tac toe"), ("Is there no answer?", None)],
    ),
]
WORDS = (
    "the of a in is has and crane blue red white three nine tons lift ##s how much does who what where when which day on 1904 "
    "children cafe naive sells for break ##break un ##un ##able tic tac ##tac toe 23 42 place tower"
).split()


def vocabulary():
    """Special tokens, a few words, and every character that occurs, so that only the emoji are unknown."""
    text = "".join(c + "".join(q + (a or "") for q, a in qs) for c, qs in PASSAGES)
    chars = sorted({c for c in text + text.lower() if c.isalnum() or c in ".,;:?'€—[]"})
    plain = sorted({c for c in "eoiu"} - set(chars))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return list(dict.fromkeys(special + WORDS + chars + plain + ["##" + c for c in chars + plain]))


def label(offsets, sequence, start_char, end_char):
    """Labels by the rules of run_qa.py, on a row that may be longer than its last context token."""
    context = [i for i, s in enumerate(sequence) if s == 1]
    if not context or not (offsets[context[0]][0] <= start_char and offsets[context[-1]][1] >= end_char):
        return 0, 0
    first, last = context[0], context[-1]
    while first < len(offsets) and offsets[first][0] <= start_char:
        first += 1
    while offsets[last][1] >= end_char:
        last -= 1
    return first - 1, last + 1


def features(tokenizer, rows, max_length, stride):
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
    made = []
    for i, ids in enumerate(encoded["input_ids"]):
        row = rows[encoded["overflow_to_sample_mapping"][i]]
        sequence, offsets = encoded.sequence_ids(i), encoded["offset_mapping"][i]
        labels = (0, 0)
        if row["answers"]["text"]:
            begin = row["answers"]["answer_start"][0]
            labels = label(offsets, sequence, begin, begin + len(row["answers"]["text"][0]))
        made.append(
            {
                "example": encoded["overflow_to_sample_mapping"][i],
                "ids": ids,
                "types": encoded["token_type_ids"][i],
                "offsets": [list(o) if s == 1 else None for o, s in zip(offsets, sequence)],
                "labels": labels,
            }
        )
    return made


def main():
    spec = importlib.util.spec_from_file_location("utils_qa", sys.argv[1])
    utils_qa = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(utils_qa)

    rows = []
    for context, questions in PASSAGES:
        for question, answer in questions:
            answers = {"text": [answer], "answer_start": [context.index(answer)]} if answer else {"text": [], "answer_start": []}
            rows.append({"id": f"q{len(rows)}", "context": context, "question": question, "answers": answers})
    vocab = vocabulary()

    fixture = {"vocab": vocab, "data": rows, "sets": [], "answers": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.txt"
        path.write_text("\n".join(vocab) + "\n", encoding="utf-8")
        for lower_case in (True, False):
            tokenizer = BertTokenizerFast(str(path), do_lower_case=lower_case)
            for max_length, stride in WINDOWS:
                made = features(tokenizer, rows, max_length, stride)
                case = {"lower_case": lower_case, "max_length": max_length, "stride": stride, "features": made}
                fixture["sets"].append(case)

    # Post-processing, over the features of the second set, in rows padded with -100 as the trainer pads them.
    made = fixture["sets"][1]["features"]
    random.seed(20)
    longest = max(len(f["ids"]) for f in made)
    logits = []
    for _ in range(2):
        rows_of_logits = []
        for f in made:
            values = random.sample(range(-80, 80), len(f["ids"]))
            if f["example"] % 5 == 0:  # the first token is the best or near it
                values[0] = 100 - f["example"]
            rows_of_logits.append(values)
        logits.append(rows_of_logits)
    fixture["logits"] = logits
    padded = tuple(
        np.array([[v / 8 for v in r] + [-100.0] * (longest - len(r)) for r in rows_of_logits], dtype=np.float32)
        for rows_of_logits in logits
    )
    for f, p in zip(made, padded[0]):
        assert len(set(p[: len(f["ids"])])) == len(f["ids"])
    examples = Examples(rows)
    described = [{"example_id": rows[f["example"]]["id"], "offset_mapping": f["offsets"]} for f in made]
    for n_best, max_answer_length, threshold in [(20, 30, None), (3, 4, None), (20, 30, 0.0), (4, 6, 2.5)]:
        with tempfile.TemporaryDirectory() as folder:
            utils_qa.postprocess_qa_predictions(
                examples,
                described,
                padded,
                version_2_with_negative=threshold is not None,
                n_best_size=n_best,
                max_answer_length=max_answer_length,
                null_score_diff_threshold=threshold or 0.0,
                output_dir=folder,
            )
            case = {"n_best": n_best, "max_answer_length": max_answer_length, "threshold": threshold}
            for name in ("predictions", "null_odds") + (("nbest_predictions",) if n_best < 20 else ()):
                file = Path(folder) / f"{name}.json"
                if file.exists():
                    case[name] = file.read_text()
            fixture["answers"].append(case)
    OUT.write_text(json.dumps(fixture, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(OUT, OUT.stat().st_size, "bytes;", [len(s["features"]) for s in fixture["sets"]], "features")


class Examples(list):
    """A list of rows that also answers to a column's name."""

    def __getitem__(self, key):
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


main()
