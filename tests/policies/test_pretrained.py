"""GGUF to parameters: a small random model written with gguf's own writer, and a plain NumPy Llama to compare with."""

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import pre_tokenizers

from agentjax.policies.base import trunk_layout
from agentjax.policies.pretrained import load_gguf
from agentjax.policies.transformer import transformer

LAYERS, WIDTH, HEADS, KV, FFN, BASE, EPS = 2, 64, 4, 2, 96, 1000.0, 1e-5
HEAD = WIDTH // HEADS
TOKENS = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "he"]
VOCAB = len(TOKENS)


def weights(tied: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32) * 0.2  # noqa: E731
    out = {"token_embd.weight": normal(VOCAB, WIDTH), "output_norm.weight": 1 + normal(WIDTH)}
    for i in range(LAYERS):
        shapes = {
            "attn_q": (WIDTH, WIDTH), "attn_k": (KV * HEAD, WIDTH), "attn_v": (KV * HEAD, WIDTH),
            "attn_output": (WIDTH, WIDTH), "ffn_gate": (FFN, WIDTH), "ffn_up": (FFN, WIDTH), "ffn_down": (WIDTH, FFN),
        }  # fmt: skip
        out |= {f"blk.{i}.{name}.weight": normal(*shape) for name, shape in shapes.items()}
        out |= {f"blk.{i}.{name}.weight": 1 + normal(WIDTH) for name in ("attn_norm", "ffn_norm")}
    return out if tied else out | {"output.weight": normal(VOCAB, WIDTH)}


def write(path, tensors, *, arch="llama", quantised=(), heads=HEADS, eps=True):
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(heads)
    writer.add_head_count_kv(KV)
    writer.add_rope_freq_base(BASE)
    if eps:
        writer.add_layer_norm_rms_eps(EPS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] + [1] * (VOCAB - 1))
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    for name, weight in tensors.items():
        if name in quantised:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def reference(w: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """Logits [n, V] by the file format's own rules: rotary pairs are neighbours (2j, 2j + 1)."""

    def norm(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * scale

    def rope(x):  # [n, heads, HEAD], as complex numbers turned by angle position * rate_j
        pairs = x[..., 0::2] + 1j * x[..., 1::2]
        rate = BASE ** (-np.arange(0, HEAD, 2) / HEAD)
        turned = pairs * np.exp(1j * np.arange(len(ids))[:, None, None] * rate)
        out = np.empty_like(x)
        out[..., 0::2], out[..., 1::2] = turned.real, turned.imag
        return out

    w = {name: weight.astype(np.float64) for name, weight in w.items()}
    n = len(ids)
    x = w["token_embd.weight"][ids]
    for i in range(LAYERS):
        get = lambda name, i=i: w[f"blk.{i}.{name}.weight"]  # noqa: E731
        h = norm(x, get("attn_norm"))
        q = rope((h @ get("attn_q").T).reshape(n, HEADS, HEAD))
        k = rope((h @ get("attn_k").T).reshape(n, KV, HEAD))
        v = (h @ get("attn_v").T).reshape(n, KV, HEAD)
        mixed = np.zeros((n, HEADS, HEAD))
        for head in range(HEADS):
            for t in range(n):
                score = q[t, head] @ k[: t + 1, head // (HEADS // KV)].T / np.sqrt(HEAD)
                p = np.exp(score - score.max())
                mixed[t, head] = p / p.sum() @ v[: t + 1, head // (HEADS // KV)]
        x = x + mixed.reshape(n, WIDTH) @ get("attn_output").T
        h = norm(x, get("ffn_norm"))
        gate = h @ get("ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ get("ffn_up").T)) @ get("ffn_down").T
    return norm(x, w["output_norm.weight"]) @ w.get("output.weight", w["token_embd.weight"]).T


@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_a_plain_llama_with_neighbouring_rotary_pairs(tmp_path, tied):
    w = weights(tied)
    config, params, _ = load_gguf(write(tmp_path / "m.gguf", w))
    assert (config.layers, config.heads, config.kv_heads, config.ffn) == (LAYERS, HEADS, KV, FFN)
    assert (config.vocab, config.rope_base, config.tie_embeddings) == (VOCAB, BASE, tied)
    policy = transformer(config)
    shapes = jax.eval_shape(policy.init, jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
    ids = [5, 200, 17, 17, 0, 99, 256, 3]
    tokens = jnp.asarray([ids], jnp.int32)
    hidden, _ = policy.apply(params, tokens, trunk_layout(jnp.ones((1, len(ids)), bool)))
    np.testing.assert_allclose(policy.logits(params, hidden)[0], reference(w, ids), atol=2e-4)


def test_quantised_tensors_are_expanded(tmp_path):
    w = weights(True)
    names = [name for name in w if "ffn" in name and "norm" not in name] + ["blk.0.attn_q.weight"]
    _, params, _ = load_gguf(write(tmp_path / "m.gguf", w, quantised=names))
    up = params["blocks"]["01"]["up"]["kernel"]
    step = np.abs(w["blk.1.ffn_up.weight"]).reshape(-1, 32).max(1) / 127  # Q8_0: 8 bits per block of 32
    error = np.abs(np.asarray(up).T - w["blk.1.ffn_up.weight"]).reshape(-1, 32)
    assert error.max() > 0
    # half a step of rounding, and the step itself is stored in float16: up to 127 steps times 2^-11
    assert (error <= (0.5 + 127 * 2.0**-11) * step[:, None]).all()


def test_tokenizer_comes_along(tmp_path):
    _, _, tok = load_gguf(write(tmp_path / "m.gguf", weights(True)))
    assert tok.encode("he") == [VOCAB - 1]
    assert tok.chat([{"role": "user", "content": "<|end|>he"}]) == [0, VOCAB - 1]


def test_missing_file():
    with pytest.raises(FileNotFoundError, match=r"nowhere\.gguf: no such model file"):
        load_gguf("nowhere.gguf")


def test_damaged_files_give_one_line_that_names_them(tmp_path):
    good = write(tmp_path / "good.gguf", weights(True)).read_bytes()
    cases = {
        "empty": b"",
        "text": b"not a model at all\n" * 50,
        "magic": b"X" + good[1:],
        "version": good[:4] + b"\x09" + good[5:],
        "count": good[:8] + b"\xff" * 8 + good[16:],
        "header": good[:20],
        "metadata": good[:3000],
        "half": good[: len(good) // 2],
        "last": good[:-1],
    }
    for name, data in cases.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(data)
        with pytest.raises(ValueError, match=rf"{name}\.gguf: not a GGUF file, or a truncated one") as raised:
            load_gguf(path)
        assert "\n" not in str(raised.value)


def test_foreign_models_are_refused_by_name(tmp_path):
    w = weights(True)

    def refused(match, tensors=w, **changes):
        with pytest.raises(ValueError, match=rf"m\.gguf: .*{match}"):
            load_gguf(write(tmp_path / "m.gguf", tensors, **changes))

    refused("architecture is 'gpt2'", arch="gpt2")
    refused("metadata lacks llama.attention.layer_norm_rms_epsilon", eps=False)
    refused("width 64 must be heads 3", heads=3)
    refused("tensor blk.1.ffn_up.weight is missing", {k: v for k, v in w.items() if k != "blk.1.ffn_up.weight"})
    refused("does not have: blk.0.attn_q.bias", w | {"blk.0.attn_q.bias": np.zeros(WIDTH, np.float32)})
    refused(
        r"blk.0.attn_k.weight has shape \(64, 64\), expected \(32, 64\)",
        w | {"blk.0.attn_k.weight": np.zeros((64, 64), np.float32)},
    )
    refused(
        "output_norm.weight holds values that are not finite",
        w | {"output_norm.weight": np.full(WIDTH, np.nan, np.float32)},
    )
    refused("token_embd.weight has shape", w | {"token_embd.weight": w["token_embd.weight"][:-1]})
