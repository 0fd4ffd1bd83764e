"""The only readers of OmegaConf nodes: configs from layers to types, and the names of all components."""
