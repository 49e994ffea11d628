"""What `specdash smoke` asks: the same thing again and again, other things, text that repeats, and a long text."""

from __future__ import annotations

IDENTICAL = "Write five short haikus about the ocean."
"""As the smoke test asks that found the damage on cached prompts (llama.cpp fork PR #53)."""
DIFFERENT = (
    "Explain in a few plain sentences how a bicycle stays upright while it is ridden.",
    "Write a function in Python that tells whether a number is prime, with a short docstring.",
    "List the planets of the solar system from the sun outwards, with one fact about each of them.",
    "Tell a short story of a lighthouse keeper who finds a letter in a bottle.",
    "Describe how bread is baked, from flour to loaf, in the order in which things are done.",
    "Write an SQL query that gives the ten customers with the most orders last year, and explain it.",
    "What are the main differences between a violin and a viola? Answer in a short paragraph.",
    "Give three arguments for and three arguments against living in a big city.",
)
_REPEATED = (
    "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n"
    "    return width * height * depth\n\n\ndef surface(width, height, depth):\n"
    "    return 2 * (width * height + width * depth + height * depth)\n\n\n"
)


def repeating(times: int) -> str:
    """A request to copy a text that stands there so many times, which n-gram drafts can guess."""
    return f"Write this code down again, word for word, twice, and nothing else:\n\n{_REPEATED * times}"


def long_text(lines: int) -> str:
    """A text of so many lines, no two of them alike, and a question about it."""
    body = "\n".join(
        f"Line {number}: crate {number * 37 % 1009} weighs {number * number % 97 + 3} pounds and goes to dock "
        f"{number * 11 % 23}."
        for number in range(1, lines + 1)
    )
    return f"{body}\n\nWhich dock do most of these crates go to, and about how much do they weigh? Explain at length."
