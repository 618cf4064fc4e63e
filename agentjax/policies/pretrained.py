"""Llama-shaped models from GGUF files: sizes, parameters and tokenizer in one read.

Needs the extra `lm` (gguf, tokenizers, jinja2). `make model` fetches SmolLM2-135M-Instruct.
"""

from __future__ import annotations

import pathlib
from typing import Any

import gguf
import jax.numpy as jnp
import numpy as np

from agentjax.policies import tokenizer
from agentjax.policies.transformer import TransformerConfig
from agentjax.types import PyTree

_KERNELS = {  # the file's name: ours
    "attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "o",
    "ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down",
}  # fmt: skip


def load_gguf(path: str | pathlib.Path) -> tuple[TransformerConfig, PyTree, tokenizer.Tokenizer]:
    """Reads a model: `config, params, tok = load_gguf("models/smollm2.gguf"); policy = transformer(config)`.

    Quantised weights are expanded to float32. Query and key rows are reordered from the file's interleaved rotary pairs
    to the half-split pairs of `attention.rotate`, which leaves every score as it was. Any architecture whose metadata
    says `llama` and that has no further tensors (biases, scaled rotary frequencies) is read.

    Raises FileNotFoundError, or ValueError naming the file: not GGUF, truncated, another architecture, tensors missing,
    unexpected or of the wrong shape, weights that are not finite.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such model file; `make model` fetches one")
    try:
        reader = gguf.GGUFReader(path)
    except Exception as error:  # foreign bytes fail inside the reader in many ways
        raise ValueError(f"{path}: not a GGUF file, or a truncated one ({error}); fetch it again") from error
    try:
        metadata = {name: field.contents() for name, field in reader.fields.items()}
        config = _config(metadata, {tensor.name for tensor in reader.tensors})
        tok = tokenizer.from_metadata(metadata)
        if tok.vocab != config.vocab:
            raise ValueError(f"{tok.vocab} tokens for {config.vocab} rows of the embedding")
        return config, _params(config, {tensor.name: tensor for tensor in reader.tensors}), tok
    except (ValueError, TypeError, NotImplementedError) as error:  # the last: a quantisation that gguf cannot expand
        raise ValueError(f"{path}: {error}") from error


def _config(metadata: dict[str, Any], tensors: set[str]) -> TransformerConfig:
    if metadata.get("general.architecture") != "llama":
        raise ValueError(f"architecture is {metadata.get('general.architecture')!r}; only 'llama' is read")
    llama = {key.removeprefix("llama."): value for key, value in metadata.items() if key.startswith("llama.")}
    names = (
        "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    )  # fmt: skip
    missing = [f"llama.{name}" for name in names if name not in llama]
    if missing or "tokenizer.ggml.tokens" not in metadata:
        raise ValueError(f"the metadata lacks {', '.join(missing or ['tokenizer.ggml.tokens'])}")
    if llama.get("rope.scaling.type", "none") != "none":
        raise ValueError(f"rotary scaling {llama['rope.scaling.type']!r} is not supported")
    config = TransformerConfig(
        vocab=int(llama.get("vocab_size", len(metadata["tokenizer.ggml.tokens"]))),
        layers=int(llama["block_count"]),
        width=int(llama["embedding_length"]),
        heads=int(llama["attention.head_count"]),
        kv_heads=int(llama.get("attention.head_count_kv", llama["attention.head_count"])),
        ffn=int(llama["feed_forward_length"]),
        rope_base=float(llama.get("rope.freq_base", 1e4)),
        norm_eps=float(llama["attention.layer_norm_rms_epsilon"]),
        tie_embeddings="output.weight" not in tensors,
    )
    for name in ("rope.dimension_count", "attention.key_length", "attention.value_length"):
        if llama.get(name, config.head) != config.head:
            raise ValueError(f"llama.{name} is {llama[name]}; only width / heads = {config.head} is supported")
    return config


def _params(config: TransformerConfig, tensors: dict[str, gguf.ReaderTensor]) -> PyTree:
    """Takes every tensor of the file exactly once; each is expanded, moved to the device and let go in turn."""
    left = dict(tensors)
    kv = config.kv_heads * config.head
    outputs = {"q": config.width, "k": kv, "v": kv, "o": config.width, "gate": config.ffn, "up": config.ffn}

    def take(name: str, *shape: int) -> np.ndarray:
        if name not in left:
            raise ValueError(f"tensor {name} is missing")
        tensor = left.pop(name)
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if weight.shape != shape:
            raise ValueError(f"tensor {name} has shape {weight.shape}, expected {shape}")
        if not np.isfinite(weight).all():
            raise ValueError(f"tensor {name} holds values that are not finite")
        return weight

    def kernel(name: str, ours: str) -> dict[str, Any]:
        inputs = config.ffn if ours == "down" else config.width
        weight = take(name, outputs.get(ours, config.width), inputs)
        if ours in ("q", "k"):  # rows (pair, member) of each head to (member, pair)
            weight = weight.reshape(-1, config.head // 2, 2, inputs).swapaxes(1, 2).reshape(weight.shape)
        return {"kernel": jnp.asarray(weight.T)}

    def block(i: int) -> PyTree:
        norms = {
            n: {"scale": jnp.asarray(take(f"blk.{i}.{n}.weight", config.width))} for n in ("attn_norm", "ffn_norm")
        }
        return norms | {ours: kernel(f"blk.{i}.{name}.weight", ours) for name, ours in _KERNELS.items()}

    params = {
        "embed": jnp.asarray(take("token_embd.weight", config.vocab, config.width)),
        "blocks": {f"{i:02d}": block(i) for i in range(config.layers)},
        "norm": {"scale": jnp.asarray(take("output_norm.weight", config.width))},
    }
    if not config.tie_embeddings:
        params["head"] = jnp.asarray(take("output.weight", config.vocab, config.width).T)
    if left:
        raise ValueError(f"tensors that this model does not have: {', '.join(sorted(left)[:4])}")
    return params
