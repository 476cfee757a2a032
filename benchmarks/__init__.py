"""Measurements of fdjax; every published number comes from one of these programs."""
