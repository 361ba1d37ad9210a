"""Read a name, a date and an amount out of short texts.

The output is constrained by a regular expression, so the same expression takes it apart.
"""

from __future__ import annotations

import asyncio
import re
import time

import radixray as rr

MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
PATTERN = (
    r"name: (?P<name>[A-Z][a-z]{1,14} [A-Z][a-z]{1,14})\n"
    rf"date: (?P<date>[1-3]?[0-9] {MONTH} 20[0-9]{{2}})\n"
    r"amount: \$(?P<amount>[1-9][0-9]{0,3}\.[0-9]{2})"
)

TEXTS = [
    "On 14 May 2023 Maria Lopez paid $45.20 for a bicycle lamp.",
    "Invoice for Peter Brown, dated 3 March 2021. Total due: $120.00.",
    "Anna Schmidt bought two chairs on 27 August 2024 and was charged $89.90.",
    "We received $15.75 from John Miller on 9 January 2022.",
    "Refund of $310.40 to Laura Rossi, issued on 30 November 2023.",
    "The order of David Clark from 18 June 2020 came to $62.35.",
    "Emma Wilson owes $7.50 since 1 October 2024.",
    "Payment by Paul Martin on 22 July 2021: $240.10.",
]

SHOTS = """\
Text: On 5 April 2019 Tom Baker paid $12.30 for a book.
name: Tom Baker
date: 5 April 2019
amount: $12.30

Text: Sara Young owes $980.00 since 16 December 2022.
name: Sara Young
date: 16 December 2022
amount: $980.00

Text: Ticket for Frank Hill, $27.45, valid from 11 February 2020.
name: Frank Hill
date: 11 February 2020
amount: $27.45

"""


@rr.function
async def extract(s: rr.State, text: str) -> dict[str, str]:
    s += SHOTS
    s += f"Text: {text}\n"
    record = await s.gen("record", regex=PATTERN, max_tokens=64)
    fields = re.fullmatch(PATTERN, record.text)
    if fields is None:
        raise ValueError(f"not a record: {record.text!r}")
    return fields.groupdict()


async def main() -> list[rr.ProgramResult]:
    async with rr.init():
        started = time.perf_counter()
        results = await extract.run_batch(TEXTS, temperature=0, on_error="raise")
        seconds = time.perf_counter() - started
    for text, result in zip(TEXTS, results, strict=True):
        print(f"{text}\n    {result.value}")
    usage = sum((result.usage for result in results), rr.Usage())
    print(f"\n{usage.cached} of {usage.prompt} prompt tokens came from the cache; {seconds:.1f} s")
    return results


if __name__ == "__main__":
    asyncio.run(main())
