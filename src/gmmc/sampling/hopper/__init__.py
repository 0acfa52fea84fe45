"""Hand-written gradients of wide ResNets for NVIDIA Hopper GPUs."""
