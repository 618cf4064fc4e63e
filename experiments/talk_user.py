"""The simulated user of `experiments.talk`: one rule of style, checked exactly on text, and what is said when it is
broken.

    rule = RULES["answer_first"]
    message = next_message(rule, "Mia has 11 apples.", turn=0)      a complaint that quotes the wish
    hint_in(message)                                                the wish, None in a message without one
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

MOST_BASE, LEAST_LIFT = 0.25, 0.3  # the gates of a rule
MARKER = "\n\n[user's hint / instruction]\n"  # how OpenClaw-RL appends a hint to the user's last message


class Rule(NamedTuple):
    """A wish in words and the exact check of a reply."""

    name: str
    wish: str
    kept: Callable[[str], bool]


def _words(text: str) -> int:
    return len(text.split())


def _sentences(text: str) -> int:
    return len(re.findall(r"[.!?](?:\s|$)", text.strip()))


# The order in which rules are tried, fixed before any measurement: order and placement first, which no constant push on
# some words can learn; then length; then words that a constant push can.
RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("answer_first", "Start with the number, then explain.", lambda text: re.match(r"\W*\d", text) is not None),
        Rule(
            "bold_number",
            "Write the final number in bold, like **7**.",
            lambda text: re.search(r"\*\*[^*\n]*\d[^*\n]*\*\*", text) is not None,
        ),
        Rule("ends_with_question", "End your answer with a question.", lambda text: text.rstrip().endswith("?")),
        Rule("ten_words", "Answer in at most ten words.", lambda text: 0 < _words(text) <= 10),
        Rule(
            "one_sentence",
            "Answer in one short sentence.",
            lambda text: _sentences(text) == 1 and _words(text) <= 16,
        ),
        Rule("because", "Use the word because.", lambda text: re.search(r"\bbecause\b", text, re.I) is not None),
        Rule(
            "greeting",
            "Say hello first.",
            lambda text: re.match(r"\W*(hello|hi|hey)\b", text, re.I) is not None,
        ),
        Rule(
            "warm",
            "Say something kind, like Great question!",
            lambda text: re.search(r"great question|well done|good job|happy to help|nice", text, re.I) is not None,
        ),
        Rule(
            "steps",
            "Number your steps, like 1. and 2.",
            lambda text: re.search(r"(^|\n)\s*1[.)]\s", text) is not None,
        ),
        Rule(
            "capitals",
            "WRITE IN CAPITAL LETTERS.",
            lambda text: re.search(r"[A-Z]", text) is not None and not re.search(r"[a-z]", text),
        ),
    )
}

COMPLAINTS = (
    'That is not how I like it. "{wish}" Please do so from now on.',
    'Hm, no. I asked you before: "{wish}"',
    'Please change your style. "{wish}"',
    'I do not like this answer. What I want is this: "{wish}"',
)
THANKS = ("Thanks, that is how I like it.", "Good. Here is the next one.", "Fine, thank you.")


def next_message(rule: Rule, reply: str, turn: int) -> str:
    """What the user says after a reply: thanks if the rule was kept, else a complaint with the wish in quotes."""
    if rule.kept(reply):
        return THANKS[turn % len(THANKS)]
    return COMPLAINTS[turn % len(COMPLAINTS)].format(wish=rule.wish)


def hint_in(message: str) -> str | None:
    """The words between quotes in a user's message, None if there are none."""
    quoted = re.search(r'"([^"]+)"', message)
    return quoted.group(1) if quoted else None


def pick(rows: Iterable[dict[str, Any]]) -> Rule | None:
    """The first rule of the bank that passes both gates, from screening rows; None if there is none."""
    rate = {(row["method"], row["measure"]): row["value"] for row in rows}
    for rule in RULES.values():
        base, hinted = rate.get((rule.name, "screen_base")), rate.get((rule.name, "screen_hinted"))
        if base is not None and hinted is not None and base <= MOST_BASE and hinted - base >= LEAST_LIFT:
            return rule
    return None
