"""One-step word problems with a checked answer, as text: made on the host from templates of our own.

    problems = word_problems(seed=0, count=200)       all different
    problem.question        "Mia has 4 apples and buys 7 more. How many apples does Mia have now?"
    is_right("4 + 7 = 11, so Mia has 11 apples.", problem)        True: the first number not in the question is right
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

NAMES = ("Mia", "Tom", "Anna", "Ben", "Sara", "Leo", "Emma", "Jack", "Lily", "Sam", "Kate", "Max")
ITEMS = ("apples", "books", "pens", "coins", "cards", "eggs", "stamps", "toys", "shells", "stones", "cups", "balls")
TEMPLATES = (
    "{name} has {a} {item} and buys {b} more. How many {item} does {name} have now?",
    "There are {a} {item} in a box and {b} {item} in a bag. How many {item} are there in total?",
    "{name} finds {a} {item} on Monday and {b} on Tuesday. How many {item} does {name} find in all?",
    "{name} has {a} {item} and {other} has {b}. How many {item} do they have together?",
    "A shop sells {a} {item} in the morning and {b} at night. How many {item} does it sell?",
    "{name} gets {a} {item} from {other} and then {b} more. How many {item} does {name} get?",
)


class Problem(NamedTuple):
    """A question and the number that answers it."""

    question: str
    answer: int


def word_problems(seed: int, count: int, *, low: int = 2, high: int = 9) -> list[Problem]:
    """`count` different additions a + b with low <= a, b <= high, in an order that only `seed` and the bounds decide.

    A longer list starts with the shorter one. Raises ValueError if the bounds cannot make that many.
    """
    room = len(TEMPLATES) * len(ITEMS) * (high - low + 1) ** 2  # names come on top
    if not 1 <= low <= high or not 1 <= count <= room // 2:
        raise ValueError(f"need 1 <= low <= high and count in [1, {room // 2}], got {low}, {high} and {count}")
    rng = np.random.default_rng(seed)
    found: dict[str, int] = {}
    while len(found) < count:
        a, b = (int(x) for x in rng.integers(low, high + 1, 2))
        name, other = rng.choice(NAMES, 2, replace=False)
        template, item = rng.choice(TEMPLATES), rng.choice(ITEMS)
        found[template.format(name=name, other=other, item=item, a=a, b=b)] = a + b
    return [Problem(question, answer) for question, answer in found.items()]


def found_number(reply: str, question: str) -> int | None:
    """The first whole number in digits that the reply finds by itself: not one of the question's, not a list's "1.".

    None without one. Of "4 + 7 = 11. Check: 11 - 7 = 4." after a question with 4 and 7 that is 11.
    """
    given = set(re.findall(r"\d+", question))
    body = re.sub(r"(?m)^\s*\d+[.)]\s", " ", reply)
    numbers = [number.replace(",", "") for number in re.findall(r"\d+(?:,\d{3})*", body)]
    return next((int(number) for number in numbers if number not in given), None)


def is_right(reply: str, problem: Problem) -> bool:
    """Is the first number that the reply finds the answer? What follows it (small models ramble) does not count."""
    return found_number(reply, problem.question) == problem.answer
