"""What the helper process of `graftlm plugins explain` says of attention: who was named, who else could be.

It asks the platform nothing that a layer of the model did not ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graftlm.cli.plugins.explanation import Candidate, Explanation
from graftlm.contracts.points import ATTENTION_BACKENDS
from graftlm.ops.attention.selector import is_answer
from graftlm.plugins.named import is_path, load_named, plugin_named

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.platform import AttentionQuestion
    from graftlm.plugins.host import PluginHost


def explain_attention(
    host: PluginHost, config: EngineConfig, name: str, *, problem: str, built: bool
) -> Explanation:
    """Say who answers the questions of the model that was built; `name` may be the path of one more candidate."""
    from graftlm.platforms import current_platform

    device, wish = current_platform.device_name, config.attention.attention_backend
    explanation = Explanation(kind="attention", error=problem)
    if wish:
        explanation.facts["--attention-backend"] = wish
    asked = [(e.facts["question"], e.facts["answer"]) for e in host.ledger.of("attention_asked")]
    answers = list(dict.fromkeys(answer for _, answer in asked))
    if asked:
        explanation.answer = ", ".join(answers)
        explanation.why = f"{device} named it"
        if wish and not all(is_answer(wish, answer) for answer in answers):
            explanation.why += f", although --attention-backend asks for {wish}"
    questions = [{k: v for k, v in question.items() if v is not None} for question, _ in asked]
    if len(questions) == 1:
        explanation.facts["question"] = questions[0]
    elif questions:
        named = [answer for _, answer in asked]
        explanation.facts["questions"] = [q | {"answer": a} for q, a in zip(questions, named, strict=True)]
    explanation.candidates = _candidates(host, name, asked, why=explanation.why, wish=wish)
    if not built:
        explanation.answer = f"{device} decides for each question that a layer asks"
        explanation.notes.append("--model CHECKPOINT asks it the questions of that checkpoint")
    elif config.parallel.tensor_parallel_size > 1:
        workers = config.parallel.tensor_parallel_size
        explanation.notes.append(
            f"each of the {workers} workers (--tensor-parallel-size) asks for its own share of the heads"
        )
    return explanation


def _candidates(
    host: PluginHost, name: str, asked: list[tuple[Any, str]], *, why: str, wish: str | None
) -> list[Candidate]:
    """Every backend that is published, whatever path the platform named, and `name` where it is a path."""
    published = {plugin.value: plugin for plugin in host.plugins(ATTENTION_BACKENDS)}
    answers = {answer for _, answer in asked}
    answered = {p.value if (p := plugin_named(ATTENTION_BACKENDS, answer)) else answer for answer in answers}
    owner = host.platform_choice.distribution if host.platform_choice else ""
    found = [
        Candidate(
            name=load_named(ATTENTION_BACKENDS, path, what="attention").name, state="won", reason=why, owner=owner,
            target=path,
        )
        for path in sorted(answered - {*published})
    ]  # fmt: skip
    others = [(p.name, p.value, f"{p.distribution} {p.version}") for p in published.values()]
    if is_path(name) and plugin_named(ATTENTION_BACKENDS, name) is None and name not in answered:
        others.append((name, "", ""))
    for label, target, owner in others:
        state, reason = "available", ""
        if target in answered:
            state, reason = "won", why
        elif asked:
            state, reason = _could_serve(label, [question for question, _ in asked])
            if state == "not named" and wish is not None and is_answer(wish, label):
                reason = "it could serve, and the platform chose otherwise"
        found.append(Candidate(name=label, state=state, reason=reason, owner=owner, target=target))
    return found


def _could_serve(name: str, questions: list[Any]) -> tuple[str, str]:
    """Return the state of a backend that was not named, and why it could not serve or how it would."""
    from graftlm.contracts.platform import AttentionQuestion

    try:
        backend = load_named(ATTENTION_BACKENDS, name, what="explain attention")
        for question in questions:
            if refusal := backend.supports(AttentionQuestion(**question)):
                return "refuses", refusal
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    return "not named", f"it could serve; --attention-backend {name} asks for it"


def ask_for_no_model(config: EngineConfig, *, construct: bool) -> str:
    """Let the platform choose for a layer of no particular model, and say what it named.

    `construct` builds the backend, which binds the kernel functions that it calls.
    """
    from graftlm.ops.attention.selector import get_attn_backend

    question = _plain_question(config)
    try:
        backend = get_attn_backend(question, config.attention.attention_backend)
        if construct:
            backend(num_heads=8, num_kv_heads=8, head_size=64, scale=0.125, prefix="explain")
    except Exception as error:
        return f"which attention backend would compute was not found out ({type(error).__name__}: {error})"
    return (
        f"the platform named {backend.name} for a layer of 8 heads of 64 numbers in float32; --model CHECKPOINT "
        "asks it the questions of that checkpoint"
    )


def _plain_question(config: EngineConfig) -> AttentionQuestion:
    from graftlm.contracts.platform import AttentionQuestion

    cache = "float32" if config.cache.kv_cache_dtype == "auto" else config.cache.kv_cache_dtype
    return AttentionQuestion(
        num_heads=8, num_kv_heads=8, head_size=64, dtype="float32", kv_cache_dtype=cache,
        block_size=config.cache.block_size,
    )  # fmt: skip
