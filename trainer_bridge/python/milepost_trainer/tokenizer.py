"""Byte-level BPE tokenizers of tiny models, chat templates, and demonstrations to token ids.

A conversation is ChatML: `<|im_start|>role\ncontent<|im_end|>` a message. It is tokenised in segments that meet where
the sampler's and the environment's tokens meet: what the policy writes (content and `<|im_end|>`) is a segment of its
own, and so is everything between two of those. At run time the policy's tokens come from the sampler and the rest is
tokenised as exactly these segments, so the ids that fine-tuning sees are the ids that a run produces.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from milepost_trainer.errors import TrainerError, invalid

START, END, STOP = "<|im_start|>", "<|im_end|>", "<|endoftext|>"

# The tiny model learns its tools by fine-tuning, so `tools` is not rendered. The rendering of a conversation is a prefix
# of the rendering of any longer one: nothing depends on what follows. There is no line end behind the end token, so that
# "<|im_start|>tool\n" and the like can be one token each (added_tokens).
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

# For models that read their tools in the system message (Hermes form); prefix-stable as well. A first message that is
# not the system's gets one before it, so that the tools have a place.
TOOL_CHAT_TEMPLATE = """\
{%- if tools or messages[0]['role'] == 'system' %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- endif %}
{%- if tools %}
{{- '\\n\\n# Tools\\n\\nYou may call one of these functions:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools>\\n\\nCall a function with\\n<tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (loop.first and message['role'] == 'system') %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['content'] is string %}{{- message['content'] }}{%- endif %}
{%- for call in message['tool_calls'] or [] %}
{%- set f = call['function'] if call['function'] is defined else call %}
{{- '<tool_call>\\n{"name": "' + f['name'] + '", "arguments": ' }}
{{- f['arguments'] if f['arguments'] is string else (f['arguments'] | tojson) }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# Words keep the space before them; digits stand alone; operators of more than one sign are one piece and all others
# single; an escape of a JSON string stands alone, so that the word after \\n is the word it is elsewhere; what joins keys
# and values of JSON may be one piece ('": "'), which halves the length of a tool call.
PIECES = (
    r"""\\[nrt"'\\]"""
    r"""|\{"|"[}\]]+|"[:,] (?:\{"|\["|")?"""
    r"""| ?[\p{L}_]+"""
    r"""| ?\p{N}"""
    r"""| ?(?:==|!=|<=|>=|\*\*|//|->|\+=|-=|\*=|/=|<<|>>)"""
    r"""|\s*[\r\n]+"""
    r"""|\s+(?!\S)"""
    r"""| ?[^\s\p{L}\p{N}_]"""
    r"""|\s+"""
)


def train(corpus: list[str], vocab_size: int, added_tokens: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE of at most `vocab_size` tokens, special and added tokens included.

    added_tokens are one token each and not special: they stay visible in decoded text.
    """
    special = [STOP, START, END]
    clash = sorted(set(special) & set(added_tokens))
    if clash or len(set(added_tokens)) != len(added_tokens) or "" in added_tokens:
        raise invalid(
            f"added_tokens {added_tokens!r}; allowed: texts that are not empty and differ from each other and from {special}"
        )
    smallest = 256 + len(special) + len(added_tokens)
    if vocab_size < smallest:
        raise invalid(f"vocab_size is {vocab_size}; allowed: {smallest} or more (256 bytes, special and added tokens)")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PIECES), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(added_tokens),
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The mark-up must not shape the merges: it is cut out of the text as it will be when encoding.
    bpe.train_from_iterator(split_out(corpus, special + added_tokens), trainer)
    bpe.add_tokens([AddedToken(t, special=False, normalized=False) for t in added_tokens])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=STOP,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def split_out(texts: list[str], marks: list[str]):
    """Yields the pieces of the texts between the marks; of marks that begin at one place the longest counts."""
    cut = re.compile("|".join(re.escape(m) for m in sorted(marks, key=len, reverse=True)))
    return (p for text in texts for p in cut.split(text) if p)


def read_corpus(path: str) -> list[str]:
    """A text file is one text a line, line end included; a .jsonl file gives its demonstrations as they are rendered."""
    if path.endswith(".jsonl"):
        messages = (m for d in read_demonstrations(path) for m in d.messages)
        return [f"{START}{m['role']}\n{m['content']}{END}" for m in messages]
    try:
        with open(path, encoding="utf-8", newline="") as f:
            texts = f.readlines()
    except FileNotFoundError:
        raise TrainerError("not_found", f"corpus {path} does not exist") from None
    except UnicodeDecodeError as e:
        raise invalid(f"corpus {path} is not UTF-8: {e}") from e
    if not texts:
        raise invalid(f"corpus {path} is empty; allowed: text")
    return texts


@dataclass
class Demonstration:
    id: str
    messages: list[dict]  # {"role", "content"} and, of an assistant's that is context alone, "train": false
    tools: list[dict] | None = None  # given to the chat template


def read_demonstrations(path: str) -> list[Demonstration]:
    """JSONL, an object a line: {"id", "messages": [{"role", "content", "train"?}], "tools"?}. Errors name file, line, field."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise TrainerError("not_found", f"demonstrations {path} do not exist") from None
    except UnicodeDecodeError as e:
        raise invalid(f"demonstrations {path} are not UTF-8: {e}") from e
    found = [demonstration(f"{path}:{n}", line) for n, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise invalid(f"demonstrations {path} hold none; allowed: one JSON object a line")
    return found


def demonstration(place: str, line: str) -> Demonstration:
    try:
        d = json.loads(line)
    except ValueError as e:
        raise invalid(f"{place}: not JSON: {e}") from e
    if not isinstance(d, dict) or not isinstance(d.get("id"), str) or not isinstance(d.get("messages"), list):
        raise invalid(f'{place}: allowed: {{"id": text, "messages": [{{"role", "content"}}, ...]}}')
    for name in d:
        if name not in ("id", "messages", "tools"):
            raise invalid(f"{place}: unknown field {name!r}; allowed: id, messages, tools")
    for i, m in enumerate(d["messages"]):
        texts = {k: v for k, v in m.items() if k != "train"} if isinstance(m, dict) else {}
        if set(texts) != {"role", "content"} or not all(isinstance(v, str) for v in texts.values()):
            raise invalid(f"{place}: messages[{i}]; allowed: an object of the texts role and content, no other field but train")
        if m["role"] not in ("system", "user", "assistant", "tool"):
            raise invalid(f"{place}: messages[{i}].role is {m['role']!r}; allowed: system, user, assistant, tool")
        if "train" in m and (m["role"] != "assistant" or not isinstance(m["train"], bool)):
            raise invalid(f"{place}: messages[{i}].train; allowed: true or false, with role assistant")
    if not any(m["role"] == "assistant" and m.get("train", True) for m in d["messages"]):
        raise invalid(f"{place}: messages; allowed: at least one with role assistant, the text that is trained")
    return Demonstration(d["id"], d["messages"], d.get("tools"))


@dataclass
class Segment:
    text: str
    trained: bool  # content and end token of an assistant message whose train is not false


def segments(tokenizer: PreTrainedTokenizerFast, d: Demonstration) -> list[Segment]:
    """The conversation cut where the policy's own tokens begin and end; what follows the last end token is left out."""

    def render(messages, generation):
        messages = [{"role": m["role"], "content": m["content"]} for m in messages]
        return tokenizer.apply_chat_template(messages, tools=d.tools, tokenize=False, add_generation_prompt=generation)

    out, done = [], ""
    for i, m in enumerate(d.messages):
        if m["role"] != "assistant":
            continue
        prompt, whole = render(d.messages[:i], True), render(d.messages[: i + 1], False)
        said = m["content"] + END
        if not prompt.startswith(done) or not whole.startswith(prompt + said):
            raise invalid(
                f"demonstration {d.id!r}: the chat template is not prefix-stable at messages[{i}]; allowed: a template that "
                "renders a conversation as a prefix of every longer one, and content as it is, ended by " + END
            )
        out += [Segment(prompt[len(done) :], False), Segment(said, m.get("train", True))]
        done = prompt + said
    return out


def encode(tokenizer: PreTrainedTokenizerFast, demonstrations: list[Demonstration]) -> list[tuple[list[int], list[bool]]]:
    """Token ids and trained mask of each demonstration, segment by segment."""
    parts = [segments(tokenizer, d) for d in demonstrations]
    texts = sorted({s.text for p in parts for s in p})
    ids = dict(zip(texts, tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True))
    out = []
    for p in parts:
        tokens = [t for s in p for t in ids[s.text]]
        mask = [s.trained for s in p for _ in ids[s.text]]
        out.append((tokens, mask))
    return out
