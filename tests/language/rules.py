"""The rules of plain language that a program can measure, and the terms that are excepted from them."""

from __future__ import annotations

import re

# A docstring states the result; it does not open with a question word.
QUESTION_WORDS = frozenset({"What", "How", "Whether", "Which", "Who", "Whose", "Where", "When", "Why"})

# Names that do not say what their value is.
VAGUE_NAMES = frozenset(
    """
    again answered asked both each few found given gone got held here high how it kept known least low made many
    mine more most needed now one ones other others ours rest said same seen some stuff taken that theirs them
    there they thing things this those told unknown wanted what whatever which who whose why written
    """.split()  # noqa: SIM905 - a list of words reads better than a list of literals
)


# Archaic words, words that hide the subject, and verbs that personify a process, each with a plain replacement.
WORDS = {
    r"anew": "again",
    r"anybody|everybody|nobody|somebody": "name the person or the process",
    r"condemn(?:s|ed)?": "reject",
    r"dies|died|die": "ends, is killed, fails",
    r"falls? short": "fails",
    r"fates?": "result",
    r"gladly": "leave it out",
    r"hence|thus|likewise": "so, also",
    r"knows|knew": "has, stores, is configured with",
    r"lets? go": "release",
    r"lies|lay": "is located, is",
    r"mend(?:s|ed|ing)?": "fix, repair",
    r"nowhere": "name the place",
    r"owes|owed": "name the relation",
    r"said|says|saying": "prints, reports, states",
    r"speaks?|spoken|spoke": "communicates, supports",
    r"tells|told": "reports, sends",
    r"thinks?|believes?|suspects?": "assumes",
    r"wants|wanted|wanting": "needs, requests, missing",
    r"whoever|whichever|whosoever": "name the person or the thing",
}
WORD_PATTERN = re.compile(r"\b(?:" + "|".join(f"(?:{word})" for word in WORDS) + r")\b", re.IGNORECASE)

LONGEST_SENTENCE = 35  # words; 25 is the aim, and a list of terms may need more

# Terms of the field, or of this project's formats, that look like a violation. At most 20, each with its reason.

ALLOWED = {
    "SUSPECT": "a verdict of SOL-ExecBench's format",
    "same": "a key of `harness planner --replay --json`",
    "wanted": "a column of COORDINATION.md and a field of stored assignments",
}
