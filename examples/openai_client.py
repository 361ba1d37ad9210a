"""Use a running server with the openai package.

Start the server first: `radixray serve`. Then run this: `python examples/openai_client.py`.
"""

from __future__ import annotations

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("RADIXRAY_API_KEY", "none"),
)


def main() -> None:
    model = client.models.list().data[0].id

    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Name three rivers."}],
        max_completion_tokens=48,
        temperature=0,
    )
    print("chat:", answer.choices[0].message.content)

    print("stream:", end=" ", flush=True)
    for chunk in client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Name three rivers."}],
        max_completion_tokens=48,
        temperature=0,
        stream=True,
    ):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()

    # What OpenAI's API lacks goes into extra_body.
    date = client.completions.create(
        model=model,
        prompt="4 July 2021 = 2021-07-04\n9 March 1998 = 1998-03-09\n24 May 2024 =",
        max_tokens=16,
        temperature=0,
        extra_body={"regex": " [0-9]{4}-[0-9]{2}-[0-9]{2}"},
    )
    print("regex:", date.choices[0].text.strip())


if __name__ == "__main__":
    main()
