"""The HTTP server: OpenAI's API over AsyncLLM; it knows nothing of the engine's processes."""
