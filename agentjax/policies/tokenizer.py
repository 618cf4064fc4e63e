"""Text to token ids and back, and chat messages to a prompt: byte-level BPE as a GGUF file describes it.

Needs the extra `lm` (tokenizers, jinja2). Sampled ids are trained on as they are; decoded text is for people and
judges, never encoded again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2.sandbox
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

CONTROL, USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type that are matched before any BPE

_SPLITS = {  # tokenizer.ggml.pre: how text is cut before BPE
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "default": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A vocabulary with its chat template; `from_metadata` builds it."""

    core: tokenizers.Tokenizer
    template: jinja2.Template | None
    bos: int
    eos: int
    end_of_turn: int  # ends a reply
    pad: int

    @property
    def vocab(self) -> int:
        """Number of ids."""
        return self.core.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Ids of a text; nothing is added. Control tokens written out in it (`<|im_end|>`) become their ids."""
        return self.core.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], *, skip_control: bool = False) -> str:
        """Text of ids; bytes that are not UTF-8 show as U+FFFD. decode(encode(x)) == x."""
        return self.core.decode([int(i) for i in ids], skip_special_tokens=skip_control)

    def chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> list[int]:
        """Ids of messages [{"role": ..., "content": ...}, ...] under the file's chat template.

        With `add_generation_prompt` the ids end where the assistant's reply begins. Raises ValueError for a file
        without a template or messages that the template refuses.
        """
        if self.template is None:
            raise ValueError("this tokenizer has no chat template; encode the prompt text yourself")
        try:
            text = self.template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                bos_token=self.core.id_to_token(self.bos),
                eos_token=self.core.id_to_token(self.eos),
            )
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template refused the messages: {error}") from error
        return self.encode(text)


def from_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a GGUF file's metadata (`tokenizer.*` keys); ValueError for another kind than byte-level BPE."""
    ggml = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    if ggml.get("model") != "gpt2":
        raise ValueError(f"tokenizer.ggml.model is {ggml.get('model')!r}; only 'gpt2' (byte-level BPE) is read")
    if ggml.get("pre", "default") not in _SPLITS:
        raise ValueError(f"tokenizer.ggml.pre is {ggml['pre']!r}; there are: {', '.join(sorted(_SPLITS))}")
    missing = [name for name in ("tokens", "merges", "token_type", "eos_token_id") if name not in ggml]
    if missing:
        raise ValueError(f"the tokenizer lacks {', '.join('tokenizer.ggml.' + name for name in missing)}")
    tokens: list[str] = ggml["tokens"]
    merges = [tuple(merge.split(" ")) for merge in ggml["merges"]]
    if len(set(tokens)) != len(tokens) or any(len(merge) != 2 for merge in merges):
        raise ValueError("the tokenizer's tokens repeat or a merge is not a pair")
    core = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    core.pre_tokenizer = _SPLITS[ggml.get("pre", "default")]
    core.decoder = decoders.ByteLevel()
    kinds = list(zip(tokens, ggml["token_type"], strict=True))
    core.add_special_tokens([_literal(token) for token, kind in kinds if kind == CONTROL])
    core.add_tokens([_literal(token) for token, kind in kinds if kind == USER_DEFINED])
    eos = int(ggml["eos_token_id"])
    return Tokenizer(
        core=core,
        template=_template(metadata.get("tokenizer.chat_template")),
        bos=int(ggml.get("bos_token_id", eos)),
        eos=eos,
        end_of_turn=int(ggml.get("eot_token_id", eos)),
        pad=int(ggml.get("padding_token_id", eos)),
    )


def _literal(token: str) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(token, normalized=False)


def _template(source: str | None) -> jinja2.Template | None:
    """Compiled in a sandbox: a model file is data, not code."""
    if source is None:
        return None
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment.globals["raise_exception"] = refuse
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ValueError(f"tokenizer.chat_template does not parse: {error}") from error
