"""A plugin of vLLM: the backend `gloo` of its weight-transfer API, so that weights go from a trainer to a server without a GPU.

vLLM finds it by the entry point in milepost_vllm-1.dist-info where the directory that holds both is on PYTHONPATH, and calls
`register` in every one of its processes; the worker's is the one that receives. Nothing is installed into vLLM's
environment, so any vLLM 0.32 can be given it, and the pinned one stays what its hashes say.

- wire.py: group, packing and bounded broadcasts, for both ends; it needs torch alone, and the trainer imports it, too
- engine.py: the server's end
- experts.py: what vLLM's CPU build lacks for mixtures of experts; nothing anywhere else

Another backend is another engine beside engine.py and a line in `register`.
"""


def register() -> None:
    """Tells vLLM of the backend; harmless where it was told before."""
    from milepost_vllm import experts

    experts.register()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if "gloo" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("gloo", "milepost_vllm.engine", "GlooWeightTransferEngine")
