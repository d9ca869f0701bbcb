"""What the HTTP tests share: a real server on 127.0.0.1 over a scripted engine, in a thread of the test."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import checkpoints
import httpx
import openai

from graftlm.config import EngineConfig, ServerConfig
from graftlm.contracts.engine import EngineReady
from graftlm.contracts.errors import EngineDead
from graftlm.contracts.request import EngineRequest, FinishReason, RequestUpdate, TokenLogprobs
from graftlm.contracts.stats import StepStats
from graftlm.frontend.async_llm import AsyncLLM
from graftlm.frontend.chat_template import ChatTemplate
from graftlm.frontend.http.server import serve
from graftlm.frontend.text_assets import TextAssets
from graftlm.frontend.tokenizer import Tokenizer
from graftlm.processes.shutdown import ShutdownRequest

TEXT = "Hello, wörld! "
MAX_MODEL_LEN = 200
#: When a test gives up; nothing that works takes so long, on a busy machine neither.
PATIENCE_S = 60.0


class TalkingClient:
    """An engine client that says TEXT over and over, a byte a step, until max_tokens, an abort or its death.

    One that `pauses` says a byte of a request, and the others when `goes_on` is set.
    """

    def __init__(self, *, step_s: float = 0.0, pauses: bool = False) -> None:
        self.ready = EngineReady(num_blocks=10, block_size=16, max_model_len=MAX_MODEL_LEN)
        self.dead: str | None = None
        self.step_s = step_s
        self.goes_on = threading.Event()
        if not pauses:
            self.goes_on.set()
        self.requests: list[EngineRequest] = []
        self.running: set[str] = set()
        self.left: list[str] = []
        self.shut_down = False
        self._listeners: list[Callable[[StepStats], None]] = []

    async def generate(self, request: EngineRequest) -> AsyncIterator[RequestUpdate]:
        self.requests.append(request)
        self.running.add(request.request_id)
        params = request.params
        ended = False
        try:
            for place in range(params.max_tokens or 0):
                await asyncio.sleep(self.step_s)
                while place and not self.goes_on.is_set() and self.dead is None:
                    await asyncio.sleep(0.01)
                if self.dead is not None:
                    raise EngineDead(self.dead)
                token_id = TOKEN_IDS[place % len(TOKEN_IDS)]
                ended = place + 1 == params.max_tokens
                update = RequestUpdate(
                    request_id=request.request_id, new_token_ids=[token_id], num_cached_tokens=2,
                    finish_reason=FinishReason.LENGTH if ended else None,
                )  # fmt: skip
                if params.logprobs is not None:
                    update.logprobs = [_places(token_id, params.logprobs)]
                if place == 0 and params.prompt_logprobs is not None:
                    update.prompt_logprobs = [
                        _places(i, params.prompt_logprobs) for i in request.prompt_token_ids[1:]
                    ]
                for listener in self._listeners:
                    listener(StepStats(num_running=len(self.running), num_generation_tokens=1, kv_cache_usage=0.5))
                yield update
        finally:
            self.running.discard(request.request_id)
            if not ended:
                self.left.append(request.request_id)

    async def abort(self, request_ids: list[str]) -> None:
        self.left.extend(request_ids)

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        self._listeners.append(listener)

    async def shutdown(self) -> None:
        self.shut_down = True


def _places(token_id: int, num_top: int) -> TokenLogprobs:
    """The chosen token is the second best: −0.5 after −0.1."""
    tops = [(token_id + 1) % 256, token_id, *((token_id + i) % 256 for i in range(2, 20))][:num_top]
    logprobs = [-0.1, -0.5, *(-1.0 - i for i in range(18))][:num_top]
    return TokenLogprobs(token_id, -0.5, 2, tops, logprobs)


class HttpServer:
    """`serve` in a thread; the test plays the signals."""

    def __init__(
        self,
        client: TalkingClient | None = None,
        *,
        start: Callable[[Callable[[str], None]], Any] | None = None,
        plugin_host: Any = None,
        tokenizer: Tokenizer | None = None,
        template: str | None = checkpoints.CHAT_TEMPLATE,
        **server_options: Any,
    ) -> None:
        self.client = client if client is not None else TalkingClient()
        self.plugin_host = plugin_host
        self.shutdown = ShutdownRequest()
        self.config = EngineConfig()
        self.config.model.model = "talker"
        self.config.model.served_model_name = ["talker", "also/talker"]
        self.config.model.hf_config = {"vocab_size": checkpoints.VOCAB_SIZE}
        self.config.freeze()
        self.assets = TextAssets(
            tokenizer=tokenizer,
            chat_template=ChatTemplate(template) if template else None,
            eos_token_ids=[checkpoints.EOS_ID],
        )
        self.server_config = ServerConfig(**{"port": free_port(), **server_options})
        self.url = f"http://127.0.0.1:{self.server_config.port}"
        self.exit_code: int | None = None
        self.error: BaseException | None = None
        self._start = start or self._start_at_once
        self._thread = threading.Thread(target=self._run, daemon=True)

    async def _start_at_once(self, on_status: Callable[[str], None]) -> AsyncLLM:
        return self.build_llm()

    def build_llm(self) -> AsyncLLM:
        return AsyncLLM(self.config, self.client, host=self.plugin_host, assets=self.assets)

    def _run(self) -> None:
        try:
            self.exit_code = serve(
                self.server_config, config=self.config, start=self._start, shutdown=self.shutdown
            )
        except BaseException as error:  # what the caller of serve would see
            self.error = error

    def launch(self) -> HttpServer:
        """Start, and wait until the port answers at all."""
        self._thread.start()
        wait_for(lambda: not self._thread.is_alive() or self._answers())
        return self

    def __enter__(self) -> HttpServer:
        self.launch()
        wait_for(lambda: httpx.get(f"{self.url}/health", timeout=PATIENCE_S).status_code == 200)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, *, timeout_s: float = PATIENCE_S) -> int | None:
        """Ask for the shutdown and return the exit code."""
        if self._thread.is_alive():
            self.shutdown.request("TEST")
        return self.wait(timeout_s=timeout_s)

    def wait(self, *, timeout_s: float = PATIENCE_S) -> int | None:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"the server did not end within {timeout_s} s"
        return self.exit_code

    def openai(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", max_retries=0, **{"api_key": "none", **options})

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=PATIENCE_S)

    def _answers(self) -> bool:
        try:
            httpx.get(f"{self.url}/health", timeout=PATIENCE_S)
        except httpx.TransportError:
            return False
        return True


def byte_tokenizer(directory: Path) -> Tokenizer:
    """The tiny checkpoints' byte-level tokenizer, without a checkpoint."""
    import tokenizers

    checkpoints.write_tokenizer(directory)
    backend = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    return Tokenizer(backend, special_tokens={"bos_token": "<|bos|>", "eos_token": "<|eos|>"})


def _token_ids(text: str) -> list[int]:
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    pieces = ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    return [alphabet.index(char) for piece, _ in pieces for char in piece]


TOKEN_IDS = _token_ids(TEXT)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool], *, timeout_s: float = PATIENCE_S) -> None:
    """Wait until `condition` holds; fail when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.01)


def read_events(response: httpx.Response) -> list[str]:
    """Return the data of each server-sent event of a finished stream."""
    events = response.text.split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") for event in events)
    return [event.removeprefix("data: ") for event in events]
