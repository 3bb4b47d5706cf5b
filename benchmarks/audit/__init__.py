"""Misconfigurations planted in a real launch: does `rank-probe audit` find them?"""
