"""Planted faults in real gloo ranks: is the rank named, its stage, and the cost?"""
