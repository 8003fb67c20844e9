"""Directions z: how they are drawn, and how a unit computes with the weights W + c z."""
