"""Makes the peers' numbers that tests/peers compares with. Runs in the peers' environment, without agentjax.

    make test-peers        # or: .venv-peers/bin/python tests/peers/make_fixtures.py [--out tests/peers/fixtures]

transformers on models/smollm2.gguf -> smollm2.json: token ids of a bank of strings, log-probabilities, greedy replies.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib

os.environ["HF_HUB_OFFLINE"] = "1"

MODEL = pathlib.Path(__file__).parents[2] / "models" / "smollm2.gguf"

BANK = [
    "", " ", "  ", "\n", "\n\n\n", "\t\tx\t", " lead", "trail ", "a  b   c    d", "Hello, world!",
    "The quick brown fox jumps over the lazy dog.", "0", "7", "42", "1234567890", "3.14159 and 2,718", "x1y22z333",
    "1e-5", "don't we'll I'm you've he'd it's",
    "UPPER lower CamelCase snake_case kebab-case", "naïve café façade Straße Ærø",
    "Привет, мир", "你好，世界。今天是2024年。", "こんにちは世界", "안녕하세요", "مرحبا بالعالم", "नमस्ते दुनिया", "שלום",
    "🙂🚀👩‍👩‍👧‍👦🏳️‍🌈", "e\u0301 vs \u00e9", "a\u00a0b\u200bc\u2003d", "\ufeffbom", "∑∫√∞≈≠",
    "“quotes” – — … ‹›",
    "def f(x: int) -> int:\n    return x ** 2  # square\n", "if (a != b && c >= 0) { i++; }",
    '{"tool": "search", "k": [1, 2]}',
    "for i in range(10):\n\tprint(f'{i:02d}')\n", "SELECT * FROM t WHERE id = 17;",
    "$ ls -la | grep '\\.py$' > out.txt",
    "<tag attr=\"v\">text</tag>", "https://example.com/a?b=c&d=%20#e", "user@example.com", "C:\\dir\\file.txt",
    "\r\nwindows\r\n",
    "<|im_start|>user\nhi<|im_end|>\n", "<|endoftext|>", "<|im_end|><|im_end|>", "<|not_a_token|>", "a<|im_end|>b",
    "\u0000\u0001",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "antidisestablishmentarianism", "....!!!???", "___---===", " \n \n ",
]  # fmt: skip

TEXTS = [
    "The capital of France is Paris, and the capital of Italy is Rome.",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n",
    "Anna has 12 apples and buys 30 more; she gives 7 away, so 12 + 30 - 7 = 35 apples are left.",
    "Überraschung: 你好 🙂 ¿qué tal?\n\n\t- one\n\t- two",
    "<|im_start|>user\nWrite one line about the sea.<|im_end|>\n<|im_start|>assistant\nThe sea is wide.<|im_end|>\n",
    "It was a bright cold day in April. " * 12,
]

CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "user", "content": "Tom has 7 pens and gets 5 more. How many pens does he have?"}],
    [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Name a colour."},
        {"role": "assistant", "content": "Blue is a colour."},
        {"role": "user", "content": "Name another one, and say where it is seen."},
    ],
]
GREEDY, TOP = 32, 8
TAIL = list(range(0, 49152, 4099))  # fixed ids all over the vocabulary, so that unlikely tokens are compared too


def smollm2(out: pathlib.Path) -> None:
    import torch
    import transformers

    tok = transformers.AutoTokenizer.from_pretrained(MODEL.parent, gguf_file=MODEL.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL.parent, gguf_file=MODEL.name, dtype=torch.float32)
    model.eval()
    texts, chats = [], []
    with torch.no_grad():
        for text in TEXTS:
            ids = tok(text, add_special_tokens=False)["input_ids"]
            logp = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
            top = logp.topk(TOP)
            taken = logp[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
            texts.append({
                "text": text, "ids": ids, "taken": rounded(taken), "top_ids": top.indices.tolist(),
                "top": rounded(top.values), "tail": rounded(logp[:, TAIL]),
            })  # fmt: skip
        for messages in CHATS:
            prompt = tok.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
            reply = model.generate(
                torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), do_sample=False,
                max_new_tokens=GREEDY, eos_token_id=2, pad_token_id=2,
            )[0, len(prompt) :].tolist()  # fmt: skip
            chats.append({"messages": messages, "prompt": prompt, "reply": reply, "text": tok.decode(reply)})
    data = {
        "peer": f"transformers {transformers.__version__}, torch {torch.__version__}", "tail_ids": TAIL,
        "bank": [{"text": text, "ids": tok(text, add_special_tokens=False)["input_ids"]} for text in BANK],
        "texts": texts, "chats": chats,
    }  # fmt: skip
    (out / "smollm2.json").write_text(json.dumps(data, ensure_ascii=True, separators=(",", ":")) + "\n")


def rounded(values) -> list:
    """Five decimals: a hundredth of the tolerance."""
    return [rounded(row) for row in values] if values.dim() > 1 else [round(float(v), 5) for v in values]


MAKERS = (smollm2,)  # each writes one file, so that a test can name the folder with PEER_FIXTURES

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "fixtures")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for make in MAKERS:
        make(out)
