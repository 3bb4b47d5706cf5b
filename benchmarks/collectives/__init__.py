"""Slow links between real ranks: are they named, and are times those of a plain loop?"""
