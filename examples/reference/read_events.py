"""Reads the event files below a folder with TensorBoard's own reader and prints them as JSON: {tag: [[step, value], ...]}.

    pip install tensorboard
    python examples/reference/read_events.py OUTPUT_DIR/runs
"""

import json
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

out = {}
for folder in sorted({p.parent for p in Path(sys.argv[1]).rglob("events.out.tfevents.*")}):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    for tag in tags["scalars"]:
        out.setdefault(tag, []).extend([e.step, e.value] for e in events.Scalars(tag))
    for tag in tags["tensors"]:
        out[tag] = [[e.step, e.tensor_proto.string_val[0].decode()] for e in events.Tensors(tag)]
print(json.dumps(out, indent=1))
