"""Byte-level BPE and chat templates from metadata, on a vocabulary small enough to merge by hand."""

import pytest
from tokenizers import pre_tokenizers

from agentjax.policies import tokenizer

CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGED = ["he", "ll", "hell", "hello", "Ġhello", "12"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2"]
TOKENS = CONTROLS + BYTES + MERGED
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + ':' + m['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>' }}{% endif %}"
)


def metadata(**changes):
    base = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.merges": MERGES, "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(TOKENS) - 3),
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.chat_template": TEMPLATE,
    }  # fmt: skip
    return base | {f"tokenizer.ggml.{k}": v for k, v in changes.items()}


TOK = tokenizer.from_metadata(metadata())
ID = {token: i for i, token in enumerate(TOKENS)}


def test_merges_worked_by_hand():
    # "hello" -> h e l l o -> he ll o -> hell o -> hello; the space before it is the letter Ġ, merged last
    assert TOK.encode("hello hello") == [ID["hello"], ID["Ġhello"]]
    assert TOK.encode("hell") == [ID["hell"]]
    assert TOK.encode("helo") == [ID["he"], ID["l"], ID["o"]]
    assert TOK.encode("") == []


def test_digits_stand_alone_under_smollm_and_merge_under_gpt2():
    assert TOK.encode("12") == [ID["1"], ID["2"]]
    plain = tokenizer.from_metadata(metadata(pre="gpt-2"))
    assert plain.encode("12") == [ID["12"]]


def test_bytes_of_unicode_and_the_way_back():
    # e-acute is the bytes C3 A9, whose letters in the byte alphabet are Ã and ©
    assert TOK.encode("é") == [ID["Ã"], ID["©"]]
    for text in ("", "hello 12 é 你好 🙂\n\t x", "  two  spaces ", "<|im_start|>a<|im_end|>"):
        assert TOK.decode(TOK.encode(text)) == text
    assert TOK.decode([ID["Ã"]]) == "\ufffd"  # half a character


def test_control_tokens_are_single_ids():
    assert TOK.encode("<|im_start|>hello<|im_end|>") == [1, ID["hello"], 2]
    assert TOK.encode("<|im_start") == [ID[letter] for letter in "<|im_start"]
    assert TOK.decode([1, ID["hello"], 2], skip_control=True) == "hello"
    assert TOK.decode([1, ID["hello"], 2]) == "<|im_start|>hello<|im_end|>"


def test_chat():
    messages = [{"role": "a", "content": "hello"}]
    expected = [1, ID["a"], ID[":"], ID["hello"], 2]
    assert TOK.chat(messages, add_generation_prompt=False) == expected
    assert TOK.chat(messages) == [*expected, 1]


def test_special_ids_fall_back_to_the_end_token():
    assert (TOK.bos, TOK.eos, TOK.end_of_turn, TOK.pad, TOK.vocab) == (1, 2, 2, 2, len(TOKENS))
    other = tokenizer.from_metadata(metadata(eot_token_id=0, padding_token_id=1))
    assert (other.end_of_turn, other.pad) == (0, 1)


def test_template_cannot_reach_python():
    evil = metadata() | {"tokenizer.chat_template": "{{ ''.__class__.__mro__[1].__subclasses__() }}"}
    with pytest.raises(ValueError, match="chat template refused"):
        tokenizer.from_metadata(evil).chat([])


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="no tools here"):
        TOK.chat([{"role": "tool", "content": ""}])
    with pytest.raises(ValueError, match="does not parse"):
        tokenizer.from_metadata(metadata() | {"tokenizer.chat_template": "{% for %}"})
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer.from_metadata({k: v for k, v in metadata().items() if "chat" not in k}).chat([])
    with pytest.raises(ValueError, match="'llama'; only 'gpt2'"):
        tokenizer.from_metadata(metadata(model="llama"))
    with pytest.raises(ValueError, match="'qwen9'; there are: default, gpt-2, smollm"):
        tokenizer.from_metadata(metadata(pre="qwen9"))
    with pytest.raises(ValueError, match=r"lacks tokenizer\.ggml\.merges"):
        tokenizer.from_metadata({k: v for k, v in metadata().items() if "merges" not in k})
    with pytest.raises(ValueError, match="not a pair"):
        tokenizer.from_metadata(metadata(merges=["h"]))
