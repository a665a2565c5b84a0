"""Makes tests/fixtures/*.safetensors: what PyTorch and transformers compute for tiny models.

Run by hand, from the crate's folder:  python reference/model_fixtures.py
Made with torch 2.8.0 and transformers 4.55.4. The tests need only the files.

Everything is computed in double precision from weights that are exact in single precision, so that a test measures
the error of the code under test and not that of the reference. The models have odd sizes on purpose: width 48, three
heads of 16, a feed-forward width of 100 that no tile divides, sequences from 1 to 37 tokens.

A file holds (all lengths are sums over sequences without padding):
  w.NAME, g.NAME   weights, and the gradient of the loss of batch 0 (f32)
  B.ids, B.token_types, B.lengths, B.starts, B.ends      for the batches B = 0, 1, 2 (i32)
  0.start_logits, 0.end_logits, 0.loss                   (f64), or 0.targets, 0.loss for masked language models
  curve.KIND.loss, curve.KIND.norm   20 optimiser steps over the batches in turn, KIND = torch, hf (f64)
and the metadata entry "config" (config.json) and "recipe" (the optimiser's settings).
"""

import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForQuestionAnswering,
)

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures"
VOCABULARY, HIDDEN, HEADS, INTERMEDIATE, POSITIONS = 97, 48, 3, 100, 40
LENGTHS = [[37, 1, 5, 16, 17, 32, 33, 2], [9, 30, 3], [24, 25, 37, 12, 7]]
RECIPE = dict(learning_rate=1e-3, warmup=4, steps=20, weight_decay=0.01, beta1=0.9, beta2=0.999, eps=1e-8, clip=1.0)


def batches(generator):
    """Sequences with ids anywhere in the vocabulary (the padding id 0 too), in padded form with their lengths."""
    out = []
    for number, lengths in enumerate(LENGTHS):
        longest = max(lengths)
        ids = torch.zeros(len(lengths), longest, dtype=torch.long)
        types = torch.zeros_like(ids)
        mask = torch.zeros_like(ids)
        starts, ends = [], []
        for row, n in enumerate(lengths):
            ids[row, :n] = torch.randint(1, VOCABULARY, (n,), generator=generator)
            types[row, n // 3 : n] = 1
            mask[row, :n] = 1
            first, last = sorted(torch.randint(0, n, (2,), generator=generator).tolist())
            starts.append(first)
            ends.append(last)
        if number == 0:
            ids[0, 7] = 0  # a real token with the padding id: its row receives no gradient
            starts[3] = 1000  # outside the sequence: clamped and ignored
        out.append(
            dict(ids=ids, types=types, mask=mask, lengths=lengths, starts=torch.tensor(starts), ends=torch.tensor(ends))
        )
    return out


def packed(value, batch):
    """(rows, longest) without its padding."""
    return torch.cat([value[row, :n] for row, n in enumerate(batch["lengths"])]).contiguous()


def loss_of(model, batch, labels):
    inputs = dict(input_ids=batch["ids"], attention_mask=batch["mask"])
    if model.config.model_type == "bert":
        inputs["token_type_ids"] = batch["types"]
    if labels is not None:
        return model(**inputs, labels=labels)
    # The model's own loss lets padding tokens take part in the softmax over a row, so that it depends on how far the
    # row was padded. Here, as in the code under test, the softmax is over the sequence; the rest is the model's rule:
    # labels beyond the row are clamped to its length and ignored, and the loss is the mean of two cross-entropies.
    result = model(**inputs)
    longest = batch["ids"].shape[1]
    losses = []
    for logits, target in [(result.start_logits, batch["starts"]), (result.end_logits, batch["ends"])]:
        logits = logits.masked_fill(batch["mask"] == 0, float("-inf"))
        losses.append(torch.nn.functional.cross_entropy(logits, target.clamp(0, longest), ignore_index=longest))
    result.loss = (losses[0] + losses[1]) / 2
    return result


def decays(name):
    return not name.endswith("bias") and "LayerNorm" not in name and "layer_norm" not in name


class AdamWHf:
    """The optimiser that transformers 4.24 called adamw_hf: eps before bias correction, decay after the update."""

    def __init__(self, named, recipe):
        self.named, self.r, self.t = list(named), recipe, 0
        self.m = {n: torch.zeros_like(p) for n, p in self.named}
        self.v = {n: torch.zeros_like(p) for n, p in self.named}

    @torch.no_grad()
    def step(self, lr):
        self.t += 1
        b1, b2 = self.r["beta1"], self.r["beta2"]
        size = lr * (1 - b2**self.t) ** 0.5 / (1 - b1**self.t)
        for name, p in self.named:
            m, v = self.m[name], self.v[name]
            m.mul_(b1).add_(p.grad, alpha=1 - b1)
            v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
            p.addcdiv_(m, v.sqrt() + self.r["eps"], value=-size)
            if decays(name):
                p.add_(p, alpha=-lr * self.r["weight_decay"])


def curve(model, weights, data, kind):
    model.load_state_dict(weights)
    named, r = list(model.named_parameters()), RECIPE
    if kind == "torch":
        groups = [
            dict(params=[p for n, p in named if decays(n)], weight_decay=r["weight_decay"]),
            dict(params=[p for n, p in named if not decays(n)], weight_decay=0.0),
        ]
        torch_adam = torch.optim.AdamW(groups, lr=0.0, betas=(r["beta1"], r["beta2"]), eps=r["eps"])
    else:
        hf_adam = AdamWHf(named, r)
    losses, norms = [], []
    for k in range(r["steps"]):
        w, total = r["warmup"], r["steps"]
        factor = k / max(1, w) if k < w else max(0.0, (total - k) / max(1, total - w))
        lr = r["learning_rate"] * factor
        model.zero_grad()
        loss = loss_of(model, data[k % len(data)], None).loss
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), r["clip"]).item())
        losses.append(loss.item())
        if kind == "torch":
            for group in torch_adam.param_groups:
                group["lr"] = lr
            torch_adam.step()
        else:
            hf_adam.step(lr)
    return torch.tensor(losses, dtype=torch.float64), torch.tensor(norms, dtype=torch.float64)


def spread_weights(model, generator):
    """Weights far from the special values of a fresh model: no bias is 0, no LayerNorm scale is 1."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            if p.dim() == 1:
                base = 1.0 if name.endswith("weight") else 0.0
                p.copy_((base + 0.2 * noise).float().double())
            else:
                p.copy_((noise * (0.5 if "embeddings" in name else 1.5 / p.shape[1] ** 0.5)).float().double())


def make(file, model, config, data, generator, masked):
    model = model.double().eval()
    spread_weights(model, generator)
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}
    out = {f"w.{n}": p.float() for n, p in weights.items()}
    for number, batch in enumerate(data):
        out[f"{number}.ids"] = packed(batch["ids"], batch).int()
        out[f"{number}.token_types"] = packed(batch["types"], batch).int()
        out[f"{number}.lengths"] = torch.tensor(batch["lengths"], dtype=torch.int32)
        out[f"{number}.starts"] = batch["starts"].int()
        out[f"{number}.ends"] = batch["ends"].int()
    labels = None
    if masked:
        chosen = (torch.rand(data[0]["ids"].shape, generator=generator) < 0.2) & (data[0]["mask"] == 1)
        labels = torch.where(chosen, torch.randint(1, VOCABULARY, chosen.shape, generator=generator), -100)
        out["0.targets"] = packed(labels, data[0]).int()
    result = loss_of(model, data[0], labels)
    result.loss.backward()
    out["0.loss"] = result.loss.detach().reshape(1)
    for n, p in model.named_parameters():
        out[f"g.{n}"] = p.grad.float()
    if not masked:
        out["0.start_logits"] = packed(result.start_logits.detach(), data[0])
        out["0.end_logits"] = packed(result.end_logits.detach(), data[0])
        for kind in ["torch", "hf"]:
            out[f"curve.{kind}.loss"], out[f"curve.{kind}.norm"] = curve(model, weights, data, kind)
    metadata = {"config": json.dumps(config.to_dict()), "recipe": json.dumps(RECIPE)}
    path = OUT / file
    save_file({k: v.contiguous() for k, v in out.items()}, path, metadata=metadata)
    print(path.name, path.stat().st_size, "bytes, loss", result.loss.item())


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(20)
    data = batches(generator)
    common = dict(vocab_size=VOCABULARY, max_position_embeddings=POSITIONS, attn_implementation="eager")

    def bert(layers):
        return BertConfig(
            hidden_size=HIDDEN, num_hidden_layers=layers, num_attention_heads=HEADS, intermediate_size=INTERMEDIATE,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **common,
        )

    def distil(layers):
        return DistilBertConfig(
            dim=HIDDEN, n_layers=layers, n_heads=HEADS, hidden_dim=INTERMEDIATE, dropout=0.0, attention_dropout=0.0,
            qa_dropout=0.0, **common,
        )

    OUT.mkdir(parents=True, exist_ok=True)
    config = bert(2)
    make("bert_qa.safetensors", BertForQuestionAnswering(config), config, data, generator, False)
    config = distil(3)
    make("distilbert_qa.safetensors", DistilBertForQuestionAnswering(config), config, data, generator, False)
    config = bert(1)
    make("bert_mlm.safetensors", BertForMaskedLM(config), config, data, generator, True)
    config = distil(1)
    make("distilbert_mlm.safetensors", DistilBertForMaskedLM(config), config, data, generator, True)


main()
