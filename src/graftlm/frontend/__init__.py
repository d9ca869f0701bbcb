"""Text in, text out: tokenizer, chat template, streams, `AsyncLLM` and `LLM`; it knows no tensor."""
