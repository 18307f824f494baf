"""Mixtures of experts on vLLM's CPU build: weights that take on a reload, and the experts of each token.

Where weights are loaded again, vLLM 0.32 lays those of experts out anew for GPUs alone. The CPU's kernels read a layout of
their own, so that every reload leaves noise; the same holds for its weight-transfer API. And vLLM returns the experts that
served a token (--enable-return-routed-experts) from its second model runner alone, which needs Triton, which the CPU
build has not. All but the model runner's few calls of that is common to all platforms, so the first runner, the CPU's,
makes them here: say what a step works on, take down what was routed, hand the answer on.

Both hold on the CPU build alone; elsewhere vLLM's own ways are untouched.
"""

import functools
from types import SimpleNamespace

import numpy as np

CONNECTOR = "milepost_routes"  # attribute of a model runner


def register() -> None:
    """Called in every process of the server."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        _lay_out_on_reload()
        _return_routes()


def _once(owner: type, name: str, wrapper) -> None:
    """Replaces a method by wrapper(method), unless it was replaced before: vLLM calls plugins more than once."""
    method = getattr(owner, name)
    if not hasattr(method, "milepost"):
        wrapped = functools.wraps(method)(wrapper(method))
        wrapped.milepost = True
        setattr(owner, name, wrapped)


def _lay_out_on_reload() -> None:
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    def lay_out(setup):
        def _setup_kernel(self, layer, *args, **kwargs):
            again = self.moe_kernel is not None
            setup(self, layer, *args, **kwargs)
            if again:  # the first time vLLM does it itself
                self.moe_kernel.fused_experts.process_weights_after_loading(layer)

        return _setup_kernel

    _once(UnquantizedFusedMoEMethod, "_setup_kernel", lay_out)


def _return_routes() -> None:
    from vllm.config import VllmConfig
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    _once(VllmConfig, "_verify_aux_output_compatibility", _verified)
    _once(CPUModelRunner, "initialize_kv_cache", _connected)
    _once(CPUModelRunner, "execute_model", _begun)
    _once(CPUModelRunner, "sample_tokens", _answered)


def _verified(_):
    """In place of vLLM's check, which demands the second model runner: the rest of it."""

    def _verify_aux_output_compatibility(self):
        if not self.aux_output_config.enabled:
            return
        for bad, what in (
            (not self.model_config.is_moe, "needs a mixture of experts"),
            (not self.cache_config.enable_prefix_caching, "needs prefix caching"),
            (self.speculative_config is not None, "allows no speculation"),
            (self.parallel_config.pipeline_parallel_size > 1, "allows no pipeline stages"),
            (self.scheduler_config.async_scheduling, "allows no asynchronous scheduling"),
        ):
            if bad:
                raise ValueError(f"--enable-return-routed-experts on a CPU {what}")

    return _verify_aux_output_compatibility


def _connected(initialize):
    def initialize_kv_cache(self, kv_cache_config, is_profiling=False, **kwargs):
        initialize(self, kv_cache_config, is_profiling, **kwargs)
        if self.vllm_config.aux_output_config.enabled and not is_profiling:
            from vllm.distributed.aux_output_connector.worker import get_aux_output_connector

            setattr(self, CONNECTOR, get_aux_output_connector(self.get_model(), self.vllm_config, kv_cache_config))

    return initialize_kv_cache


def _begun(execute):
    def execute_model(self, scheduler_output, *args, **kwargs):
        if (connector := getattr(self, CONNECTOR, None)) is not None:
            connector.begin_step(scheduler_output.aux_output_connector_metadata)
        return execute(self, scheduler_output, *args, **kwargs)

    return execute_model


def _answered(sample):
    def sample_tokens(self, grammar_output):
        connector = getattr(self, CONNECTOR, None)
        if connector is None or self.execute_model_state is None:  # nothing was computed
            return sample(self, grammar_output)
        count = self.input_batch.num_reqs
        batch = SimpleNamespace(  # copies: the runner goes on with the originals
            req_ids=list(self.input_batch.req_ids[:count]),
            query_start_loc_np=self.query_start_loc.np[: count + 1].copy(),
            num_computed_tokens_np=self.input_batch.num_computed_tokens_cpu[:count].copy(),
        )
        pending = connector.prepare_output(batch)
        output = sample(self, grammar_output)
        if pending is not None:
            sampled = np.array([len(output.sampled_token_ids[output.req_id_to_index[r]]) for r in batch.req_ids])
            pending.enqueue_cpu_copy(sampled, np.zeros_like(sampled))
            output.aux_output_connector_output = pending.process_output()
        return output

    return sample_tokens
