"""Choosing in service among verified implementations of one program, by measured seconds."""
