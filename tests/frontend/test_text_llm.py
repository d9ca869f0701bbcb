"""The offline LLM: options, plugins, prompts of every kind, and real models in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import EOS_ID

from graftlm import LLM, SamplingParams
from graftlm.config import UnknownOption
from graftlm.contracts.errors import InvalidParameter, NotYetSupported, RequestTooLong
from graftlm.frontend.chat_template import NoChatTemplate
from graftlm.plugins import find_host
from graftlm.plugins.current import hold_host

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny(tiny_llama: Path) -> Iterator[LLM]:
    before = find_host()
    with LLM(
        str(tiny_llama), dtype="float32", max_model_len=128, max_num_seqs=8, kv_cache_memory_bytes=2**23
    ) as llm:
        yield llm
    hold_host(before)


def test_an_unknown_option_is_named_with_its_neighbour() -> None:
    """A misspelt keyword is an error before anything is loaded."""
    with pytest.raises(UnknownOption, match="max-model-len"):
        LLM("demo", max_modell_len=10)


def test_prompts_of_every_kind_give_outputs_in_order(tiny: LLM) -> None:
    """One text, texts, ids and lists of ids; the same prompt gives the same greedy answer in any company."""
    ids = tiny.encode("the hen")
    (text,) = tiny.generate("the hen", GREEDY)
    (by_ids,) = tiny.generate(ids, GREEDY)
    mixed = tiny.generate(["oh", ids, "the hen"], GREEDY)

    assert text.prompt == "the hen" and text.prompt_token_ids == ids and by_ids.prompt is None
    assert len(text.outputs[0].token_ids) == 8 and text.outputs[0].finish_reason == "length"
    assert text.outputs[0].token_ids == by_ids.outputs[0].token_ids == mixed[1].outputs[0].token_ids
    assert mixed[2].outputs[0].text == text.outputs[0].text and mixed[0].prompt == "oh"
    assert tiny.tokenizer is not None
    assert text.outputs[0].text == tiny.tokenizer.decode(text.outputs[0].token_ids)
    assert tiny.generate([], GREEDY) == []


def test_choices_logprobs_and_seeds(tiny: LLM) -> None:
    """n choices differ, a seed repeats them, log-probabilities come for each token."""
    params = SamplingParams(n=3, seed=7, max_tokens=6, logprobs=2, ignore_eos=True, prompt_logprobs=0)
    (first,) = tiny.generate("oh", params)
    (again,) = tiny.generate("oh", params)
    unseeded = [tiny.generate("oh", SamplingParams(max_tokens=6, ignore_eos=True))[0] for _ in range(2)]

    ids = [choice.token_ids for choice in first.outputs]
    assert ids == [choice.token_ids for choice in again.outputs]
    assert len({tuple(i) for i in ids}) == 3
    assert [choice.index for choice in first.outputs] == [0, 1, 2]
    assert [len(choice.logprobs or ()) for choice in first.outputs] == [6, 6, 6]
    assert len(first.prompt_logprobs or ()) == len(first.prompt_token_ids) - 1
    assert unseeded[0].outputs[0].token_ids != unseeded[1].outputs[0].token_ids


def test_a_stop_string_frees_the_request_and_the_others_go_on(tiny: LLM) -> None:
    """One prompt ends early by a piece of its own greedy text; its neighbour is not cut."""
    (plain,) = tiny.generate("the hen", GREEDY)
    stop = plain.outputs[0].text[2:4]
    cut, other = tiny.generate(
        ["the hen", "oh"], [SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, stop=[stop]), GREEDY]
    )

    assert cut.outputs[0].text == plain.outputs[0].text.split(stop)[0]
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", stop)
    assert len(other.outputs[0].token_ids) == 8


def test_conversations_are_answered_with_the_template(tiny: LLM) -> None:
    """One conversation or several; the prompt is what the template wrote, without a second beginning."""
    messages = [{"role": "user", "content": "hi"}]
    (one,) = tiny.chat(messages, GREEDY)
    two = tiny.chat([messages, messages], GREEDY, add_generation_prompt=False)

    assert one.prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert EOS_ID not in one.prompt_token_ids
    assert [output.prompt for output in two] == ["<|im_start|>user\nhi<|im_end|>\n"] * 2


def test_bad_wishes_are_refused_and_leave_the_engine_usable(tiny: LLM) -> None:
    """Too long, wrong kinds, wrong counts: an error each, and the next call works."""
    with pytest.raises(RequestTooLong, match=r"200 tokens.*128"):
        tiny.generate([1] * 200, GREEDY)
    with pytest.raises(InvalidParameter, match="one for each of the 2"):
        tiny.generate(["a", "b"], [GREEDY])
    with pytest.raises(InvalidParameter, match="lists of token ids"):
        tiny.generate([["a", "b"]], GREEDY)  # type: ignore[list-item]
    with pytest.raises(NotYetSupported):
        tiny.chat([{"role": "user", "content": [{"type": "image_url"}]}], GREEDY)

    assert len(tiny.generate("oh", GREEDY)[0].outputs[0].token_ids) == 8


@pytest.mark.parametrize(
    ("method", "value", "sentence"),
    [
        ("chat", "hi", r"messages='hi' is not possible: give a list of messages, such as \[\{"),
        ("chat", ["hi"], "messages='hi' is not possible: give a list of messages"),
        ("chat", {"role": "user"}, "messages={'role': 'user'} is not possible: give a list"),
        ("chat", [{"content": "hi"}], "messages={'content': 'hi'} is not possible: give a list"),
        ("chat", [{"role": "user", "content": 5}], "messages=5 is not possible: give each message's content"),
        ("chat", None, "messages=None is not possible"),
        ("chat", [[{"role": "user", "content": "hi"}], "hi"], "messages='hi' is not possible"),
        ("generate", None, "prompts=None is not possible: give texts, or lists of token ids"),
        ("chat", [], r"messages=\[\] is not possible: give at least one message"),
        ("chat", [[]], r"messages=\[\] is not possible: give at least one message"),
        ("generate", 5, "prompts=5 is not possible"),
        ("generate", b"hi", "prompts=b'hi' is not possible"),
        ("generate", {"prompt": "hi"}, "prompts={'prompt': 'hi'} is not possible"),
        ("generate", ["oh", {"prompt": "hi"}], "prompts={'prompt': 'hi'} is not possible"),
        ("generate", ["oh", None], "prompts=None is not possible"),
        ("encode", 5, "prompt=5 is not possible: give a text"),
    ],
    ids=str,
)
def test_what_is_of_the_wrong_type_is_named_with_the_cure(
    tiny: LLM, method: str, value: Any, sentence: str
) -> None:
    """One error, of ours from the beginning: no template and no library is blamed."""
    with pytest.raises(InvalidParameter, match=f"^{sentence}") as caught:
        getattr(tiny, method)(value)

    assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_params_and_variables_of_the_wrong_type_are_named(tiny: LLM) -> None:
    """vLLM's users pass objects of their own; a dictionary is no SamplingParams either."""
    messages = [{"role": "user", "content": "hi"}]
    for params in ({"temperature": 0}, 5, "greedy", [{"temperature": 0}]):
        with pytest.raises(InvalidParameter, match=r"params=.* is not possible: give SamplingParams\(…\), one for"):
            tiny.generate("oh", params)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match=r"temperature=1000+ is not possible: use 0 to 100"):
        SamplingParams(temperature=10**400)
    with pytest.raises(InvalidParameter, match="chat_template_kwargs=5 is not possible: give a dictionary"):
        tiny.chat(messages, GREEDY, chat_template_kwargs=5)  # type: ignore[arg-type]

    assert len(tiny.generate("oh", GREEDY)[0].outputs[0].token_ids) == 8


def test_the_progress_bar_tells_speed(tiny: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked for, the bar stands on standard error; on something that is no terminal it is silent by default."""
    tiny.generate(["a", "b"], GREEDY)
    silent = capsys.readouterr()
    tiny.generate(["a", "b"], GREEDY, progress=True)
    shown = capsys.readouterr()

    assert silent.err == "" and silent.out == "" and shown.out == ""
    assert "2/2" in shown.err and "tok/s" in shown.err


@pytest.mark.demo
def test_the_demo_answers_a_question(demo_path: Path) -> None:
    """The real model, with the tokenizer and the template of its file, knows a capital and ends by itself."""
    before = find_host()
    with LLM(str(demo_path), max_model_len=512, kv_cache_memory_bytes="64m", max_num_seqs=4) as llm:
        (answer,) = llm.chat(
            [{"role": "user", "content": "What is the capital of France?"}],
            SamplingParams(temperature=0, max_tokens=24),
        )
    hold_host(before)

    assert "Paris" in answer.outputs[0].text
    assert answer.outputs[0].finish_reason == "stop" and answer.outputs[0].stop_reason is None


def test_an_engine_in_processes_streams_what_the_one_in_this_process_says(tiny: LLM, tiny_llama: Path) -> None:
    """start_async_llm brings up a real engine core; greedy ids equal those of the offline engine."""
    from graftlm.frontend.async_llm import start_async_llm

    (expected,) = tiny.generate("the hen", GREEDY)
    statuses: list[str] = []

    async def ask() -> list[int]:
        llm = await start_async_llm(tiny.config, tiny.host, on_status=statuses.append)
        try:
            return [i async for u in llm.generate("the hen", GREEDY, request_id="r") for i in u.token_ids]
        finally:
            await llm.shutdown()

    assert asyncio.run(ask()) == expected.outputs[0].token_ids
    assert statuses[-1] == "ready"


def test_a_start_that_fails_leaves_no_process_and_no_thread(tiny: LLM, tmp_path: Path) -> None:
    """When the tokenizer cannot be loaded the engine core that is starting is ended too."""
    import copy
    import threading
    import time

    import psutil

    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.errors import StartupError
    from graftlm.frontend.async_llm import start_async_llm

    config = EngineConfig()
    for name, section in tiny.config.sections().items():
        setattr(config, name, type(section)(**copy.deepcopy(section.values())))
    config.model.tokenizer = str(tmp_path / "missing")
    children = set(psutil.Process().children(recursive=True))

    with pytest.raises(StartupError, match="missing"):
        asyncio.run(start_async_llm(config, tiny.host, on_status=lambda text: None))

    def stays() -> list[object]:
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("stat-logger")]
        return [*threads, *set(psutil.Process().children(recursive=True)) - children]

    deadline = time.monotonic() + 30
    while stays() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not stays()


def test_without_a_chat_template_the_flag_is_named(tiny: LLM, tiny_llama: Path) -> None:
    """The text assets of a model without a template refuse a conversation."""
    from graftlm.frontend.text_assets import TextAssets

    with pytest.raises(NoChatTemplate, match="--chat-template"):
        TextAssets(tokenizer=tiny.tokenizer).render_chat([{"role": "user", "content": "x"}])
