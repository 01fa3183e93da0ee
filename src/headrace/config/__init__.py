"""From a YAML file to loaders. `headrace.mixing` has the public names.

1. `load.load_config` reads the file, its includes and overrides, and resolves interpolations (`yaml_reader`,
   `resolver`).
2. `validate` makes the dataclasses of `schema` and `packing` from plain values, or one error with all
   mistakes.
3. `build.build_dataset` and `build.build_loader` make a dataset and its loader from them, on a given topology.

`foundry.config_of_foundry` reads the YAML of LLM Foundry instead of steps 1 and 2. Steps 1 and 2 touch no network,
shard or torch.
"""
