"""The PyTorch trainer of Milepost: loss, packing, update step, supervised step, checkpoints and the gRPC server.

    errors      the one error type and its kinds, as milepost.Error in Go
    loss        the training rule (flat tokens in, one number out); the place for a new loss or aggregation
    critic      the value head of PPO and its loss
    pack        episodes into rows with attention kept apart; logprobs of chosen tokens
    context     ranks that share rows; kernels: fused kernels on GPUs; experts: autocast of mixtures
    batch       Arrow batch files, verified and mapped
    model       tiny models and loading; tokenizer: vocabulary and chat template
    sft         supervised fine-tuning on demonstrations
    prepared    the trained part of a batch
    trainer     the state (weights, optimizer, counters) and the update step
    checkpoint  checkpoints with a commit marker, Hugging Face exports
    server      gRPC; __main__ the command line
    trackers    a run's metrics to Weights & Biases, MLflow or trackio; a process and an environment of its own

Rules for additions: shapes in comments, all-or-nothing state changes, no silent fallback.
"""
