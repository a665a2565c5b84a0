"""Makes examples/tests/fixtures/training_arguments.json: names and defaults of TrainingArguments in some versions of transformers.

Run by hand with the versions' wheels, unpacked:

    python examples/reference/training_arguments.py 4.24.0=DIR 4.46.3=DIR

where DIR holds transformers/training_args.py. The file is read, not run: a default that is no literal is left out.
"""

import ast
import json
import sys
from pathlib import Path

OUT = Path(__file__).parent.parent / "tests" / "fixtures" / "training_arguments.json"


def defaults(path):
    tree = ast.parse(path.read_text())
    arguments = next(c for c in tree.body if isinstance(c, ast.ClassDef) and c.name == "TrainingArguments")
    out = {}
    for field in arguments.body:
        if not isinstance(field, ast.AnnAssign):
            continue
        value = None
        if isinstance(field.value, ast.Call):
            given = {k.arg: k.value for k in field.value.keywords}
            if isinstance(given.get("default"), ast.Constant):
                value = given["default"].value
            elif "default_factory" in given:
                value = {"list": [], "dict": {}}[ast.unparse(given["default_factory"])]
        out[field.target.id] = value
    return out


versions = dict(a.split("=") for a in sys.argv[1:])
result = {v: defaults(Path(d) / "transformers" / "training_args.py") for v, d in versions.items()}
OUT.write_text(json.dumps(result, indent=1) + "\n")
