"""The language of `pivot`: which words there are, and how an action is said and understood.

An action is `filler* tool filler* argument filler* <end>`; tools have two names each. Said in random words, the token
that decides has no fixed slot and no fixed id.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from agentjax.types import Array

PAD, MARKER, END, START, OK, ERROR, IDLE, GOAL, AVOID, NOTE, HINT = range(11)
FIXED = ("<pad>", ">", "<end>", "start", "ok", "error", "idle", "goal", "avoid", "notes", "hint")
FILLERS = ("please", "now", "just", "then")
ARGS = ("red", "blue", "green", "gold", "white", "black", "pink", "grey")
TOOLS = ("open", "unlock", "read", "check", "press", "push", "take", "grab", "turn", "twist", "lift", "raise")
WAIT = ("wait", "rest")
PLACES = (
    "door", "book", "bell", "coin", "lamp", "map", "desk", "jar", "gate", "page", "panel", "ring", "safe", "sign",
    "lever", "bag", "box", "menu", "pump", "cup", "vault", "card", "valve", "rope",
)  # fmt: skip


def whole(uniform: Array, count: Array | int) -> Array:
    """int32 in [0, count), uniform like its argument in [0, 1)."""
    return jnp.minimum((uniform * jnp.float32(count)).astype(jnp.int32), count - 1)


class Words(NamedTuple):
    """Token ids as ranges: fixed words, fillers, arguments, two names per tool (the last tool waits), places, notes."""

    places: int
    tools: int  # without the waiting tool
    args: int
    fillers: int

    @property
    def first_arg(self) -> int:
        return len(FIXED) + self.fillers

    @property
    def first_tool(self) -> int:
        return self.first_arg + self.args

    @property
    def first_place(self) -> int:
        return self.first_tool + 2 * (self.tools + 1)

    @property
    def first_memo(self) -> int:
        return self.first_place + self.places

    @property
    def wait(self) -> int:
        """The tool that does nothing."""
        return self.tools

    def vocabulary(self) -> tuple[str, ...]:
        """All words; index = token id."""
        places, args = PLACES[: self.places], ARGS[: self.args]
        memos = tuple(f"{place}={arg}" for place in places for arg in args)
        return FIXED + FILLERS[: self.fillers] + args + TOOLS[: 2 * self.tools] + WAIT + places + memos

    def place(self, place: Array) -> Array:
        """Token of a place."""
        return self.first_place + place

    def memo(self, place: Array, arg: Array) -> Array:
        """Token of the note "place=arg"."""
        return self.first_memo + place * self.args + arg

    def right_tool(self, place: Array) -> Array:
        """The tool that fits a place: the same in every task."""
        return place % self.tools

    def action_tokens(self) -> Array:
        """bool[V]: fillers, arguments, tools and `<end>`."""
        ids = jnp.arange(self.first_memo + self.places * self.args)
        return (ids == END) | ((ids >= len(FIXED)) & (ids < self.first_place))

    def parse(self, action: Array) -> tuple[Array, Array]:
        """(tool, arg) of action tokens [A]; tool -1 if ill-formed, arg -1 for the waiting tool.

        The first tool word counts, and the first argument word behind it. Ill-formed: no `<end>`, no tool before it, or
        no argument between the two.
        """
        ended = action == END
        before_end = jnp.cumsum(ended, dtype=jnp.int32) == 0
        is_tool = (action >= self.first_tool) & (action < self.first_place) & before_end
        seen_tool = jnp.cumsum(is_tool, dtype=jnp.int32) > 0
        is_arg = (action >= self.first_arg) & (action < self.first_tool) & before_end & seen_tool
        tool = (action[jnp.argmax(is_tool)] - self.first_tool) // 2
        waits = tool == self.wait
        good = jnp.any(ended) & jnp.any(is_tool) & (waits | jnp.any(is_arg))
        arg = jnp.where(waits, -1, action[jnp.argmax(is_arg)] - self.first_arg)
        return jnp.where(good, tool, -1), jnp.where(good, arg, -1)

    def say(self, tool: Array, arg: Array, action_len: int) -> Array:
        """int32[A], the plain form `tool arg <end>`, or `wait <end>`."""
        word, end = self.first_tool + 2 * tool, jnp.int32(END)
        waits = tool == self.wait
        head = jnp.stack([word, jnp.where(waits, end, self.first_arg + arg), jnp.where(waits, PAD, end)])
        return jnp.pad(head, (0, action_len - 3))

    def say_randomly(self, dice: Array, tool: Array, arg: Array, action_len: int) -> Array:
        """int32[A], with a random name for the tool, and each spare slot a random filler with probability 1/4.

        dice: 3 (A - 3) + 1 uniform numbers in [0, 1).
        """
        spare = action_len - 3
        used = dice[:spare] < 0.25
        place = 2 * whole(dice[spare : 2 * spare], 3)  # before the tool, before the argument, before the end
        filler = len(FIXED) + whole(dice[2 * spare : 3 * spare], self.fillers)
        name = self.first_tool + 2 * tool + whole(dice[-1], 2)
        waits = tool == self.wait
        content = jnp.stack([name, jnp.where(waits, PAD, self.first_arg + arg), jnp.int32(END)])
        order = jnp.concatenate(
            [jnp.where(used, place, 9), jnp.where(waits, jnp.array([1, 9, 5]), jnp.array([1, 3, 5]))]
        )
        words = jnp.concatenate([jnp.where(used, filler, PAD), content])
        return words[jnp.argsort(order, stable=True)]
