"""Registers two architectures, in the two forms there are."""


def register() -> None:
    """Register a class, which is imported in every process, and a path, which is imported where it is built."""
    from graftlm.models import ModelRegistry
    from graftlm_dummy_model.my_opt import MyOPTForCausalLM

    ModelRegistry.register_model("MyOPTForCausalLM", MyOPTForCausalLM)
    ModelRegistry.register_model("MyLlamaForCausalLM", "graftlm_dummy_model.my_llama:MyLlamaForCausalLM")
