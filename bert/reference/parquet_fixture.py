"""Makes bert/tests/fixtures/squad.parquet: three questions in the layout of the Hub's data set `squad`. Needs pyarrow."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

OUT = Path(__file__).parent.parent / "tests" / "fixtures" / "squad.parquet"
CRANE = "The blue crane lifts nine tons."
ROWS = [
    ("a1", "Harbour", CRANE, "How much does it lift?", {"text": ["nine tons", "nine"], "answer_start": [21, 21]}),
    ("a2", "Harbour", CRANE, "Which colour is it?", {"text": ["blue"], "answer_start": [4]}),
    ("a3", "Compass", "Zoë's 🧭 points north.", "Where is it?", {"text": [], "answer_start": []}),
]
answers = pa.struct([("text", pa.list_(pa.string())), ("answer_start", pa.list_(pa.int32()))])
schema = pa.schema([(n, pa.string()) for n in ("id", "title", "context", "question")] + [("answers", answers)])
columns = [pa.array(list(column), type=field.type) for column, field in zip(zip(*ROWS), schema)]
pq.write_table(pa.table(columns, schema=schema), OUT, compression="snappy")
