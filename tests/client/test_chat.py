from __future__ import annotations

from typing import Any

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.client.chat import Transcript
from radixray.client.content import Content
from radixray.client.state import State
from radixray.tokenizer.chat_template import ChatTemplate
from radixray.tokenizer.tokenizer import Tokenizer

Chat = list[tuple[str, str]]
SHAPES: dict[str, Chat] = {
    "user": [("user", "Hi")],
    "system": [("system", "Be brief")],
    "system user": [("system", "S"), ("user", "U")],
    "turn": [("user", "U"), ("assistant", "A")],
    "turns": [("system", "S"), ("user", "U"), ("assistant", "A"), ("user", "V")],
    "assistant first": [("assistant", "A"), ("user", "U")],
    "two users": [("user", "U"), ("user", "V")],
    "late system": [("user", "U"), ("system", "S"), ("assistant", "A")],
    "empty": [("user", ""), ("assistant", "")],
    "odd text": [("user", "  日本 😀\n\n<b> "), ("assistant", "\te\u0301 "), ("user", "\n")],
}
ROLES = {"system": rr.system, "user": rr.user, "assistant": rr.assistant}


def rendered(oracle: Any, chat: Chat, prompt: bool = False) -> str:
    return oracle.apply_chat_template(
        [{"role": role, "content": content} for role, content in chat],
        tokenize=False,
        add_generation_prompt=prompt,
    )


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("how", ["calls", "with", "pieces", "generated"])
async def test_equal_to_transformers(
    state: State, transport: ScriptedTransport, oracle: Any, name: str, how: str
) -> None:
    chat = SHAPES[name]
    for role, content in chat:
        if how == "calls":
            state += ROLES[role](content)
        elif how == "with":
            with getattr(state, role)():
                state += content
        elif how == "pieces":
            with getattr(state, role)():
                for char in content:
                    state += char
        else:
            transport.reply = content
            with getattr(state, role)():
                assert (await state.gen()).text == content
    await state.sync()
    assert state.text() == rendered(oracle, chat)
    assert state.messages() == [{"role": r, "content": c} for r, c in chat]
    if how != "generated":
        assert state.tokens() == oracle.encode(rendered(oracle, chat), add_special_tokens=False)


async def test_a_generation_continues_the_generation_prompt(
    state: State, transport: ScriptedTransport, oracle: Any
) -> None:
    state += rr.user("Hi") + rr.assistant("Well, " + rr.gen("x"))
    await state.sync()
    expected = rendered(oracle, [("user", "Hi")], prompt=True) + "Well, "
    assert transport.requests[0].prompt_ids == oracle.encode(expected, add_special_tokens=False)
    assert state.messages()[-1] == {"role": "assistant", "content": "Well,  ok"}
    assert state.text() == rendered(oracle, [("user", "Hi"), ("assistant", "Well,  ok")])


async def test_a_role_is_closed_after_an_exception(state: State, oracle: Any) -> None:
    with pytest.raises(ZeroDivisionError), state.user():
        state += "a"
        raise ZeroDivisionError
    state += rr.user("b")
    assert state.text() == rendered(oracle, [("user", "a"), ("user", "b")])


async def test_roles_do_not_nest(state: State) -> None:
    with state.user():
        with pytest.raises(rr.InvalidRequestError), state.system():
            pass
        with pytest.raises(rr.InvalidRequestError):
            state += rr.assistant("x")


async def test_an_open_message_is_listed(state: State) -> None:
    with state.user():
        state += "so far"
        assert state.messages() == [{"role": "user", "content": "so far"}]


async def test_no_template(tokenizer: Tokenizer) -> None:
    transcript = Transcript(ChatTemplate(None, {}), Content(tokenizer))
    transcript.open_role("user")
    with pytest.raises(rr.TemplateError, match="the model has no chat template"):
        transcript.close_role()


LAST_ONLY = "{% for m in messages %}{{ m.role[0] if not loop.last else m.role }}:{{ m.content }};"
TRIMS = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[end]"
THINKS = TRIMS + "{% endfor %}{% if add_generation_prompt %}[assistant]<think>"


def transcript(tokenizer: Tokenizer, source: str) -> Transcript:
    closed = "{% endif %}" if "add_generation" in source else "{% endfor %}"
    return Transcript(ChatTemplate(source + closed, {}), Content(tokenizer))


def test_a_template_that_rewrites_history_is_refused(tokenizer: Tokenizer) -> None:
    chat = transcript(tokenizer, LAST_ONLY)
    chat.open_role("user")
    chat.add_text("a")
    chat.close_role()
    chat.open_role("user")
    with pytest.raises(rr.TemplateError, match="rewrites history"):
        chat.close_role()


def test_a_template_that_trims(tokenizer: Tokenizer) -> None:
    chat = transcript(tokenizer, TRIMS)
    chat.open_role("user")
    chat.add_text(" a ")
    chat.close_role()
    chat.open_role("assistant")
    prompt = chat.prompt_ids()
    chat.add_output(prompt, tokenizer.encode(" yes "), " yes ")
    chat.close_role()
    chat.open_role("user")
    chat.close_role()
    # What was generated stays as it was.
    assert chat.content.text == "[user]a[end] yes [end][user][end]"


def test_the_generation_prompt_opens_an_answer(tokenizer: Tokenizer) -> None:
    chat = transcript(tokenizer, THINKS)
    chat.open_role("user")
    chat.close_role()
    chat.open_role("assistant")
    chat.prompt_ids()
    assert chat.content.text == "[user][end][assistant]<think>"


def test_a_template_that_hides_content_cannot_be_generated_into(tokenizer: Tokenizer) -> None:
    chat = transcript(tokenizer, "{% for m in messages %}{{ m.role }}")
    chat.open_role("user")
    with pytest.raises(rr.TemplateError, match="does not show"):
        chat.prompt_ids()


async def test_text_after_bos(tokenizer: Tokenizer) -> None:
    class WithBos:
        chat_template = tokenizer.chat_template

        def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
            return [1] * add_special_tokens + tokenizer.encode(text)

    content = Content(WithBos())  # type: ignore[arg-type]
    content.add_text("a")
    content.add_text("b")
    assert content.prompt_ids() == [1, *tokenizer.encode("ab")]
    chat = Content(WithBos())  # type: ignore[arg-type]
    chat.add_text("a", template=True)
    assert chat.prompt_ids() == tokenizer.encode("a")
