"""Makes bert/tests/fixtures/pytorch_model.bin: a tiny BERT as `torch.save` writes it. Needs torch and transformers.

Value i of a tensor is ((7 * len(name) + i) % 200) / 8 - 12, which f16 and bf16 hold exactly. Some tensors are of other
types, views of a larger storage, or parameters; one is of integers and one has no use.
"""

from pathlib import Path

import torch
from transformers import BertConfig, BertForQuestionAnswering

OUT = Path(__file__).parent.parent / "tests" / "fixtures" / "pytorch_model.bin"
config = BertConfig(vocab_size=5, hidden_size=4, num_hidden_layers=1, num_attention_heads=2, intermediate_size=6,
                    max_position_embeddings=8)
state = BertForQuestionAnswering(config).state_dict()
for name, tensor in state.items():
    if tensor.is_floating_point():
        values = ((7 * len(name) + torch.arange(tensor.numel())) % 200) / 8 - 12
        state[name] = values.reshape(tensor.shape).contiguous()
key, query = "bert.encoder.layer.0.attention.self.key.weight", "bert.encoder.layer.0.attention.self.query.weight"
both = torch.cat([state[key], state[query]])
state[key], state[query] = both[:4], both[4:]
state["bert.encoder.layer.0.intermediate.dense.weight"] = state["bert.encoder.layer.0.intermediate.dense.weight"].half()
state["bert.encoder.layer.0.output.dense.weight"] = state["bert.encoder.layer.0.output.dense.weight"].bfloat16()
state["qa_outputs.weight"] = torch.nn.Parameter(state["qa_outputs.weight"])
state["bert.embeddings.position_ids"] = torch.arange(8).unsqueeze(0)
state["cls.seq_relationship.bias"] = torch.zeros(2)
torch.save(state, OUT)
