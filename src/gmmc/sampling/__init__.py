"""Samplers, initial images of chains, and the engine that computes their gradients."""
