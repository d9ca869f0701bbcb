"""The engine for a script: `LLM("demo").generate([...])`, in this process, all prompts batched.

It speaks to the engine as AsyncLLM does and shares its rules; it knows no server.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from graftlm.config.arguments import options_from_keywords
from graftlm.contracts.errors import InvalidParameter
from graftlm.contracts.request import EngineRequest, RequestUpdate
from graftlm.contracts.sampling import SamplingParams
from graftlm.engine.configure import configure
from graftlm.engine.inprocess import InProcessEngineClient
from graftlm.frontend.choice_stream import ChoiceStream
from graftlm.frontend.generation_progress import GenerationProgress
from graftlm.frontend.request_builder import RequestBuilder
from graftlm.frontend.request_output import CompletionOutput, RequestOutput
from graftlm.frontend.text_assets import load_text_assets
from graftlm.platforms.bootstrap import bootstrap_frontend
from graftlm.platforms.hooks import call_hook, hook_counts
from graftlm.plugins import Role, find_host
from graftlm.plugins.selection import Selection
from graftlm.processes.threads import settle_this_process

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig, PluginConfig
    from graftlm.frontend.tokenizer import Tokenizer
    from graftlm.plugins.host import PluginHost

__all__ = ["LLM", "CompletionOutput", "RequestOutput"]

_PROMPTS = "give texts, or lists of token ids"
_PARAMS = "give SamplingParams(…), one for all prompts or a list with one for each"

Prompt: TypeAlias = "str | list[int]"
Messages: TypeAlias = "Sequence[Mapping[str, Any]]"


class LLM:
    """One model in this process. `options` are spelled as the flags of `graftlm serve`, with underscores.

    Not for several threads at once. `close` ends workers and frees the model; a `with` block does it for you.
    """

    def __init__(self, model: str = "demo", **options: Any) -> None:
        settle_this_process()
        config = options_from_keywords({"model": model, **options})
        self.host = _choose_plugins(config.plugins)
        self.config: EngineConfig = configure(config, self.host)
        self.assets = load_text_assets(self.config)
        self.client = InProcessEngineClient(self.config)
        self._builder = RequestBuilder(
            max_model_len=self.client.ready.max_model_len,
            vocab_size=self.config.model.vocab_size,
            seed=self.config.model.seed,
            eos_token_ids=self.assets.eos_token_ids,
            has_tokenizer=self.assets.tokenizer is not None,
        )
        self._numbers = itertools.count()

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.assets.tokenizer

    def generate(
        self,
        prompts: str | list[int] | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt and return the outputs in the prompts' order.

        A list of numbers is one prompt of token ids. `params` is one for all, or one for each. `progress` None
        shows a bar on a terminal. Raises RequestError before anything runs when one prompt cannot be served.
        """
        prepared = [
            (prompt, self.assets.encode(prompt)) if isinstance(prompt, str) else (None, list(prompt))
            for prompt in _as_list(prompts)
        ]
        return self._run(prepared, params, progress=progress)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of several, with the model's chat template."""
        if not isinstance(chat_template_kwargs, Mapping | None):
            raise InvalidParameter(
                "chat_template_kwargs", chat_template_kwargs, cure="give a dictionary of names for the template"
            )
        several = _is_list(messages) and bool(messages) and _is_list(messages[0])
        conversations = cast("Sequence[Messages]", messages if several else [messages])
        prepared: list[tuple[str | None, list[int]]] = []
        for conversation in conversations:
            if _is_list(conversation) and not conversation:
                raise InvalidParameter("messages", conversation, cure="give at least one message")
            text = self.assets.render_chat(
                conversation, add_generation_prompt=add_generation_prompt, **(chat_template_kwargs or {})
            )
            prepared.append((text, self.assets.encode(text, add_special_tokens=False)))
        return self._run(prepared, params, progress=progress)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, as `generate` would see it."""
        return self.assets.encode(text)

    def close(self) -> None:
        """End the engine; safe to call twice."""
        self.client.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(
        self,
        prompts: Sequence[tuple[str | None, list[int]]],
        params: SamplingParams | Sequence[SamplingParams] | None,
        *,
        progress: bool | None,
    ) -> list[RequestOutput]:
        outputs: list[RequestOutput] = []
        requests: list[EngineRequest] = []
        running: dict[str, _RunningChoice] = {}
        for (text, token_ids), wish in zip(prompts, _params_for(params, len(prompts)), strict=True):
            built = self._builder.build(token_ids, wish, request_id=str(next(self._numbers)))
            output = RequestOutput(text, token_ids, [CompletionOutput(index) for index in range(len(built))])
            for index, request in enumerate(built):
                choice = ChoiceStream(request, tokenizer=self.assets.tokenizer, index=index)
                running[request.request_id] = _RunningChoice(choice, output)
            outputs.append(output)
            requests += built
        with GenerationProgress(len(requests), show=progress) as bar:

            def on_update(update: RequestUpdate) -> None:
                current = running.get(update.request_id)
                if current is None:  # ended by a stop string; this is the echo of its abort
                    return
                done = current.take(update)
                bar.advance(num_tokens=len(update.new_token_ids), done=done)
                if done:
                    del running[update.request_id]
                    if update.finish_reason is None:
                        self.client.abort([update.request_id])

            self.client.generate_all(requests, on_update)
        return outputs


@dataclasses.dataclass(slots=True)
class _RunningChoice:
    stream: ChoiceStream
    output: RequestOutput

    def take(self, update: RequestUpdate) -> bool:
        """Put what one step brought into the output; tell whether it was the last."""
        text_update = self.stream.feed(update)
        self.output.outputs[self.stream.index].add(text_update)
        self.output.num_cached_tokens = max(self.output.num_cached_tokens, text_update.num_cached_tokens)
        if text_update.prompt_logprobs:
            self.output.prompt_logprobs = text_update.prompt_logprobs
        return text_update.finish_reason is not None


def _as_list(prompts: str | list[int] | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Iterable) or isinstance(prompts, bytes | Mapping):
        raise InvalidParameter("prompts", prompts, cure=_PROMPTS)
    given = list(prompts)
    if given and all(isinstance(item, int) for item in given):
        return [cast("list[int]", given)]
    for item in given:
        ids = cast("Any", item)
        if not isinstance(item, str) and not (
            _is_list(item) and all(isinstance(token_id, int) for token_id in ids)
        ):
            raise InvalidParameter("prompts", item, cure=_PROMPTS)
    return cast("list[Prompt]", given)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _params_for(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    if not _is_list(params):
        raise InvalidParameter("params", params, cure=_PARAMS)
    for wish in params:
        if not isinstance(wish, SamplingParams):
            raise InvalidParameter("params", wish, cure=_PARAMS)
    if len(params) != num_prompts:
        cure = f"give one for all, or one for each of the {num_prompts} prompts"
        raise InvalidParameter("params", len(params), cure=cure)
    return params


def _choose_plugins(wish: PluginConfig) -> PluginHost:
    """Bootstrap the plugins, or take the process's own if it has chosen before and nothing else is wished."""
    selection = Selection(
        plugins=wish.plugins,
        enable_plugin=tuple(wish.enable_plugin),
        disable_plugin=tuple(wish.disable_plugin),
        no_plugins=wish.no_plugins,
    )
    host = find_host()
    if host is None or selection != Selection() or wish.platform or wish.plugin_config or wish.plugins_locked:
        host = bootstrap_frontend(
            selection,
            platform=wish.platform,
            allow_fallback=wish.allow_platform_fallback,
            plugin_config=wish.plugin_config,
            locked=wish.plugins_locked,
        )
    else:
        host.run_general_plugins()
    host.take_role(Role.ENGINE)
    if not hook_counts(host).get("pre_register_and_update"):
        call_hook("pre_register_and_update", None)
    return host
