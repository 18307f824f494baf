"""Tokenizers, templates, and the segment-wise ids of demonstrations."""

import json

import pytest
from conftest import ADDED, conversation
from transformers import AutoTokenizer

from milepost_trainer import tokenizer as T
from milepost_trainer.errors import TrainerError


@pytest.fixture(scope="module")
def tok(model_dir):
    return AutoTokenizer.from_pretrained(model_dir)


def ids(tok, text):
    return tok(text, add_special_tokens=False)["input_ids"]


def test_marks_are_one_token_and_added_ones_stay_visible(tok):
    for mark in (T.START, T.END, T.STOP, *ADDED):
        assert len(ids(tok, mark)) == 1
    assert tok.decode(ids(tok, f"<tool_call>x</tool_call>{T.END}"), skip_special_tokens=True) == "<tool_call>x</tool_call>"
    assert tok.eos_token == T.END and tok.pad_token == T.STOP


@pytest.mark.parametrize(
    "text", ["", " ", "\n\n", "a - b\n    return 12", "naïve 漢字 🙂\u0000\t", '{"a": "b\\n"}', "\r\n x  y   "]
)
def test_every_text_comes_back(tok, text):
    assert tok.decode(ids(tok, text)) == text


def test_tool_template_tells_the_tools_in_the_system_message(tok):
    tools = [{"type": "function", "function": {"name": "look"}}]

    def render(messages, tools=tools):
        return tok.apply_chat_template(messages, tools=tools, chat_template=T.TOOL_CHAT_TEMPLATE, tokenize=False)

    told = render(conversation(1))
    assert told.startswith("<|im_start|>system\nYou repair code.\n\n# Tools") and '"name": "look"' in told
    assert told.count("<|im_start|>system") == 1 and render(conversation(1)[1:]).startswith("<|im_start|>system\n\n\n# Tools")
    assert "# Tools" not in render(conversation(1), None)
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {"at": 1}}}]}
    assert '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call><|im_end|>' in render([*conversation(1)[:2], call])


def test_of_marks_at_one_place_the_longest_is_the_token():
    added = ["<call>", "<call>\nread(", "<|im_start|>tool\n"]
    tok = T.train(["<|im_start|>tool\n<call>\nread(a)<|im_end|>" * 20], 400, added)
    pieces = [tok.decode([t]) for t in ids(tok, "<|im_start|>tool\n<call>\nread(<call>x<|im_start|>user\n")]
    assert pieces[:4] == ["<|im_start|>tool\n", "<call>\nread(", "<call>", "x"] and pieces[4] == "<|im_start|>"
    assert list(T.split_out(["q<|im_start|>tool\n<call>\nread(a<call>"], [T.START, *added])) == ["q", "a"]


def test_pieces():
    tok = T.train(["return a <= b == c + 12\n" * 50], 400, [])
    pieces = [tok.decode([t]) for t in ids(tok, "return a <= b == c + 12\n")]
    assert pieces == ["return", " a", " <=", " b", " ==", " c", " +", " 1", "2", "\n"]


def test_bad_requests_name_what_is_allowed():
    with pytest.raises(TrainerError, match="vocab_size is 100; allowed: 260 or more"):
        T.train(["x"], 100, ["<a>"])
    with pytest.raises(TrainerError, match="added_tokens"):
        T.train(["x"], 400, ["<a>", "<a>"])


@pytest.mark.parametrize("template", [T.CHAT_TEMPLATE, T.TOOL_CHAT_TEMPLATE])
@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "f"}}]])
def test_template_is_prefix_stable(tok, template, tools):
    messages = [*conversation(3), {"role": "user", "content": "  again\n"}, {"role": "assistant", "content": "\nDone. "}]
    done = ""
    for n in range(1, len(messages) + 1):
        text = tok.apply_chat_template(messages[:n], tools=tools, chat_template=template, tokenize=False)
        prompt = tok.apply_chat_template(
            messages[:n], tools=tools, chat_template=template, tokenize=False, add_generation_prompt=True
        )
        assert text.startswith(done) and prompt == text + "<|im_start|>assistant\n"
        if n > 1:
            role, content = messages[n - 1].values()
            assert text[len(done) :].rstrip("\n") == f"<|im_start|>{role}\n{content}<|im_end|>"
        done = text


def test_tiny_template_is_plain_chatml_and_ignores_tools(tok):
    text = tok.apply_chat_template(conversation(1), tools=[{"name": "f"}], tokenize=False)
    assert text == "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>" for m in conversation(1))


def test_ids_of_segments_are_ids_of_the_whole(tok):
    """Segments meet at special tokens, so cutting there changes no id."""
    d = T.Demonstration("d", conversation(4))
    parts = T.segments(tok, d)
    assert [p.trained for p in parts] == [False, True, False, True]
    assert [i for p in parts for i in ids(tok, p.text)] == ids(tok, "".join(p.text for p in parts))
    whole = tok.apply_chat_template(d.messages, tokenize=False)
    assert whole == "".join(p.text for p in parts)


def test_only_what_the_assistant_wrote_is_trained(tok):
    ((tokens, mask),) = T.encode(tok, [T.Demonstration("d", conversation(4))])
    trained = tok.decode([t for t, m in zip(tokens, mask, strict=True) if m])
    said = [m["content"] for m in conversation(4) if m["role"] == "assistant"]
    assert trained == "".join(s + T.END for s in said)
    assert tokens[-1] == tok.eos_token_id and mask[-1]


def test_a_turn_whose_train_is_false_is_context_alone(tok):
    messages = conversation(1)
    said = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    whole, all_trained = T.encode(tok, [T.Demonstration("d", messages)])[0]
    messages[said[0]]["train"] = False
    tokens, mask = T.encode(tok, [T.Demonstration("d", messages)])[0]
    assert tokens == whole and mask != all_trained
    off = [t for t, now, before in zip(tokens, mask, all_trained, strict=True) if before and not now]
    assert off == ids(tok, messages[said[0]]["content"] + T.END) and sum(mask) == sum(all_trained) - len(off) > 0


def test_content_that_looks_like_the_joint_keeps_the_sampler_s_ids(tok):
    """Content that begins with a line end is still tokenised apart from the prompt's, as the sampler would write it."""
    d = T.Demonstration("d", [{"role": "user", "content": "u"}, {"role": "assistant", "content": "\n\n x"}])
    ((tokens, _),) = T.encode(tok, [d])
    assert tokens == ids(tok, "<|im_start|>user\nu<|im_end|><|im_start|>assistant\n") + ids(tok, "\n\n x<|im_end|>")


def test_a_template_that_rewrites_history_is_refused(tok):
    rewriting = "{% for m in messages %}{% if not loop.last %}~{% endif %}{{ m['role'] }}{{ m['content'] }}<|im_end|>{% endfor %}"
    other = AutoTokenizer.from_pretrained(tok.name_or_path)
    other.chat_template = rewriting
    with pytest.raises(TrainerError, match=r"'d'.*not prefix-stable at messages\[2\]"):
        T.segments(other, T.Demonstration("d", conversation(4)))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", ":2: not JSON"),
        ('{"id": 1, "messages": []}', ":2: allowed"),
        ('{"id": "x", "messages": [], "extra": 1}', "unknown field 'extra'"),
        ('{"id": "x", "messages": [{"role": "assistant"}]}', "messages\\[0\\]"),
        ('{"id": "x", "messages": [{"role": "bot", "content": "c"}]}', "role is 'bot'; allowed: system"),
        ('{"id": "x", "messages": [{"role": "user", "content": "c"}]}', "at least one with role assistant"),
    ],
)
def test_bad_demonstrations_name_file_line_and_field(tmp_path, line, words):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({"id": "ok", "messages": conversation(0)}) + "\n" + line + "\n")
    with pytest.raises(TrainerError, match=words) as e:
        T.read_demonstrations(str(path))
    assert f"{path}:2" in str(e.value)
